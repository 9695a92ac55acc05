"""OneFlow's OneEmbedding in TensorFlow: its names, order of arguments and defaults.

    tables = [one_embedding.make_table_options(one_embedding.make_uniform_initializer(-0.1, 0.1)) for _ in range(26)]
    store = one_embedding.make_cached_ssd_store_options(cache_budget_mb=8142, persistent_path="/ssd")
    embedding = one_embedding.MultiTableEmbedding("my_embedding", 128, tf.float32, tf.int64, tables, store)
    rows = embedding(ids)                                     # ids [batch, 26] -> [batch, 26, 128]

It works eagerly, in tf.functions, in Keras and in v1 graphs (docs/one_embedding.md). `python3 -m tf_multitier.one_embedding program.py`
runs the programs of OneFlow's documents.
"""

from tf_multitier.one_embedding.modules import Embedding
from tf_multitier.one_embedding.modules import MultiTableEmbedding
from tf_multitier.one_embedding.modules import MultiTableMultiColumnEmbedding
from tf_multitier.one_embedding.optimizer import Ftrl
from tf_multitier.one_embedding.optimizer import Optimizer
from tf_multitier.one_embedding.optimizer import SmartDecayAdam  # noqa: F401  refused with its reason
from tf_multitier.one_embedding.options import make_cached_host_mem_store_option
from tf_multitier.one_embedding.options import make_cached_host_mem_store_options
from tf_multitier.one_embedding.options import make_cached_ssd_store_options
from tf_multitier.one_embedding.options import make_column_options
from tf_multitier.one_embedding.options import make_constant_initializer
from tf_multitier.one_embedding.options import make_device_mem_store_options
from tf_multitier.one_embedding.options import make_normal_initializer
from tf_multitier.one_embedding.options import make_table
from tf_multitier.one_embedding.options import make_table_options
from tf_multitier.one_embedding.options import make_trunc_normal_initializer
from tf_multitier.one_embedding.options import make_uniform_initializer
from tf_multitier.one_embedding.table_files import make_persistent_table_reader
from tf_multitier.one_embedding.table_files import make_persistent_table_writer

__all__ = [
    "Embedding",
    "Ftrl",
    "MultiTableEmbedding",
    "MultiTableMultiColumnEmbedding",
    "Optimizer",
    "make_cached_host_mem_store_option",
    "make_cached_host_mem_store_options",
    "make_cached_ssd_store_options",
    "make_column_options",
    "make_constant_initializer",
    "make_device_mem_store_options",
    "make_normal_initializer",
    "make_persistent_table_reader",
    "make_persistent_table_writer",
    "make_table",
    "make_table_options",
    "make_trunc_normal_initializer",
    "make_uniform_initializer",
]


def __dir__():
    return sorted(__all__)
