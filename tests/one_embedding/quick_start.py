"""The program of OneEmbedding's quick start, with the path as the first argument."""

import sys

import numpy as np
import oneflow as flow
import oneflow.nn as nn

indices = flow.tensor([[1, 2, 4, 5], [4, 3, 2, 9]], dtype=flow.int)
print(flow.nn.Embedding(10, 3)(indices).shape)

tables = [
    flow.one_embedding.make_table_options(
        flow.one_embedding.make_uniform_initializer(low=-bound, high=bound)
    )
    for bound in (0.1, 0.05, 0.15)
]
store_options = flow.one_embedding.make_cached_ssd_store_options(
    cache_budget_mb=8142,
    persistent_path=sys.argv[1],
    capacity=40000000,
    size_factor=1,
    physical_block_size=512,
)
embedding_size, num_tables = 128, 3
embedding = flow.one_embedding.MultiTableEmbedding(
    name="my_embedding",
    embedding_dim=embedding_size,
    dtype=flow.float,
    key_type=flow.int64,
    tables=tables,
    store_options=store_options,
)
embedding.to("cuda")
mlp = flow.nn.FusedMLP(
    in_features=embedding_size * num_tables,
    hidden_features=[512, 256, 128],
    out_features=1,
    skip_final_activation=True,
)
mlp.to("cuda")


class TrainGraph(nn.Graph):
    def __init__(self):
        super().__init__()
        self.embedding_lookup = embedding
        self.mlp = mlp
        self.add_optimizer(flow.optim.SGD(self.embedding_lookup.parameters(), lr=0.1, momentum=0.0))
        self.add_optimizer(flow.optim.SGD(self.mlp.parameters(), lr=0.1, momentum=0.0))

    def build(self, ids):
        rows = self.embedding_lookup(ids)
        loss = self.mlp(flow.reshape(rows, (-1, num_tables * embedding_size)))
        loss = loss.sum()
        loss.backward()
        return loss


ids = np.random.randint(0, 1000, (100, num_tables), dtype=np.int64)
graph = TrainGraph()
loss = graph(flow.tensor(ids, requires_grad=False).to("cuda"))
print(loss)

embedding_lookup = embedding
ids = np.array([[488, 333, 220], [18, 568, 508]], dtype=np.int64)
by_column = embedding_lookup(ids)
ids = np.array([488, 333, 220, 18, 568, 508], dtype=np.int64)
table_ids = np.array([0, 1, 2, 0, 1, 2])
by_table = embedding_lookup(ids, table_ids)
