"""`tf.nn`'s lookups with the arguments that DeepRec adds: `blocknums`, `counts`, `ev_init_value`.

Only scripts (script.py) get these functions as `tf.nn`. TensorFlow's own functions do not change.
"""

import functools

import tensorflow as tf

from tf_multitier.deeprec import dynamic_dimension


# What a program does instead.
_INSTEAD = {
    "counts": "look up the ids as they are before tf.unique, the lookup counts them itself",
    "ev_init_value": "give the variable an initializer, which computes the initial value of each key",
}


def _extended(function, is_sparse):
    """`function`, a lookup of TensorFlow 1, with DeepRec's arguments."""

    @functools.wraps(function)
    def look_up(params=None, *args, blocknums=None, counts=None, ev_init_value=None, **kwargs):
        params = kwargs.pop("embedding_weights", params)
        for name, value in (("counts", counts), ("ev_init_value", ev_init_value)):
            if value is not None:
                raise NotImplementedError(
                    f"{function.__name__}: {name} is not supported: {_INSTEAD[name]}"
                )
        if not isinstance(params, dynamic_dimension.DynamicEmbeddingVariable):
            if blocknums is not None:
                raise ValueError(
                    f"{function.__name__}: params: expected a dynamic-dimension variable with blocknums, found {params!r}"
                )
            return function(params, *args, **kwargs)
        of = lambda *names: next((kwargs[name] for name in names if name in kwargs), None)
        ids = args[0] if args else of("ids", "sp_ids", "sparse_ids")
        if not is_sparse:
            return dynamic_dimension.embedding_lookup(
                params, ids, blocknums, of("max_norm"), of("name")
            )
        weights = args[1] if len(args) > 1 else of("sp_weights", "sparse_weights")
        return dynamic_dimension.embedding_lookup_sparse(
            params, ids, weights, blocknums, of("combiner"), of("max_norm"), of("name")
        )

    return look_up


LOOKUPS = {
    "embedding_lookup": _extended(tf.compat.v1.nn.embedding_lookup, False),
    "embedding_lookup_sparse": _extended(tf.compat.v1.nn.embedding_lookup_sparse, True),
    "safe_embedding_lookup_sparse": _extended(tf.compat.v1.nn.safe_embedding_lookup_sparse, True),
}
