"""Routes calls of TensorFlow's lookup functions with variables of ours to our lookups, by TensorFlow's public dispatch."""

import os
import sys
import typing

import numpy as np
import tensorflow as tf

_v1 = tf.compat.v1.nn
_Ids = typing.Union[tf.Tensor, tf.Variable, np.ndarray, np.generic, list, tuple, int]
_SparseIds = typing.Union[tf.SparseTensor, tf.RaggedTensor]


def _log(message):
    if os.environ.get("TF_MULTITIER_LOG") == "1":
        print(f"tf_multitier: {message}", file=sys.stderr)


def route(params_type, dense, sparse, safe):
    """Routes `tf.nn.embedding_lookup`, `embedding_lookup_sparse`, `safe_embedding_lookup_sparse` and their `tf.compat.v1` forms.

    The arguments partition_strategy, validate_indices and allow_fast_lookup have no effect.

    Args:
      params_type: the type of the variables, or a Union of types, whose lookups are routed.
      dense: function of (variable, ids, max_norm, name).
      sparse: function of (variable, sp_ids, sp_weights, combiner, max_norm, name).
      safe: function of (variable, sp_ids, sp_weights, combiner, default_id, max_norm, name).
    """
    _route_dense(params_type, dense)
    _route_sparse(params_type, sparse)
    _route_safe(params_type, safe)


def _route_dense(params_type, dense):
    @tf.experimental.dispatch_for_api(_v1.embedding_lookup)
    def embedding_lookup_v1(
        params: params_type,
        ids: _Ids,
        partition_strategy="mod",
        name=None,
        validate_indices=True,
        max_norm=None,
    ):
        _log("tf.compat.v1.nn.embedding_lookup: one lookup op")
        return dense(params, ids, max_norm, name)

    @tf.experimental.dispatch_for_api(tf.nn.embedding_lookup)
    def embedding_lookup_v2(params: params_type, ids: _Ids, max_norm=None, name=None):
        _log("tf.nn.embedding_lookup: one lookup op")
        return dense(params, ids, max_norm, name)


def _route_sparse(params_type, sparse):
    @tf.experimental.dispatch_for_api(_v1.embedding_lookup_sparse)
    def embedding_lookup_sparse_v1(
        params: params_type,
        sp_ids: tf.SparseTensor,
        sp_weights,
        partition_strategy="mod",
        name=None,
        combiner=None,
        max_norm=None,
        allow_fast_lookup=False,
    ):
        _log("tf.compat.v1.nn.embedding_lookup_sparse: one fused op")
        return sparse(params, sp_ids, sp_weights, combiner, max_norm, name)

    @tf.experimental.dispatch_for_api(tf.nn.embedding_lookup_sparse)
    def embedding_lookup_sparse_v2(
        params: params_type,
        sp_ids: _SparseIds,
        sp_weights,
        combiner=None,
        max_norm=None,
        name=None,
        allow_fast_lookup=False,
    ):
        _log("tf.nn.embedding_lookup_sparse: one fused op")
        return sparse(params, sp_ids, sp_weights, combiner, max_norm, name)


def _route_safe(params_type, safe):
    @tf.experimental.dispatch_for_api(_v1.safe_embedding_lookup_sparse)
    def safe_embedding_lookup_sparse_v1(
        embedding_weights: params_type,
        sparse_ids: tf.SparseTensor,
        sparse_weights=None,
        combiner="mean",
        default_id=None,
        name=None,
        partition_strategy="div",
        max_norm=None,
        allow_fast_lookup=False,
    ):
        _log("tf.compat.v1.nn.safe_embedding_lookup_sparse: one fused op")
        return safe(
            embedding_weights, sparse_ids, sparse_weights, combiner, default_id, max_norm, name
        )

    @tf.experimental.dispatch_for_api(tf.nn.safe_embedding_lookup_sparse)
    def safe_embedding_lookup_sparse_v2(
        embedding_weights: params_type,
        sparse_ids: _SparseIds,
        sparse_weights=None,
        combiner="mean",
        default_id=None,
        max_norm=None,
        name=None,
        allow_fast_lookup=False,
    ):
        _log("tf.nn.safe_embedding_lookup_sparse: one fused op")
        return safe(
            embedding_weights, sparse_ids, sparse_weights, combiner, default_id, max_norm, name
        )
