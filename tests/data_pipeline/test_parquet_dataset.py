"""tf_multitier.data.ParquetDataset: batches contain the file's rows; errors name the columns and files that cannot be read."""

import itertools
import sys

import forks
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tf_multitier.data import DataFrame
from tf_multitier.data import ParquetDataset
from tf_multitier.data import arrow_reader
from tf_multitier.data import data_frame
from tf_multitier.data import read_parquet

Field = DataFrame.Field


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def run(dataset):
    """All elements, as NumPy, through a Session."""
    with tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        session.run(iterator.initializer)
        found = []
        while True:
            try:
                found.append(session.run(element))
            except tf.errors.OutOfRangeError:
                return found


def read(*args, **kwargs):
    with tf.Graph().as_default():
        return run(ParquetDataset(*args, **kwargs))


def column(batches, name):
    return np.concatenate([batch[name] for batch in batches]).tolist()


def test_every_type_comes_out_as_it_went_in(tmp_path):
    types = {
        "i8": np.int8,
        "i16": np.int16,
        "i32": np.int32,
        "i64": np.int64,
        "u8": np.uint8,
        "u16": np.uint16,
        "u32": np.uint32,
        "u64": np.uint64,
        "f16": np.float16,
        "f32": np.float32,
        "f64": np.float64,
        "flag": np.bool_,
    }
    columns = {name: np.array([0, 1, 1, 0, 1], dtype) for name, dtype in types.items()}
    path = write(
        tmp_path / "file",
        {
            **columns,
            "text": ["a", "", "c", "d", "é"],
            "bytes": [b"\0", b"\xff\xfe", b"", b"x", b"y"],
        },
    )
    batches = read(path, 2)
    assert [len(batch["i8"]) for batch in batches] == [2, 2, 1]
    for name, values in columns.items():
        assert batches[0][name].dtype == types[name]
        assert column(batches, name) == values.tolist()
    assert column(batches, "text") == [b"a", b"", b"c", b"d", "é".encode()]
    assert column(batches, "bytes") == [b"\0", b"\xff\xfe", b"", b"x", b"y"]


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize(
    "lengths", [[0, 1, 127, 128, 129, 16383, 16384, 70000], [128], [0, 0], [3] * 300]
)
def test_strings_of_every_length_come_out(tmp_path, use_dictionary, lengths):
    strings = [bytes([65 + i % 26]) * length for i, length in enumerate(lengths)]
    path = write(tmp_path / "file", {"text": strings}, use_dictionary=use_dictionary)
    assert column(read(path, 3), "text") == strings


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)
def test_strings_of_every_arrow_type_come_out(tmp_path, arrow_type):
    strings = ["one", "two", "two", "a string of more than twelve bytes"]
    path = write(tmp_path / "file", {"text": pa.array(strings).cast(arrow_type)})
    assert column(read(path, 3), "text") == [string.encode() for string in strings]


def test_strings_of_a_slice_share_arrows_memory():
    array = pa.array(
        ["skipped", "one", "", "a string of more than twelve bytes"], pa.large_string()
    )
    offsets, text = arrow_reader.offsets_and_bytes(array[1:])
    strings = [text[begin:end].tobytes() for begin, end in itertools.pairwise(offsets)]
    assert strings == [b"one", b"", b"a string of more than twelve bytes"]
    _, offsets_buffer, bytes_buffer = array.buffers()
    assert offsets.ctypes.data == offsets_buffer.address + 8
    assert text.ctypes.data == bytes_buffer.address


@pytest.mark.parametrize(
    "batch_size, rows_of_group", [(1, 100), (3, 10), (7, 1), (10, 4), (64, 10), (1000, 7)]
)
def test_batches_are_full_across_row_groups_and_chunks(
    tmp_path, monkeypatch, batch_size, rows_of_group
):
    monkeypatch.setattr(arrow_reader, "_CHUNK_ROWS", 20)
    text = [str(i % 7) if i < 50 else str(i) for i in range(100)]
    path = write(tmp_path / "file", {"n": range(100), "text": text}, row_group_size=rows_of_group)
    batches = read(path, batch_size)
    assert [len(batch["n"]) for batch in batches] == [
        min(batch_size, 100 - i) for i in range(0, 100, batch_size)
    ]
    assert column(batches, "n") == list(range(100))
    assert column(batches, "text") == [string.encode() for string in text]


def test_lists_of_varying_length_are_ragged_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_reader, "_CHUNK_ROWS", 4)
    lists = [[1, 2], [], [3], [4, 5, 6], [], [7]]
    nested = [[["a"], []], [], [["b", "c"]], [[]], [["d"], ["e"]], [["f", "g", "h"]]]
    pairs = [[[1, 2]], [], [[3, 4], [5, 6]], [], [], [[7, 8]]]
    of_pairs = pa.array(pairs, pa.list_(pa.list_(pa.int64(), 2)))
    path = write(tmp_path / "file", {"one": lists, "two": nested, "pairs": of_pairs})
    batches = read(path, 2)
    assert [row for batch in batches for row in batch["pairs"].to_list()] == pairs
    assert batches[0]["one"].row_splits.dtype == np.int64
    assert [row for batch in batches for row in batch["one"].to_list()] == lists
    found = [row for batch in batches for row in batch["two"].to_list()]
    assert found == [[[s.encode() for s in inside] for inside in row] for row in nested]


def test_ragged_columns_become_sparse_tensors_and_ragged_ones(tmp_path):
    path = write(tmp_path / "file", {"tags": [[1, 2], [], [3]], "n": [1, 2, 3]})
    with tf.Graph().as_default():
        [found] = run(ParquetDataset(path, 3).apply(data_frame.to_sparse()))
        assert found["tags"].indices.tolist() == [[0, 0], [0, 1], [2, 0]]
        assert found["tags"].values.tolist() == [1, 2, 3] and found[
            "tags"
        ].dense_shape.tolist() == [3, 2]
        assert found["n"].tolist() == [1, 2, 3]
        ragged = ParquetDataset(path, 3).map(lambda batch: batch["tags"].row_lengths())
        assert run(ragged)[0].tolist() == [2, 0, 1]
        rows = run(ParquetDataset(path, 1).apply(data_frame.unbatch_and_to_sparse()))
        assert [row["tags"].values.tolist() for row in rows] == [[1, 2], [], [3]]
        assert [row["tags"].dense_shape.tolist() for row in rows] == [[2], [0], [1]]


def test_lists_of_one_length_are_dense_with_a_shape(tmp_path):
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
    path = write(
        tmp_path / "file",
        {"fixed": vectors, "given": [[1, 2, 3, 4]] * 3, "words": [["a", "b"]] * 3},
    )
    fields = ["fixed", Field("given", shape=[2, 2]), Field("words", tf.string, shape=[2])]
    with tf.Graph().as_default():
        dataset = ParquetDataset(path, 2, fields, drop_remainder=True)
        assert dataset.element_spec["given"] == tf.TensorSpec([2, 2, 2], tf.int64)
        [found] = run(dataset)
    assert found["fixed"].tolist() == [[1, 2], [3, 4]]
    assert found["given"].tolist() == [[[1, 2], [3, 4]]] * 2
    assert found["words"].tolist() == [[b"a", b"b"]] * 2


def test_columns_are_chosen_by_fields_in_their_order(tmp_path):
    path = write(tmp_path / "file", {"a": [1], "b": ["x"], "c": [2.0]})
    with tf.Graph().as_default():
        dataset = ParquetDataset(path, fields=["c", Field("a", tf.int64)])
        assert list(dataset.element_spec) == ["c", "a"]
        assert [field.name for field in dataset.fields] == ["c", "a"]
        assert run(dataset) == [{"c": [2.0], "a": [1]}]


def test_files_of_strings_of_different_arrow_types_are_read_one_after_the_other(tmp_path):
    texts = [
        pa.array(["a", "b"]),
        pa.array(["c", "d"], pa.large_string()),
        pa.array(["e", "e"]).dictionary_encode(),
    ]
    paths = [write(tmp_path / f"file{i}", {"text": text}) for i, text in enumerate(texts)]
    assert column(read(paths, 1), "text") == [b"a", b"b", b"c", b"d", b"e", b"e"]


def test_drop_remainder_leaves_out_the_last_batch_of_each_file(tmp_path):
    paths = [write(tmp_path / f"file{i}", {"n": range(5)}) for i in range(2)]
    with tf.Graph().as_default():
        dataset = ParquetDataset(paths, 2, drop_remainder=True)
        assert dataset.element_spec["n"] == tf.TensorSpec([2], tf.int64)
        assert column(run(dataset), "n") == [0, 1, 2, 3] * 2


def test_partitions_share_the_row_groups_out(tmp_path):
    path = write(tmp_path / "file", {"n": range(10)}, row_group_size=2)
    parts = [column(read(path, 4, partition_count=2, partition_index=i), "n") for i in range(2)]
    assert parts == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]
    assert read(path, 4, partition_count=9, partition_index=8) == []


def test_files_are_read_in_parallel_in_a_fixed_order(tmp_path):
    paths = [
        write(tmp_path / f"file{i}", {"n": [10 * i, 10 * i + 1, 10 * i + 2]}) for i in range(3)
    ]
    assert column(read(paths, 1), "n") == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert column(read(paths, 1, num_parallel_reads=2), "n") == [0, 10, 1, 11, 2, 12, 20, 21, 22]
    assert column(read(paths, 1, num_parallel_reads=2, num_sequential_reads=2), "n") == [
        0,
        1,
        10,
        11,
        2,
        12,
        20,
        21,
        22,
    ]
    assert sorted(column(read(paths, 1, num_parallel_reads=tf.data.AUTOTUNE), "n")) == [
        0,
        1,
        2,
        10,
        11,
        12,
        20,
        21,
        22,
    ]


def test_file_names_come_from_tensors_and_datasets(tmp_path):
    paths = [write(tmp_path / f"file{i}", {"n": [i], "tags": [[i, i]]}) for i in range(2)]
    fields = [Field("n", tf.int64), Field("tags", tf.int64, ragged_rank=1)]
    with tf.Graph().as_default():
        names = tf.compat.v1.data.Dataset.from_generator(
            lambda: iter(paths), tf.string, tf.TensorShape([])
        )
        iterator = tf.compat.v1.data.make_one_shot_iterator(
            names.apply(read_parquet(4, fields=fields))
        )
        batch = iterator.get_next()
        with tf.compat.v1.Session() as session:
            assert session.run(batch)["tags"].values.tolist() == [0, 0]
            assert session.run(batch)["n"].tolist() == [1]
        names = tf.compat.v1.placeholder_with_default(paths, [None])
        assert column(run(ParquetDataset(names, fields=fields)), "n") == [0, 1]
        assert column(run(ParquetDataset(tf.constant(paths))), "n") == [0, 1]


def test_it_runs_eagerly_again_and_again(tmp_path):
    path = write(tmp_path / "file", {"n": range(3)})
    script = (
        f"import tensorflow as tf\nfrom tf_multitier.data import ParquetDataset\nd = ParquetDataset({path!r}, 2)\n"
        "print([[b['n'].numpy().tolist() for b in d] for _ in range(2)], len(list(d.repeat(2).shuffle(4))))\n"
    )
    done = forks.run(["-c", script])
    assert done.stdout == "[[[0, 1], [2]], [[0, 1], [2]]] 4\n"


def test_a_file_without_rows_has_no_batches(tmp_path):
    assert (
        read(
            write(
                tmp_path / "file", {"n": pa.array([], pa.int64()), "t": pa.array([], pa.string())}
            ),
            2,
        )
        == []
    )


def test_the_schema_of_a_file_is_read_alone(tmp_path):
    path = write(tmp_path / "file", {"n": pa.array([1], pa.int32()), "tags": [[["a"]]]})
    assert ParquetDataset.read_schema(path) == (
        Field("n", tf.int32, 0),
        Field("tags", tf.string, 2),
    )
    assert ParquetDataset.read_schema(path, ["N"], lower=True) == (Field("n", tf.int32, 0),)


@pytest.mark.parametrize(
    "columns, arguments, message",
    [
        (
            {"d": pa.array([1], pa.date32())},
            {},
            "column 'd' of .*expected integers, floats.*found date32",
        ),
        ({"n": [1]}, {"fields": ["m"]}, "expected one column 'm' in .*found the columns n"),
        (
            {"n": [1]},
            {"fields": [Field("n", tf.int32)]},
            r"column 'n' of .*expected .*int32.*found .*int64",
        ),
        (
            {"n": [1]},
            {"fields": [Field("n", ragged_rank=1)]},
            r"column 'n' of .*ragged_rank=1.*found .*ragged_rank=0",
        ),
        ({"n": [1]}, {"fields": ["n", "n"]}, "each once"),
        ({"n": [1]}, {"batch_size": 0}, "batch_size: expected at least 1, found 0"),
        (
            {"n": [1]},
            {"partition_count": 2, "partition_index": 2},
            "partition_index: expected less than 2, the partition_count, found 2",
        ),
        ({"n": [1]}, {"num_parallel_reads": 0}, "num_parallel_reads: expected at least 1"),
    ],
)
def test_what_cannot_be_read_is_refused_when_the_graph_is_built(
    tmp_path, columns, arguments, message
):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "file", columns), **arguments)


def test_a_missing_or_damaged_first_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="expected a file .*nothing, found none"):
        ParquetDataset(str(tmp_path / "nothing"))
    (tmp_path / "text").write_text("not parquet at all")
    with pytest.raises(ValueError, match="text cannot be read as a Parquet file"):
        ParquetDataset(str(tmp_path / "text"))


@pytest.mark.parametrize(
    "columns, arguments, message",
    [
        ({"n": [1, None]}, {}, "column 'n' of .*file: expected no nulls, found 1 in 2"),
        ({"n": [[1], [None]]}, {}, "column 'n' of .*file: expected no nulls, found 1 in 2"),
        ({"n": ["a", None]}, {}, "column 'n' of .*file: expected no nulls, found 1 in 2"),
        (
            {"n": [[1, 2], [3]]},
            {"fields": [Field("n", shape=[2])]},
            r"column 'n' of .*file: expected lists of 2 .*found one of 1",
        ),
    ],
)
def test_rows_that_no_tensor_can_hold_are_refused_when_they_come(
    tmp_path, columns, arguments, message
):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read(write(tmp_path / "file", columns), 2, **arguments)


def test_a_later_file_of_another_type_or_a_missing_one_is_named_when_it_comes(tmp_path):
    first = write(tmp_path / "first", {"n": [1]})
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="column 'n' of .*second: expected .*int64.*found .*(double|float64)",
    ):
        read([first, write(tmp_path / "second", {"n": [1.0]})])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="expected a file .*third.*, found none"
    ):
        read([first, str(tmp_path / "third")])


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = write(
        tmp_path / "file",
        {"text": [str(i) * 50 for i in range(20000)]},
        use_dictionary=False,
        compression="none",
    )
    data = bytearray((tmp_path / "file").read_bytes())
    data[100:5000] = b"\xff" * 4900  # the pages; the footer stays whole
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(tf.errors.InvalidArgumentError, match="file cannot be read"):
        read(path, 100)


@pytest.mark.parametrize(
    "filenames, error",
    [
        (3, TypeError),
        ([], ValueError),
        ([1], TypeError),
        (tf.constant(1), TypeError),
        (tf.compat.v2.data.Dataset.range(2), TypeError),
    ],
)
def test_names_that_are_none_are_refused(filenames, error):
    with pytest.raises(error, match="ParquetDataset: filenames: expected"):
        ParquetDataset(filenames, fields=[Field("n", tf.int64)])


def test_unknown_files_need_fields_with_types():
    names = tf.compat.v2.data.Dataset.from_tensors("file")
    for fields in (None, ["n"], [Field("n")]):
        with pytest.raises(ValueError, match="fields: expected DataFrame.Fields with dtype"):
            ParquetDataset(names, fields=fields)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(ragged_rank=-1), "ragged_rank"),
        (dict(shape=[None]), "fully defined"),
        (dict(shape=[2], ragged_rank=1), "ragged_rank: expected 0 with a shape, found 1"),
    ],
)
def test_bad_fields_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Field("n", tf.int64, **arguments)


def test_without_pyarrow_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="needs the package pyarrow: run `pip install pyarrow`"):
        ParquetDataset("file")


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "file"
    group = pa.table({f"c{i}": np.arange(1000) for i in range(20)})
    with pq.ParquetWriter(path, group.schema) as writer:
        for _ in range(100):
            writer.write_table(group)
    peaks, before = [], pa.total_allocated_bytes()
    fields = arrow_reader.complete_fields(path)
    for _ in arrow_reader.chunks(path, fields, 500, chunk_rows=1000):
        peaks.append(pa.total_allocated_bytes() - before)
    assert len(peaks) == 100 and max(peaks) < 10 * group.nbytes, peaks


def test_small_row_groups_with_dictionaries_of_their_own_come_as_large_chunks(tmp_path):
    path = tmp_path / "file"
    names = [[f"{group}-{i % 3}" for i in range(50)] for group in range(20)]
    with pq.ParquetWriter(path, pa.schema([("c", pa.string())])) as writer:
        for group in names:
            writer.write_table(pa.table({"c": group}))
    chunks = list(arrow_reader.chunks(path, arrow_reader.complete_fields(path), 30, chunk_rows=600))
    assert [len(positions) for _, _, positions in chunks] == [600, 400]
    read = [
        bytes(text[offsets[i] : offsets[i + 1]]).decode()
        for offsets, text, positions in chunks
        for i in positions
    ]
    assert read == [name for group in names for name in group]


def test_deeprecs_import_path_is_the_same_reader(tmp_path):
    path = write(
        tmp_path / "train.parquet",
        {"clicked": [0, 1, 1], "C1": ["a", "b", "c"], "tags": [[1], [], [2, 3]]},
    )
    script = tmp_path / "script.py"
    script.write_text(f"""
import tensorflow as tf
from tensorflow.python.data.experimental.ops import parquet_dataset_ops
from tensorflow.python.data.experimental.ops.dataframe import DataFrame
def parse(value):
  return value, value.pop("clicked")
dataset = parquet_dataset_ops.ParquetDataset({path!r}, batch_size=2)
dataset = dataset.shuffle(buffer_size=20, seed=1).repeat(2).map(parse, num_parallel_calls=28).prefetch(2)
iterator = tf.data.Iterator.from_structure(tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset))
features, labels = iterator.get_next()
assert isinstance(features["tags"], DataFrame.Value)
with tf.Session() as session:
  session.run(iterator.make_initializer(dataset))
  print(sorted(session.run([labels, features["C1"]])[1].tolist() for _ in range(4)))
""")
    done = forks.run(["-m", "tf_multitier.deeprec", str(script)])
    assert done.stdout == "[[b'a', b'b'], [b'a', b'b'], [b'c'], [b'c']]\n", done.stderr[-3000:]
