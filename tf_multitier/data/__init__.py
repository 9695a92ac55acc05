"""Input pipelines: files of samples, and embeddings that are brought up ahead of their use.

parquet.py        ParquetDataset: batches of the rows of Parquet files
data_frame.py     DataFrame: what a column of such a batch is
arrow_reader.py   one Parquet file as batches of NumPy arrays; no TensorFlow graph in it
prefetch.py       prefetch_embeddings: a stage that brings up the rows that the next batch needs
"""

from tf_multitier.data.data_frame import DataFrame
from tf_multitier.data.parquet import ParquetDataset
from tf_multitier.data.parquet import read_parquet
from tf_multitier.data.prefetch import prefetch_embeddings

__all__ = ["DataFrame", "ParquetDataset", "prefetch_embeddings", "read_parquet"]
