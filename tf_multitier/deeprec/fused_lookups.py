"""DeepRec's "fused" lookups: its second names for lookups, which on a GPU take fewer ops there.

Lookups of embedding variables are one op here in any case. So these are `tf.nn.safe_embedding_lookup_sparse` with the arguments that DeepRec
gives them, over embedding variables, static, multihash and dynamic-dimension ones.
"""

from tf_multitier.deeprec import lookup_arguments

EMBEDDING_OPS = ("fused_embedding_lookup_sparse", "fused_safe_embedding_lookup_sparse")

_safe_lookup = lookup_arguments.LOOKUPS["safe_embedding_lookup_sparse"]


def fused_safe_embedding_lookup_sparse(embedding_weights, sparse_ids, sparse_weights=None, combiner="mean", default_id=None, name=None,
                                       partition_strategy="div", max_norm=None, prune=True, blocknums=None, fusion_version=None):
    """`tf.nn.safe_embedding_lookup_sparse`: embeddings of sparse ids, pooled over the last dimension; empty rows are zeros.

    Args:
      embedding_weights: an embedding variable, or what TensorFlow's lookup takes.
      prune, fusion_version: not used. Negative ids are keys of an embedding variable, and dropped over a static one.
      blocknums: of the ids of a dynamic-dimension variable.
      others: as TensorFlow's.
    """
    del prune, fusion_version
    more = {} if blocknums is None else {"blocknums": blocknums}
    return _safe_lookup(embedding_weights, sparse_ids, sparse_weights, combiner=combiner, default_id=default_id, name=name,
                        partition_strategy=partition_strategy, max_norm=max_norm, **more)


def fused_embedding_lookup_sparse(params, sp_ids, sparse_weights=None, partition_strategy=None, name=None, combiner=None, max_norm=None,
                                  default_id=None, prune_invalid_ids=False, fill_empty_row=True, blocknums=None):
    """The same, its arguments in the order that DeepRec gives them here.

    Args:
      partition_strategy: None: "div".
      combiner: None: "mean".
      default_id: the id whose embedding a row without ids gets; None: zeros.
      prune_invalid_ids, fill_empty_row: not used.
      others: see fused_safe_embedding_lookup_sparse.
    """
    del prune_invalid_ids, fill_empty_row
    return fused_safe_embedding_lookup_sparse(params, sp_ids, sparse_weights, combiner or "mean", default_id, name,
                                              partition_strategy or "div", max_norm, blocknums=blocknums)
