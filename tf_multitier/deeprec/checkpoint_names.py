"""Reads checkpoints by DeepRec's names of tensors: `list_variables`, `load_variable`, `load_checkpoint`.

DeepRec saves an embedding variable `table` as tensors, and programs read them:

    tf.train.load_variable("ckpt", "table-keys")  # int64 [n]
    table-values, table-freqs, table-versions     # [n, dim], int64 [n], int64 [n]
    table-keys_filtered, ...                      # keys that a filter counts and that have no row: also freqs and versions
    table/Adagrad-keys, table/Adagrad-values      # a slot, likewise with freqs and versions
    table/part_0-keys, ...                        # a part of a partitioned variable

Our checkpoints have the rows in other files. The functions here read these files and give the tensors of DeepRec. For all other
tensors they are TensorFlow's. Source: DeepRec's page "Embedding Variable Export Format".
"""

import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier.checkpoint.saved import find_prefix

_train = tf.compat.v1.train

# {end of the name: attribute of engine.Rows}.
_OF_ROWS = {"-keys": "keys", "-freqs": "frequencies", "-versions": "versions"}
_OF_COUNTED = {
    "-keys_filtered": "counted_keys",
    "-freqs_filtered": "counted_frequencies",
    "-versions_filtered": "counted_versions",
}


class Reader:
    """What `load_checkpoint` returns: TensorFlow's CheckpointReader, with the tensors of embedding variables by DeepRec's names.

    A part's rows are read at the first use of one of its tensors, and kept until another part is read.
    """

    def __init__(self, path):
        self._reader = _train.load_checkpoint(path)
        self._checkpoint = checkpoint.load(path)
        self._rows = {}
        self._tensors = {}  # {name: (part, attribute of Rows, or a slice of the columns)}
        for table in self._checkpoint.tables.values():
            for i in range(len(table.parts)):
                self._add_part(table, i)

    def _add_part(self, table, index):
        name = table.name if len(table.parts) == 1 else f"{table.name}/part_{index}"
        begin = 0
        for column, dim, _ in table.columns:
            its = name if begin == 0 else f"{name}/{column.removeprefix(table.name + '/')}"
            for end, attribute in _OF_ROWS.items():
                self._tensors[its + end] = (table, index, attribute)
            self._tensors[its + "-values"] = (table, index, slice(begin, begin + dim))
            begin += dim
        for end, attribute in _OF_COUNTED.items():
            self._tensors[name + end] = (table, index, attribute)

    def _part(self, table, index):
        if (table.name, index) not in self._rows:
            self._rows = {(table.name, index): table.read_part(index)}
        return self._rows[table.name, index]

    def get_tensor(self, name):
        """The value of a tensor. NotFoundError if the checkpoint has none of that name."""
        if name not in self._tensors:
            return self._reader.get_tensor(name)
        table, index, what = self._tensors[name]
        rows = self._part(table, index)
        return rows.data[:, what] if isinstance(what, slice) else getattr(rows, what)

    def has_tensor(self, name):
        return name in self._tensors or self._reader.has_tensor(name)

    def get_variable_to_shape_map(self):
        """{name: shape as a list}: the tensors of embedding variables by DeepRec's names only. Reads the files of rows once."""
        shapes = {name: shape for name, (_, shape) in self._checkpoint.tensors.items()}
        for name, (table, index, what) in self._tensors.items():
            if isinstance(what, slice):
                shapes[name] = [table.parts[index].num_rows, what.stop - what.start]
            elif what in _OF_COUNTED.values():
                if what == "counted_keys":
                    counted = table.count_counted_keys(index)
                shapes[name] = [counted]
            else:
                shapes[name] = [table.parts[index].num_rows]
        return shapes

    def get_variable_to_dtype_map(self):
        """{name: tf.DType}, for the names of `get_variable_to_shape_map`."""
        of = lambda what: tf.float32 if isinstance(what, slice) else tf.int64
        dtypes = {name: dtype for name, (dtype, _) in self._checkpoint.tensors.items()}
        return {**dtypes, **{name: of(what) for name, (_, _, what) in self._tensors.items()}}


def _has_our_tables(path):
    try:
        return bool(checkpoint.load(find_prefix(path)).tables)
    except OSError:
        return False  # TensorFlow's own error says what is wrong


def load_checkpoint(ckpt_dir_or_file):
    """`tf.train.load_checkpoint`, for DeepRec's names too: a `Reader` if the checkpoint has embedding variables."""
    if _has_our_tables(ckpt_dir_or_file):
        return Reader(ckpt_dir_or_file)
    return _train.load_checkpoint(ckpt_dir_or_file)


def load_variable(ckpt_dir_or_file, name):
    """`tf.train.load_variable`, for DeepRec's names too."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


def list_variables(ckpt_dir_or_file):
    """`tf.train.list_variables`, with DeepRec's names of embedding variables: [(name, shape as a list)], sorted by name."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


NAMES = {
    "list_variables": list_variables,
    "load_checkpoint": load_checkpoint,
    "load_variable": load_variable,
}
