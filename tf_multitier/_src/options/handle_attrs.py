"""The attributes of a handle op, which say what an embedding variable is: its options, types, shape and part.

The initialize and restore ops repeat them, and a SavedModel stores them.
"""

import functools

import tensorflow as tf

from tf_multitier._src.options import option_record

HANDLE_OP_TYPE = "MultitierEmbeddingVariableHandle"
HBM_HANDLE_OP_TYPE = "MultitierHbmEmbeddingVariableHandle"  # see placement.py
HANDLE_OP_TYPES = (HANDLE_OP_TYPE, HBM_HANDLE_OP_TYPE)

HANDLE_ATTRS = ("dtype", "key_dtype", "shape", "options", "partition_index", "num_partitions")


def attrs_of_handle(handle):
    """{attribute: value} of HANDLE_ATTRS, read from a handle tensor's op."""
    values = {name: handle.op.get_attr(name) for name in HANDLE_ATTRS}
    values["shape"] = tf.TensorShape(values["shape"])
    return values


def is_handle(tensor):
    """True if a tensor is the handle of an embedding variable."""
    return (
        isinstance(tensor, tf.Tensor)
        and not tf.executing_eagerly()
        and tensor.op.type in HANDLE_OP_TYPES
    )


class TableOptions:
    """Properties of an embedding variable that the attributes of its handle op give."""

    @property
    def embedding_dim(self) -> int:
        """Elements of one embedding."""
        return self.shape.as_list()[1]

    @property
    def key_dtype(self) -> tf.DType:
        """The dtype of ids: tf.int64, tf.int32, tf.uint64 or tf.uint32. Inside the table, keys are int64."""
        return tf.as_dtype(self.handle_attrs["key_dtype"])

    @functools.cached_property
    def table_options(self) -> dict:
        """{name: value} of every option, as the record of the variable's options has it (docs/options.md)."""
        return option_record.complete(
            self.handle_attrs["options"],
            value_dtype=tf.as_dtype(self.handle_attrs["dtype"]).name,
        )

    @functools.cached_property
    def num_tables(self) -> int:
        """Entries of the list that is the variable's initializer; 1 if it is no list."""
        return len(self.table_options["initializers"]) or 1

    @property
    def storage_type(self) -> str:
        """Name of the storage type, for example "DRAM_SSDHASH"."""
        return self.table_options["storage_type"]

    @property
    def score(self) -> str:
        """What an update sets as the version of its rows: "step", "time", "custom" or "frequency"."""
        return self.table_options["score"]

    @property
    def steps_to_live(self) -> int:
        """`steps_to_live` of the variable's GlobalStepEvict, in steps (microseconds if the score is "time"); 0 if it has none."""
        return self.table_options["steps_to_live"]

    @property
    def read_only(self) -> bool:
        """Whether the variable was made in `tf_multitier.serving.read_only()`."""
        return self.table_options["read_only"]
