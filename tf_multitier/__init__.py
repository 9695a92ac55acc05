"""tf_multitier: embedding variables for TensorFlow. They are hash tables whose rows are kept in memory and storage tiers.

    import tf_multitier
    ev = tf_multitier.get_embedding_variable("user", embedding_dim=16)
    pooled = tf.nn.embedding_lookup_sparse(ev, sparse_ids, None, combiner="mean")

Embedding variables work eagerly, in tf.functions, and in graphs and Sessions of tf.compat.v1. `import tf_multitier.v1 as tf` gives
tf.compat.v1 with our names added.
"""

import importlib
import typing

from tf_multitier._src.tensorflow import start  # first: before TensorFlow is imported
from tf_multitier._src.tensorflow.library import get_library_path  # refuses a wrong TensorFlow
from tf_multitier import data
from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier import optimizers
from tf_multitier import options
from tf_multitier import train
from tf_multitier._src import patches
from tf_multitier._src.lookup.multihash import MultiHashVariable
from tf_multitier._src.lookup.multihash import get_multihash_variable
from tf_multitier._src.options import storage_types as config_pb2  # its name in DeepRec
from tf_multitier._src.options.initializers import DebugInitializer
from tf_multitier._src.options.initializers import TruncatedNormal
from tf_multitier._src.options.storage_types import CacheStrategy
from tf_multitier._src.options.storage_types import StorageType
from tf_multitier._src.training.sizing import Memory
from tf_multitier._src.training.sizing import memory
from tf_multitier._src.variable import (
    object_checkpoint,
)  # registers the savers of tf.train.Checkpoint
from tf_multitier._src.variable.embedding_variable import EmbeddingVariable
from tf_multitier._src.variable.partitioned import PartitionedEmbeddingVariable
from tf_multitier._src.variable.partitioned import embedding_variables
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.statistics import StatisticsWriter
from tf_multitier._src.variable.variable_scope import get_embedding_variable
from tf_multitier._version import VERSION as __version__
from tf_multitier.options import CBFFilter
from tf_multitier.options import CounterFilter
from tf_multitier.options import EmbeddingVariableOption
from tf_multitier.options import GlobalStepEvict
from tf_multitier.options import InitializerOption
from tf_multitier.options import L2WeightEvict
from tf_multitier.options import ProbabilisticFilter
from tf_multitier.options import StorageOption

patches.install()

from tf_multitier import feature_column  # noqa: E402  needs everything above

__all__ = [
    "CBFFilter",
    "CacheStrategy",
    "CounterFilter",
    "DebugInitializer",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "Memory",
    "MultiHashVariable",
    "PartitionedEmbeddingVariable",
    "ProbabilisticFilter",
    "StatisticsWriter",
    "StorageOption",
    "StorageType",
    "TruncatedNormal",
    "config_pb2",
    "data",
    "embedding_variables",
    "feature_column",
    "get_embedding_variable",
    "get_library_path",
    "get_multihash_variable",
    "is_embedding_variable",
    "lookup",
    "memory",
    "nn",
    "optimizers",
    "options",
    "train",
]

_LOADED_WHEN_USED = {
    "checkpoint",
    "deeprec",
    "distribute",
    "dynamicemb",
    "engine",
    "keras",
    "one_embedding",
    "serving",
}

if typing.TYPE_CHECKING:
    from tf_multitier import checkpoint, deeprec, distribute, dynamicemb, engine, keras
    from tf_multitier import one_embedding, serving
else:  # a type checker that sees __getattr__ takes every name for one that exists

    def __getattr__(name):
        """The modules of _LOADED_WHEN_USED, loaded when they are first used."""
        if name in _LOADED_WHEN_USED:
            return importlib.import_module("tf_multitier." + name)
        raise AttributeError(f"module 'tf_multitier' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *_LOADED_WHEN_USED])
