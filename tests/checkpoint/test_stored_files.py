"""The files that release 0.1.0 wrote read as the same rows, and are written as the same bytes. stored_files.py wrote them."""

import glob
import json
import os
import shutil
import zlib

import h5py
import keras
import numpy as np
import pytest
import stored_files
import tensorflow as tf
from stored_files import KEYS
from worlds import needs_eager

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import engine

v1 = tf.compat.v1

# The uniform initial values of seed 3.
INITIAL = {
    1: [-0.46355200, 0.10306633],
    2: [0.53663039, 0.57069933],
    4: [0.84148717, 0.03635180],
}


@pytest.fixture
def data(tmp_path):
    """A copy: a table that opens kept files writes."""
    return shutil.copytree(stored_files.DATA, tmp_path / "data")


def content(rows):
    """{key: (columns, frequency, version)}"""
    facts = zip(rows.keys.tolist(), rows.data.tolist(), rows.frequencies, rows.versions)
    return {key: (row, int(frequency), int(version)) for key, row, frequency, version in facts}


def expected(keys, columns=5):
    return {
        key: ([8.0 * i + j for j in range(columns)], i + 1, 10 * i) for i, key in enumerate(keys)
    }


def test_a_kept_table_opens_with_its_rows_and_options(data):
    with engine.Table.open(data / "ssdhash", keep=False) as table:
        rows = table.export()
        assert content(rows) == expected(KEYS)
        assert rows.columns == [("value", 2, 0.0), ("slot", 3, 0.25)]
        np.testing.assert_array_equal(table.lookup([4]), np.float32([INITIAL[4]]))


def test_rows_of_other_programs_are_read(data):
    assert content(checkpoint.load_npz(data / "rows.npz")) == expected(KEYS)
    assert content(checkpoint.load_parquet(data / "rows.parquet").read()) == expected(KEYS)
    found = checkpoint.load_raw(data / "raw", 2).read()
    values = {key: row for key, (row, _, _) in expected(KEYS, 2).items()}
    assert {key: row for key, (row, _, _) in content(found).items()} == values


def test_a_chain_has_the_rows_of_its_base_and_its_delta(data):
    base, chain = (
        load(data / "chain" / "model") for load in (checkpoint.load, checkpoint.load_chain)
    )
    trained = {
        key: ([*np.subtract(INITIAL[key], 0.5, dtype=np.float32).tolist(), 4.0, 4.0], 2)
        for key in INITIAL
    }
    counted = [found.tables["counted"].read() for found in (base, chain)]
    assert content(counted[0]) == {1: (*trained[1], 1), 2: (*trained[2], 1)}
    assert content(counted[1]) == {1: (*trained[1], 1), 4: (*trained[4], 3)}
    assert [rows.counted_keys.tolist() for rows in counted] == [[3], [3, 5]]
    assert [len(part.linked) for part in base.tables["linked"].parts] == [1]
    linked = chain.tables["linked"].read()
    i, j = np.ogrid[:66, :116]
    np.testing.assert_array_equal(linked.keys, 2**63 + np.arange(66, dtype=np.uint64))
    np.testing.assert_array_equal(linked.data, i + j / 128)


def test_a_frozen_checkpoint_has_keys_values_and_initial_values(data):
    table = checkpoint.load(data / "frozen" / "model").tables["ev"]
    rows = table.read()
    assert (table.frozen, table.dtype, table.key_dtype) == (True, "bfloat16", "uint32")
    assert rows.keys.tolist() == [1, 2, 2**32 - 1]
    assert rows.data.tolist() == [[0.0, 1.0], [8.0, 9.0], [16.0, 17.0]]
    assert table.matrix().tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_a_kept_variable_stays_where_it_is_when_its_checkpoint_is_restored(data):
    os.makedirs(data / "rows" / "ev")
    shutil.move(data / "variable" / "instance-1-1", data / "rows" / "ev")
    with tf.Graph().as_default(), v1.Session() as session:
        storage = tf_multitier.StorageOption("SSDHASH", str(data / "rows"), keep=True)
        option = tf_multitier.EmbeddingVariableOption(storage_option=storage)
        ev = tf_multitier.get_embedding_variable("ev", 2, ev_option=option)
        v1.train.Saver().restore(session, str(data / "variable" / "model"))
        found = session.run(tf.nn.embedding_lookup(ev, tf.constant([1, 2, 3], tf.int64)))
        assert found.tolist() == [[1.0, 2.0], [3.0, 4.0], [0.5, 0.5]]
        assert os.listdir(data / "rows" / "ev") == ["instance-1-1"]


@needs_eager
def test_a_saved_model_serves(data):
    model = tf.saved_model.load(str(data / "saved_model"))
    found = model.signatures["serving_default"](tf.constant([1, 2, 4], tf.int64))["output_0"]
    np.testing.assert_array_equal(found, np.float32([[1.0, 2.0], [3.0, 4.0], INITIAL[4]]))


@needs_eager
@pytest.mark.parametrize("archive", ["model.keras", "model.weights.h5"])
def test_an_archive_of_keras_loads_with_its_rows_and_optimizer(data, archive):
    if archive == "model.keras":
        model = keras.saving.load_model(data / "keras" / archive)
    else:
        model = stored_files.keras_model()
        model.load_weights(data / "keras" / archive)
    found = model(np.array([[1], [2], [3]]))[:, 0]
    assert found.numpy().tolist() == [[1.0, 2.0], [3.0, 4.0], [0.5, 0.5]]
    optimizer = model.get_layer("rows").row_optimizer_0
    assert (int(optimizer.iterations), float(optimizer.learning_rate)) == (1, 0.125)


@needs_eager
def test_an_archive_of_keras_of_another_version_is_refused_with_the_cure(data):
    path = data / "keras" / "model.weights.h5"
    with h5py.File(path, "r+") as weights:
        [group] = [g for g in weights["layers"].values() if "tables" in g["vars"]]
        tables = np.frombuffer(bytes(group["vars/tables"][:]).replace(b": 1", b": 2"), np.uint8)
        checksums = json.loads(bytes(group["vars/checksums"][:]))
        checksums["tables"] = zlib.crc32(tables)
        for name, array in [("tables", tables), ("checksums", json.dumps(checksums).encode())]:
            del group[f"vars/{name}"]
            group[f"vars/{name}"] = np.frombuffer(array, np.uint8)
    said = "expected an archive of format version 1, found 2: use the release that wrote it"
    with pytest.raises(ValueError, match=said):
        stored_files.keras_model().load_weights(path)


def part_files(folder):
    """The contents of the files with random names."""
    contents = []
    for path in glob.glob(f"{folder}/**/*.data-[a-z]*", recursive=True):
        with open(path, "rb") as file:
            contents.append(file.read())
    return sorted(contents)


def test_part_files_are_written_as_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_files.write_variable()
    stored_files.write_frozen()
    for folder in ("variable", "frozen"):
        stored = part_files(os.path.join(stored_files.DATA, folder))
        assert part_files(folder) == stored and len(stored) == 1
