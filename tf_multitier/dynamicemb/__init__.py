"""NVIDIA's dynamicemb in TensorFlow: tables that grow, score their keys and evict by score. Its names, fields and defaults.

    tables = [dynamicemb.EmbeddingConfig("user_id", embedding_dim=64, num_embeddings=1 << 24, feature_names=["user_id"])]
    options = dynamicemb.DynamicEmbTableOptions(score_strategy=dynamicemb.DynamicEmbScoreStrategy.STEP)
    model = dynamicemb.EmbeddingCollection(tables).create({"user_id": options}, {"optimizer": dynamicemb.EmbOptimType.ADAM})
    rows = model({"user_id": ids}, training=True)["user_id"]

It works eagerly, in tf.functions and in Keras (docs/dynamicemb.md).
"""

from tf_multitier.dynamicemb.collection import EmbeddingBagCollection
from tf_multitier.dynamicemb.collection import EmbeddingCollection
from tf_multitier.dynamicemb.collection import pop_evicted_keys
from tf_multitier.dynamicemb.configs import EmbeddingBagConfig
from tf_multitier.dynamicemb.configs import EmbeddingConfig
from tf_multitier.dynamicemb.configs import get_qcomm_codecs_registry
from tf_multitier.dynamicemb.configs import QCommsConfig
from tf_multitier.dynamicemb.constraints import DynamicEmbParameterConstraints
from tf_multitier.dynamicemb.dump import DynamicEmbDump
from tf_multitier.dynamicemb.enums import BoundsCheckMode
from tf_multitier.dynamicemb.enums import CommType
from tf_multitier.dynamicemb.enums import DataType
from tf_multitier.dynamicemb.enums import DynamicEmbCheckMode
from tf_multitier.dynamicemb.enums import DynamicEmbEvictStrategy
from tf_multitier.dynamicemb.enums import DynamicEmbInitializerMode
from tf_multitier.dynamicemb.enums import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb.enums import EmbOptimType
from tf_multitier.dynamicemb.enums import PoolingType
from tf_multitier.dynamicemb.enums import ShardingType
from tf_multitier.dynamicemb.enums import SparseType
from tf_multitier.dynamicemb.incremental import incremental_dump
from tf_multitier.dynamicemb.jagged import KeyedJaggedTensor
from tf_multitier.dynamicemb.load import DynamicEmbLoad
from tf_multitier.dynamicemb.options import AdmissionStrategy
from tf_multitier.dynamicemb.options import BUCKET_ALIGNMENT
from tf_multitier.dynamicemb.options import Counter
from tf_multitier.dynamicemb.options import DynamicEmbInitializerArgs
from tf_multitier.dynamicemb.options import DynamicEmbTableOptions
from tf_multitier.dynamicemb.options import FrequencyAdmissionStrategy
from tf_multitier.dynamicemb.options import KVCounter
from tf_multitier.dynamicemb.options import MAX_BUCKET_CAPACITY
from tf_multitier.dynamicemb.parallel import BatchedDynamicEmbeddingTablesV2  # noqa: F401  refused with its reason
from tf_multitier.dynamicemb.parallel import DistributedModelParallel
from tf_multitier.dynamicemb.parallel import InferenceEmbeddingTable  # noqa: F401  refused with its reason
from tf_multitier.dynamicemb.planner import DynamicEmbeddingBagCollectionSharder
from tf_multitier.dynamicemb.planner import DynamicEmbeddingCollectionSharder
from tf_multitier.dynamicemb.planner import DynamicEmbeddingEnumerator
from tf_multitier.dynamicemb.planner import DynamicEmbeddingShardingPlanner
from tf_multitier.dynamicemb.planner import HeuristicalStorageReservation
from tf_multitier.dynamicemb.planner import ShardingPlan
from tf_multitier.dynamicemb.planner import Topology
from tf_multitier.dynamicemb.scores import get_score
from tf_multitier.dynamicemb.scores import set_score
from tf_multitier.dynamicemb.sizes import align_to_table_size
from tf_multitier.dynamicemb.sizes import get_sharded_table_capacity
from tf_multitier.dynamicemb.sizes import get_table_value_bytes
from tf_multitier.dynamicemb.storage import Storage

__all__ = [
    "BUCKET_ALIGNMENT",
    "MAX_BUCKET_CAPACITY",
    "AdmissionStrategy",
    "BoundsCheckMode",
    "CommType",
    "Counter",
    "DataType",
    "DistributedModelParallel",
    "DynamicEmbCheckMode",
    "DynamicEmbDump",
    "DynamicEmbEvictStrategy",
    "DynamicEmbInitializerArgs",
    "DynamicEmbInitializerMode",
    "DynamicEmbLoad",
    "DynamicEmbParameterConstraints",
    "DynamicEmbScoreStrategy",
    "DynamicEmbTableOptions",
    "DynamicEmbeddingBagCollectionSharder",
    "DynamicEmbeddingCollectionSharder",
    "DynamicEmbeddingEnumerator",
    "DynamicEmbeddingShardingPlanner",
    "EmbOptimType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "FrequencyAdmissionStrategy",
    "HeuristicalStorageReservation",
    "KVCounter",
    "KeyedJaggedTensor",
    "PoolingType",
    "QCommsConfig",
    "ShardingPlan",
    "ShardingType",
    "SparseType",
    "Storage",
    "Topology",
    "align_to_table_size",
    "get_qcomm_codecs_registry",
    "get_score",
    "get_sharded_table_capacity",
    "get_table_value_bytes",
    "incremental_dump",
    "pop_evicted_keys",
    "set_score",
]


def __dir__():
    return sorted(__all__)
