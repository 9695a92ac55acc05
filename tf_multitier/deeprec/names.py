"""DeepRec's functions whose signature differs from ours, and DeepRec's other names.

Each list of names (VARIABLES, CONFIG, KV_VARIABLE_OPS) is added to one kind of module: see name_map.py.
"""

import tensorflow as tf

import tf_multitier
from tf_multitier import nn
from tf_multitier._src.variable.partitioned import AnyEmbeddingVariable
from tf_multitier.deeprec.collective import enter_scope
from tf_multitier.deeprec.collective import train_together
from tf_multitier.deeprec.dynamic_dimension import DynamicEmbeddingVariable
from tf_multitier.deeprec.dynamic_dimension import get_dynamic_dimension_embedding_variable
from tf_multitier.deeprec.options import get_embedding_variable

VARIABLES = (
    "get_dynamic_dimension_embedding_variable",
    "get_embedding_variable",
    "get_multihash_variable",
)
CONFIG = ("enable_distributed_strategy", "enable_group_embedding")
KV_VARIABLE_OPS = (
    "DynamicEmbeddingVariable",
    "EmbeddingVariable",
    "MultiHashVariable",
    "lookup_tier",
    "lookup_resource",
)

EmbeddingVariable = tf_multitier.EmbeddingVariable
MultiHashVariable = tf_multitier.MultiHashVariable


def get_multihash_variable(
    name,
    dims,
    complementary_strategy="Q-R",
    operation="add",
    dtype=tf.float32,
    initializer=None,
    regularizer=None,
    trainable=None,
    collections=None,
    caching_device=None,
    partitioner=None,
    validate_shape=True,
    use_resource=None,
    custom_getter=None,
    constraint=None,
    synchronization=None,
    aggregation=None,
    num_of_partitions=2,
):
    """`tf_multitier.get_multihash_variable` with DeepRec's order of arguments and defaults.

    Args:
      operation: "mult", the spelling of DeepRec's manual, means "mul".
      initializer: None: truncated normal with standard deviation 1.
      caching_device, custom_getter, constraint: must be None.
      validate_shape, use_resource, synchronization, aggregation: have no effect.
      num_of_partitions: must be 2.
      others: see there.

    Raises:
      ValueError: a bad argument.
    """
    del validate_shape, use_resource, synchronization, aggregation
    where = f"multihash variable '{name}'"
    for argument, value in (
        ("caching_device", caching_device),
        ("custom_getter", custom_getter),
        ("constraint", constraint),
    ):
        if value is not None:
            raise ValueError(
                f"{where}: {argument}: expected None, found {value!r}: it is not supported"
            )
    if num_of_partitions != 2:
        raise ValueError(f"{where}: num_of_partitions: expected 2, found {num_of_partitions!r}")
    return tf_multitier.get_multihash_variable(
        name,
        dims,
        complementary_strategy,
        "mul" if operation == "mult" else operation,
        dtype,
        initializer or tf.compat.v1.truncated_normal_initializer(),
        regularizer,
        trainable is not False,
        collections,
        partitioner,
    )


def lookups():
    """{name: function}: the lookups that `tf.nn` lacks."""
    return {name: getattr(nn, name) for name in nn.__all__}


def enable_distributed_strategy(strategy="localized"):
    """DeepRec's switch between training in one process and in several.

    Args:
      strategy: "localized": no effect. "collective": the rest of the program is in the scope of a `CollectiveStrategy`.
        "parameter_server": no effect, because lookups of variables on servers are grouped anyway.

    Raises:
      ValueError: an unknown strategy; or "collective" when a launcher that sets no TF_CONFIG started several processes.
    """
    if strategy not in ("localized", "collective", "parameter_server"):
        raise ValueError(
            "enable_distributed_strategy: strategy: expected 'localized', 'collective' or 'parameter_server', found "
            f"{strategy!r}"
        )
    if strategy == "collective":
        enter_scope(train_together())


def enable_group_embedding(fusion_type="localized"):
    """The older name of `enable_distributed_strategy`."""
    enable_distributed_strategy(fusion_type)


def lookup_tier(var, ids):
    """The tier that holds each id, as int32 shaped as ids. See `EmbeddingVariable.lookup_tier`.

    Raises:
      TypeError: var is not an embedding variable, or the ids are not integers.
    """
    if not isinstance(var, AnyEmbeddingVariable):
        raise TypeError(
            f"lookup_tier: var: expected an embedding variable, found {type(var).__name__}"
        )
    return var.lookup_tier(ids)


def lookup_resource(var):
    """NotImplementedError. In DeepRec it returns the table's address in memory, which no code except the ops could use here."""
    raise NotImplementedError(
        f"lookup_resource: the table of '{var.name}' has no address to give away; use var.handle"
    )
