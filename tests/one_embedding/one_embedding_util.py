"""Embeddings of tf_multitier.one_embedding for tests, and what NumPy says of their training."""

import numpy as np
import tensorflow as tf

from tf_multitier import one_embedding

F = np.float32


def initializers(count):
    """One for each table, of all four types; no two are equal."""
    made = [
        lambda t: one_embedding.make_uniform_initializer(-0.1 - t, 0.1 + t),
        lambda t: one_embedding.make_constant_initializer(0.5 + t),
        lambda t: one_embedding.make_trunc_normal_initializer(0.0, 0.1, 0.5 + t, 1.0 + t),
        lambda t: one_embedding.make_normal_initializer(10.0 * t, 0.01),
    ]
    return [made[t % 4](t) for t in range(count)]


def tables_of(count, columns=1):
    """`count` tables; of several columns, each with another initializer."""
    if columns == 1:
        return [one_embedding.make_table_options(each) for each in initializers(count)]
    each = initializers(count * columns)
    return [
        one_embedding.make_table_options(
            [one_embedding.make_column_options(c) for c in each[t * columns : (t + 1) * columns]]
        )
        for t in range(count)
    ]


def device_store(path, capacity=100_000):
    return one_embedding.make_device_mem_store_options(str(path), capacity)


def ssd_store(path, rows, row_elements):
    """A cached SSD store with room for `rows` rows in its cache."""
    return one_embedding.make_cached_ssd_store_options(rows * row_elements * 4 / 2**20, str(path))


def embedding(path, tables=None, dim=4, name="e", store=None, **kwargs):
    """A MultiTableEmbedding, or MultiTableMultiColumnEmbedding for a list of dims, below `path`."""
    kind = one_embedding.MultiTableEmbedding
    if isinstance(dim, list):
        kind = one_embedding.MultiTableMultiColumnEmbedding
    store = device_store(path) if store is None else store
    arguments = {"dtype": tf.float32, "key_type": tf.int64, **kwargs}
    return kind(name, dim, tables=tables, store_options=store, **arguments)


def table_rows(made):
    """{id: (value, frequency)} of all rows of an embedding, eagerly."""
    keys, values, _, frequencies = map(np.asarray, made.variable.export())
    return {int(k): (v, int(f)) for k, v, f in zip(keys, values, frequencies)}
