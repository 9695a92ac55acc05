"""The attributes of a handle op, which say what an embedding variable is: its options, key type and part.

`OPTION_ATTRS` is the table of them. The initialize and restore ops repeat them, and a SavedModel stores them.
"""

import tensorflow as tf

from tf_multitier.storage_option import STORAGE_ATTRS

HANDLE_OP_TYPE = "MultitierEmbeddingVariableHandle"
HBM_HANDLE_OP_TYPE = "MultitierHbmEmbeddingVariableHandle"  # see placement.py
HANDLE_OP_TYPES = (HANDLE_OP_TYPE, HBM_HANDLE_OP_TYPE)

# Attributes of the handle op that say what the variable is; the initialize and restore ops repeat them.
OPTION_ATTRS = (
    "dtype",
    "key_dtype",
    "shape",
    "stochastic_rounding",
    "initializer",
    "initializer_a",
    "initializer_b",
    "initializer_lower",
    "initializer_upper",
    "seed",
    "default_value_dim",
    "default_value_no_permission",
    "not_admitted",
    "not_admitted_parameters",
    "not_admitted_seed",
    "evaluation",
    "evaluation_parameters",
    "evaluation_seed",
    "filter",
    "filter_freq",
    "filter_max_keys",
    "filter_max_elements",
    "filter_false_positive",
    "filter_counter_bits",
    "filter_probability",
    "steps_to_live",
    "l2_weight_threshold",
    "score",
    *STORAGE_ATTRS,
    "read_only",
    "in_place",
    "partition_index",
    "num_partitions",
)


# What attributes were before they existed, in SavedModels of older versions.
NEWER_ATTRS = {
    "stochastic_rounding": False,
    "initializer_lower": 0.0,
    "initializer_upper": 0.0,
    "not_admitted": "",
    "not_admitted_parameters": [],
    "not_admitted_seed": 0,
    "evaluation": "",
    "evaluation_parameters": [],
    "evaluation_seed": 0,
    "filter_max_keys": 0,
    "score": "step",
    "refuse_colder": False,
    "storage_rows": [],
    "initial_rows": 0,
    "on_full": "error",
    "dropped": "keys",
    "dropped_bytes": 8 << 20,
    "removed_bytes": 1 << 20,
}


def _string(value):
    return value.decode() if isinstance(value, bytes) else value


def attrs_of_handle(handle):
    """{attribute: value} of OPTION_ATTRS, read from a handle tensor's op."""
    values = {name: _string(handle.op.get_attr(name)) for name in OPTION_ATTRS}
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
        return tf.as_dtype(self.option_attrs["key_dtype"])

    @property
    def storage_type(self) -> str:
        """Name of the storage type, for example "DRAM_SSDHASH"."""
        return self.option_attrs["storage_type"]

    @property
    def score(self) -> str:
        """What an update sets as the version of its rows: "step", "time", "custom" or "frequency"."""
        return self.option_attrs["score"]

    @property
    def steps_to_live(self) -> int:
        """`steps_to_live` of the variable's GlobalStepEvict, in steps (microseconds if the score is "time"); 0 if it has none."""
        return self.option_attrs["steps_to_live"]

    @property
    def read_only(self) -> bool:
        """Whether the variable was made in `tf_multitier.serving.read_only()`."""
        return self.option_attrs["read_only"]
