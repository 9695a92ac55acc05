"""Dynamic-dimension variables: the number of blocks of an embedding is chosen for each id.

    table = tf.get_dynamic_dimension_embedding_variable("user", embedding_block_dimension=4, embedding_block_num=3)
    rows = tf.nn.embedding_lookup(table, ids, blocknums=blocknums)  # [n, 12]: an id of one block has 4 numbers, then 8 zeros

Block i of all ids is one embedding variable, `<name>/block_<i>`. An id gets a row there when it is trained with more than i blocks. So
rare ids with few blocks take little memory. One grouped lookup reads all blocks. They are trained and saved like other embedding
variables. Source: DeepRec's `get_dynamic_dimension_embedding_variable`.
"""

import numbers

import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier.deeprec.options import get_embedding_variable


class DynamicEmbeddingVariable:
    """A dynamic-dimension variable. `get_dynamic_dimension_embedding_variable` makes it.

    Attributes:
      name: its name.
      blocks: list of embedding variables.
      embedding_dim: elements of all blocks together.
    """

    def __init__(self, name, blocks):
        self.name = name
        self.blocks = list(blocks)
        self.embedding_dim = sum(block.embedding_dim for block in blocks)

    def __repr__(self):
        return f"<tf_multitier.DynamicEmbeddingVariable '{self.name}' {len(self.blocks)} x {self.blocks[0].embedding_dim}>"


def get_dynamic_dimension_embedding_variable(
    name,
    embedding_block_dimension,
    embedding_block_num,
    key_dtype=tf.int64,
    value_dtype=None,
    initializer=None,
    regularizer=None,
    trainable=True,
    collections=None,
    caching_device=None,
    partitioner=None,
    validate_shape=True,
    custom_getter=None,
    constraint=None,
    steps_to_live=None,
    init_data_source=None,
    ht_partition_num=1000,
    storage_type=None,
    ev_option=None,
):
    """Creates a dynamic-dimension variable, or returns the existing one of that name in a reusing scope.

    Args:
      name: name within the variable scope.
      embedding_block_dimension: elements of a block, >= 1. A float such as 9.0 is accepted, because programs compute it by division.
      embedding_block_num: maximal number of blocks of an id, >= 1.
      ht_partition_num: has no effect.
      storage_type: must be None. Use ev_option.
      others: see `tf_multitier.get_embedding_variable`. They apply to every block.

    Returns:
      A DynamicEmbeddingVariable.

    Raises:
      TypeError, ValueError: a bad argument.
    """
    del ht_partition_num
    if storage_type is not None:
        raise ValueError(
            f"dynamic-dimension variable '{name}': storage_type: expected None, found {storage_type!r}: "
            "give ev_option=tf.EmbeddingVariableOption(storage_option=...)"
        )
    if not isinstance(embedding_block_num, numbers.Integral) or embedding_block_num < 1:
        raise ValueError(
            f"dynamic-dimension variable '{name}': embedding_block_num: expected an integer, at least 1, found "
            f"{embedding_block_num!r}"
        )
    if isinstance(embedding_block_dimension, float) and embedding_block_dimension.is_integer():
        embedding_block_dimension = int(embedding_block_dimension)
    blocks = [
        get_embedding_variable(
            f"{name}/block_{i}",
            embedding_block_dimension,
            key_dtype,
            value_dtype,
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
            collections=collections,
            caching_device=caching_device,
            partitioner=partitioner,
            validate_shape=validate_shape,
            custom_getter=custom_getter,
            constraint=constraint,
            steps_to_live=steps_to_live,
            init_data_source=init_data_source,
            ev_option=ev_option,
        )
        for i in range(embedding_block_num)
    ]
    return DynamicEmbeddingVariable(name, blocks)


def embedding_lookup(variable, ids, blocknums, max_norm=None, name=None):
    """Looks up ids of any shape.

    Args:
      variable: a DynamicEmbeddingVariable.
      ids: integers of any shape.
      blocknums: integers of the shape of ids: the number of blocks of each id to read and train. A larger number than there are blocks
        means all.
      max_norm: None, or a number >= 0: blocks with a larger L2 norm are scaled down to it.
      name: name scope of the ops.

    Returns:
      float32, ids.shape + [embedding_dim]. The blocks of an id from number `blocknums` on are zeros.

    Raises:
      ValueError: blocknums is None or has another shape than ids.
    """
    if blocknums is None:
        raise ValueError(
            f"lookup of dynamic-dimension variable '{variable.name}': blocknums: expected the number of blocks of each id, "
            "found None"
        )
    with tf.name_scope(name or "embedding_lookup"):
        ids, blocknums = tf.convert_to_tensor(ids), tf.convert_to_tensor(blocknums)
        if not ids.shape.is_compatible_with(blocknums.shape):
            raise ValueError(
                f"lookup of dynamic-dimension variable '{variable.name}': blocknums: expected shape {ids.shape}, that of "
                f"ids, found {blocknums.shape}"
            )
        keys, counts = tf.reshape(ids, [-1]), tf.reshape(blocknums, [-1])
        places = [tf.where(counts > i) for i in range(len(variable.blocks))]
        found = nn.group_embedding_lookup(
            variable.blocks, [tf.gather(keys, p[:, 0]) for p in places], max_norms=max_norm
        )
        size = tf.size(keys, tf.int64)
        rows = tf.concat(
            [
                tf.scatter_nd(p, values, tf.stack([size, values.shape[-1]]))
                for p, values in zip(places, found)
            ],
            1,
        )
        values = tf.reshape(rows, tf.concat([tf.shape(ids), [variable.embedding_dim]], 0))
        values.set_shape(ids.shape.concatenate(variable.embedding_dim))
        return values


def embedding_lookup_sparse(
    variable, sp_ids, sp_weights, blocknums, combiner="mean", max_norm=None, name=None
):
    """Looks up sparse or ragged ids and pools by row: float32 [batch, embedding_dim]. blocknums has one number per id."""
    with tf.name_scope(name or "embedding_lookup_sparse"):
        sp_ids, sp_weights = lookup.from_ragged(sp_ids, sp_weights)
        values = embedding_lookup(variable, sp_ids.values, blocknums, max_norm)
        entries = tf.SparseTensor(
            sp_ids.indices, tf.range(tf.size(sp_ids.values), dtype=tf.int64), sp_ids.dense_shape
        )
        return nn.group_embedding_lookup_sparse(
            [values], [entries], combiner or "mean", [sp_weights]
        )[0]
