"""ParquetDataset under DeepRec's names: `tensorflow.python.data.experimental.ops.{parquet_dataset_ops, dataframe}`.

The reader is `tf_multitier.data.ParquetDataset`. Here, as in DeepRec, a batch of a column of lists is a `DataFrame.Value`: programs
read its `values` and `nested_row_splits`, and make iterators from the types and shapes of a dataset.
"""

import functools

import tensorflow as tf

from tf_multitier.data import data_frame
from tf_multitier.data import parquet


class ParquetDataset(parquet.ParquetDataset):
    """`tf_multitier.data.ParquetDataset` with lists as `DataFrame.Value`s, whose row splits are int32."""

    _list_column = data_frame.DataFrame.Value


def read_parquet(batch_size, *args, **kwargs):
    """A stage for `Dataset.apply` that turns a Dataset of file names into a `ParquetDataset`. For the arguments see there."""
    return lambda filenames: ParquetDataset(filenames, batch_size, *args, **kwargs)


def _rebatch(original):
    @functools.wraps(original)
    def rebatch(self, *args, **kwargs):
        tf.nest.map_structure(lambda spec: tf.TensorSpec([]), self.element_spec)
        return original(self, *args, **kwargs)

    return rebatch


def install():
    """Makes `Dataset.rebatch` show a DataFrame.Value types of rows, which it refuses. All other stages that change rows do so."""
    dataset = tf.compat.v2.data.Dataset
    dataset.rebatch = _rebatch(dataset.rebatch)


_DATA_FRAME = {
    "DataFrame": data_frame.DataFrame,
    "to_sparse": data_frame.to_sparse,
    "unbatch_and_to_sparse": data_frame.unbatch_and_to_sparse,
}

# {name of a module: {name: object}}
MODULES = {
    "tensorflow.python.data.experimental.ops.dataframe": _DATA_FRAME,
    "tensorflow.python.data.experimental.ops.parquet_dataset_ops": {
        "DataFrame": data_frame.DataFrame,
        "ParquetDataset": ParquetDataset,
        "read_parquet": read_parquet,
    },
}
