"""Input pipelines: reading Parquet files, and prefetching embeddings.

parquet.py        ParquetDataset: batches of the rows of Parquet files
data_frame.py     DataFrame: names, types and values of the columns of such a batch
arrow_reader.py   reads one Parquet file as chunks of NumPy arrays, without a TensorFlow graph
prefetch.py       prefetch_embeddings: a stage that reads the rows of the next batch into DRAM
"""

from tf_multitier.data.data_frame import DataFrame
from tf_multitier.data.parquet import ParquetDataset
from tf_multitier.data.parquet import read_parquet
from tf_multitier.data.prefetch import prefetch_embeddings

__all__ = ["DataFrame", "ParquetDataset", "prefetch_embeddings", "read_parquet"]


def __dir__():
    return sorted(__all__)
