"""The calls of dynamicemb's document, in its order. The test gives `caching` and `storage`, options of the table."""

import types

from tf_multitier.dynamicemb import CommType
from tf_multitier.dynamicemb import DataType
from tf_multitier.dynamicemb import DistributedModelParallel
from tf_multitier.dynamicemb import DynamicEmbeddingCollectionSharder
from tf_multitier.dynamicemb import DynamicEmbeddingEnumerator
from tf_multitier.dynamicemb import DynamicEmbeddingShardingPlanner
from tf_multitier.dynamicemb import DynamicEmbInitializerArgs
from tf_multitier.dynamicemb import DynamicEmbInitializerMode
from tf_multitier.dynamicemb import DynamicEmbParameterConstraints
from tf_multitier.dynamicemb import DynamicEmbScoreStrategy
from tf_multitier.dynamicemb import DynamicEmbTableOptions
from tf_multitier.dynamicemb import EmbeddingCollection
from tf_multitier.dynamicemb import EmbeddingConfig
from tf_multitier.dynamicemb import EmbOptimType
from tf_multitier.dynamicemb import get_qcomm_codecs_registry
from tf_multitier.dynamicemb import get_table_value_bytes
from tf_multitier.dynamicemb import HeuristicalStorageReservation
from tf_multitier.dynamicemb import QCommsConfig
from tf_multitier.dynamicemb import ShardingPlan
from tf_multitier.dynamicemb import ShardingType
from tf_multitier.dynamicemb import SparseType
from tf_multitier.dynamicemb import Topology

caching: bool = globals()["caching"]
storage: dict = globals()["storage"]

# What the document takes from PyTorch, TorchRec and its caller.
torch = types.SimpleNamespace(device=lambda kind: types.SimpleNamespace(type=kind))
dist = types.SimpleNamespace(
    get_world_size=lambda: 1, GroupMember=types.SimpleNamespace(WORLD=None)
)
device, backend, batch_size, cache_ratio = torch.device("cuda"), "nccl", 64, 0.5

tables = [
    EmbeddingConfig(
        name="user_id",
        embedding_dim=16,
        num_embeddings=1000,
        feature_names=["user_id"],
        data_type=DataType.FP32,
    )
]
collection = EmbeddingCollection(tables=tables, device=torch.device("meta"))

fused_params = {
    "optimizer": EmbOptimType.ADAM,
    "learning_rate": 0.05,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0,
    "eps": 0.001,
    "output_dtype": SparseType.FP32,
    "prefetch_pipeline": False,
}
sharder = DynamicEmbeddingCollectionSharder(
    qcomm_codecs_registry=(
        get_qcomm_codecs_registry(
            qcomms_config=QCommsConfig(
                forward_precision=CommType.FP32, backward_precision=CommType.FP32
            )
        )
        if backend == "nccl"
        else None
    ),
    fused_params=fused_params,
    use_index_dedup=True,
)

need = get_table_value_bytes(tables[0], EmbOptimType.ADAM, dist.get_world_size())
constraints = {
    "user_id": DynamicEmbParameterConstraints(
        sharding_types=[ShardingType.ROW_WISE.value],
        use_dynamicemb=True,
        dynamicemb_options=DynamicEmbTableOptions(
            global_hbm_for_values=need * cache_ratio if caching else need,
            initializer_args=DynamicEmbInitializerArgs(mode=DynamicEmbInitializerMode.NORMAL),
            score_strategy=DynamicEmbScoreStrategy.STEP,
            caching=caching,
            training=True,
            **storage,
        ),
    )
}
topology = Topology(
    local_world_size=1,
    world_size=dist.get_world_size(),
    compute_device=device.type,
    hbm_cap=80 << 30,
    ddr_cap=512 << 30,
    intra_host_bw=450e9,
    inter_host_bw=25e9,
)
enumerator = DynamicEmbeddingEnumerator(topology=topology, constraints=constraints)
planner = DynamicEmbeddingShardingPlanner(
    eb_configs=tables,
    topology=topology,
    constraints=constraints,
    batch_size=batch_size,
    enumerator=enumerator,
    storage_reservation=HeuristicalStorageReservation(percentage=0.05),
    debug=True,
)
plan: ShardingPlan = planner.collective_plan(collection, [sharder], dist.GroupMember.WORLD)
model = DistributedModelParallel(module=collection, device=device, sharders=[sharder], plan=plan)
