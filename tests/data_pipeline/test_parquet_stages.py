"""Stages of tf.data after ParquetDataset: each row is one of the file's rows, as pyarrow reads them, also with columns of lists."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tf_multitier.data import ParquetDataset
from tf_multitier.data import data_frame
from tf_multitier.deeprec import parquet as deeprec


ROWS = {
    "n": list(range(10)),
    "tags": [[i] * (i % 4) for i in range(10)],
    "words": [[["w%d" % i] * (i % 3), []][: i % 3] for i in range(10)],
    "text": [str(i) for i in range(10)],
    "pair": pa.array([[i, -i] for i in range(10)], pa.list_(pa.int64(), 2)),
}


@pytest.fixture
def path(tmp_path):
    """A file of ROWS, whose last batch of three has one row."""
    pq.write_table(pa.table(ROWS), tmp_path / "file", row_group_size=4)
    return str(tmp_path / "file")


def plain(value):
    """A Tensor or RaggedTensor as Python lists of ints and strings."""
    if isinstance(value, tf.RaggedTensor):
        value = value.to_list()
    elif hasattr(value, "numpy"):
        value = np.asarray(value.numpy()).tolist()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.decode() if isinstance(value, bytes) else value


def rows_of(dataset, batched):
    """The rows of a dataset as dicts, in order."""
    found = []
    for element in dataset:
        columns = {name: plain(value) for name, value in element.items()}
        count = len(columns["n"]) if batched else 1
        for i in range(count):
            found.append({k: v[i] for k, v in columns.items()} if batched else columns)
    return found


def expected(path, keep=lambda row: True):
    return [row for row in pq.read_table(path).to_pylist() if keep(row)]


def long(row):
    return tf.size(row["tags"]) > 1


# {name: (stage over batches of three, whether its elements are batches, rows)}
STAGES = {
    "none": (lambda d: d, True),
    "unbatch": (lambda d: d.unbatch(), False),
    "unbatch, batch": (lambda d: d.unbatch().batch(4), True),
    "unbatch, batch, drop_remainder": (lambda d: d.unbatch().batch(5, drop_remainder=True), True),
    "unbatch, ragged_batch": (lambda d: d.unbatch().ragged_batch(4), True),
    "rebatch": (lambda d: d.rebatch(4), True),
    "rebatch to several sizes": (lambda d: d.rebatch([1, 4]), True),
    "unbatch, skip, take": (lambda d: d.unbatch().skip(0).take(100), False),
    "unbatch, cache, repeat": (lambda d: d.unbatch().cache().repeat(1), False),
    "unbatch, interleave": (
        lambda d: d.unbatch().interleave(tf.data.Dataset.from_tensors, cycle_length=1),
        False,
    ),
    "unbatch, window, batch of each column": (
        lambda d: (
            d.unbatch()
            .window(4)
            .flat_map(lambda w: tf.data.Dataset.zip({k: v.batch(4) for k, v in w.items()}))
        ),
        True,
    ),
    "flat_map to slices": (lambda d: d.flat_map(tf.data.Dataset.from_tensor_slices), False),
    "map, prefetch, unbatch": (
        lambda d: d.map(lambda batch: dict(batch), num_parallel_calls=2).prefetch(1).unbatch(),
        False,
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_gives_the_rows_of_the_file(path, name):
    stage, batched = STAGES[name]
    assert rows_of(stage(ParquetDataset(path, 3)), batched) == expected(path)


def test_rows_are_shuffled_filtered_and_taken_whole(path):
    rows = ParquetDataset(path, 3).unbatch()
    shuffled = rows_of(rows.shuffle(10, seed=1), False)
    assert shuffled != expected(path)
    assert sorted(shuffled, key=lambda row: row["n"]) == expected(path)
    assert rows_of(rows.filter(long), False) == expected(path, lambda row: len(row["tags"]) > 1)
    assert rows_of(rows.take(4).shard(2, 1), False) == expected(path)[1:4:2]


def test_a_batch_of_batches_has_one_more_dimension(path):
    [batches] = ParquetDataset(path, 5).batch(2)
    assert batches["tags"].shape.as_list() == [2, None, None]
    assert plain(batches["tags"]) == [ROWS["tags"][:5], ROWS["tags"][5:]]
    assert plain(batches["pair"]) == [ROWS["pair"].to_pylist()[:5], ROWS["pair"].to_pylist()[5:]]


def test_padded_batches_have_the_rows_with_zeros_behind(path):
    """tf.data pads Tensors. A row of a list is one after a map."""
    rows = ParquetDataset(path, 3, ["n", "tags"]).unbatch()
    with pytest.raises(TypeError, match="padded_batch.*RaggedTensorSpec"):
        rows.padded_batch(4)
    for batch in rows.map(lambda row: row).padded_batch(4):
        for row, tags in zip(batch["n"], batch["tags"].numpy().tolist()):
            wanted = ROWS["tags"][row]
            assert tags[: len(wanted)] == wanted and not any(tags[len(wanted) :])


def test_types_are_those_that_tensorflow_makes(path):
    spec = ParquetDataset(path, 3).element_spec
    assert spec["tags"] == tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64)
    assert spec["words"] == tf.RaggedTensorSpec([None, None, None], tf.string, 2, tf.int64)
    batch = next(iter(ParquetDataset(path, 3)))
    joined = tf.concat([batch["tags"], tf.ragged.constant([[7], [], [8]], tf.int64)], 1)
    assert joined.to_list() == [[7], [1], [2, 2, 8]]
    fixed = ParquetDataset(path, 5, drop_remainder=True).element_spec
    assert fixed["tags"].shape.as_list() == [5, None] and fixed["n"].shape.as_list() == [5]


# {name: stage over a dataset with DataFrame.Values}
REFUSED = {
    "unbatch": lambda d: d.unbatch(),
    "batch": lambda d: d.batch(2),
    "padded_batch": lambda d: d.padded_batch(2),
    "ragged_batch": lambda d: d.ragged_batch(2),
    "map_and_batch": lambda d: d.apply(
        tf.data.experimental.map_and_batch(lambda *batch: batch, batch_size=2)
    ),
    "experimental.unbatch": lambda d: d.apply(tf.data.experimental.unbatch()),
    "slices": lambda d: d.flat_map(tf.data.Dataset.from_tensor_slices),
    "rebatch": lambda d: d.rebatch(4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stages_that_take_a_value_of_deeprec_apart_are_refused(path, name, monkeypatch):
    monkeypatch.setattr(tf.data.Dataset, "rebatch", tf.data.Dataset.rebatch)
    deeprec.install()
    batches = deeprec.ParquetDataset(path, 3, ["n", "tags"])
    kept = batches.shuffle(5, seed=1).map(lambda batch: (batch, batch.pop("n"))).prefetch(1).take(9)
    for dataset in (batches, kept):
        with pytest.raises(
            NotImplementedError, match=r"DataFrame.Value: expected a stage that keeps its rows"
        ):
            REFUSED[name](dataset)
        sparse = dataset.map(lambda *batch: data_frame.DataFrame.to_sparse(batch[0]))
        assert sparse.unbatch().element_spec["tags"] == tf.SparseTensorSpec([None], tf.int64)
    without_lists = deeprec.ParquetDataset(path, 3, ["n"])
    if name in ("unbatch", "rebatch", "slices"):
        assert sum(len(np.atleast_1d(e["n"])) for e in REFUSED[name](without_lists)) == 10


def test_a_value_of_deeprec_is_a_tuple_with_int32_row_splits(path):
    batch = next(
        iter(
            tf.data.Dataset.from_tensors(path).apply(
                deeprec.read_parquet(3, [data_frame.DataFrame.Field("tags", tf.int64, 1)])
            )
        )
    )
    values, [splits] = batch["tags"]
    assert isinstance(batch["tags"], data_frame.DataFrame.Value) and splits.dtype == tf.int32
    assert tf.RaggedTensor.from_row_splits(values, splits).to_list() == ROWS["tags"][:3]
