"""A restore of several tables and dense variables happens wholly or not at all: Savers, tf.train.Checkpoint, archives of Keras."""

import glob
import os
import shutil
import tempfile
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from worlds import needs_eager
from worlds import same_bits

v1 = tf.compat.v1


def flip(path, at=0.5):
    """Changes one bit of a file."""
    with open(path, "r+b") as file:
        data = file.read()
        place = int(len(data) * at)
        file.seek(place)
        file.write(bytes([data[place] ^ 4]))


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


FILES = {"flip": flip, "cut": cut, "remove": os.remove}


def part_file(prefix, name):
    """The file with the rows of a variable in a checkpoint."""
    return checkpoint.load(prefix).tables[name].parts[0].path


# ---- v1 Savers


def of_v1(session, build):
    """{name: value} of what `build` made."""
    values = [v.export() if isinstance(v, TABLES) else v.read_value() for v in build]
    return session.run(values)


TABLES = (tf_multitier.EmbeddingVariable, tf_multitier.PartitionedEmbeddingVariable)


def build_v1():
    tables = [
        tf_multitier.get_embedding_variable(
            name, 4, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None
        )
        for name, parts in (("a", 1), ("b", 2), ("c", 1))
    ]
    dense = v1.get_variable("dense", [3], use_resource=True)
    loss = sum(tf.reduce_sum(tf.nn.embedding_lookup(t, [1, 2, 3]) ** 2) for t in tables)
    step = v1.train.AdagradOptimizer(0.5).minimize(loss + tf.reduce_sum(dense**2))
    return [*tables, dense], step


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("damage", FILES)
@pytest.mark.parametrize("sequentially", [False, True])
def test_a_saver_that_fails_changes_no_variable(tmp_path, damage, is_fresh, sequentially):
    with tf.Graph().as_default(), v1.Session() as session:
        variables, step = build_v1()
        saver = v1.train.Saver(restore_sequentially=sequentially)
        session.run(v1.global_variables_initializer())
        session.run(step)
        prefix = saver.save(session, str(tmp_path / "ck"))
        if is_fresh:
            session.run(v1.global_variables_initializer())
        else:
            session.run(step)
        before = of_v1(session, variables)
        damaged = part_file(prefix, "c")
        shutil.copy(damaged, tmp_path / "whole")
        FILES[damage](damaged)
        for _ in range(2):
            with pytest.raises(tf.errors.OpError, match=os.path.basename(damaged)):
                saver.restore(session, prefix)
            same_bits(of_v1(session, variables), before)
        shutil.copy(tmp_path / "whole", damaged)
        flip(f"{prefix}.data-00000-of-00001", 0.02)  # the dense variable, which comes first
        with pytest.raises(tf.errors.DataLossError):
            saver.restore(session, prefix)
        same_bits(of_v1(session, variables), before)


# ---- tf.train.Checkpoint


def module(seed=0, width=3):
    made = tf.Module()
    made.dense = tf.Variable(np.full(width, seed, np.float32), name="dense")
    made.a, made.b, made.c = (
        tf_multitier.get_embedding_variable(
            name, 4, partitioner=v1.fixed_size_partitioner(parts) if parts > 1 else None
        )
        for name, parts in (("a", 1), ("b", 2), ("c", 1))
    )
    made.later = tf.Variable([float(seed)], name="later")
    return made


def fill(made, seed):
    for table in (made.a, made.b, made.c):
        table.upsert([1, 2, 3], np.full([3, 4], seed, np.float32))
    return made


def content(made):
    dense = [made.dense.numpy(), made.later.numpy()]
    return [*dense, *(table.export() for table in (made.a, made.b, made.c))]


def written(path):
    """A checkpoint without objects."""
    with checkpoint.Writer(path) as writer:
        for name, parts in (("a", 1), ("b", 3), ("c", 1)):
            rows = tf_multitier.engine.Rows(
                [("value", 4, 0.0)], *(np.arange(3),) * 3, np.ones([3, 4], np.float32)
            )
            writer.add_table(name, rows, parts)
        writer.add_tensor("dense", np.ones(3, np.float32))
        writer.add_tensor("later", np.ones(1, np.float32))
    return path


CHECKPOINTS = {
    "objects": lambda folder: tf.train.Checkpoint(fill(module(1), 1.0)).write(folder / "ck"),
    "names": lambda folder: written(str(folder / "ck")),
}


@needs_eager
@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("damage", FILES)
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_that_fails_changes_no_variable(tmp_path, kind, damage, is_fresh):
    prefix = CHECKPOINTS[kind](tmp_path)
    made = module(7) if is_fresh else fill(module(7), 7.0)
    before = content(made)
    damaged = part_file(prefix, "c")
    FILES[damage](damaged)
    with pytest.raises(tf.errors.OpError, match=os.path.basename(damaged)):
        tf.train.Checkpoint(made).restore(prefix)
    same_bits(content(made), before)


@needs_eager
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_dense_variable_that_does_not_fit_leaves_the_others(tmp_path, kind):
    prefix = CHECKPOINTS[kind](tmp_path)
    made = fill(module(7, width=5), 7.0)
    before = content(made)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.train.Checkpoint(made).restore(prefix)
    same_bits(content(made), before)


# ---- Keras

IDS = np.arange(60).reshape(20, 3)
LABELS = np.ones([20, 1], np.float32)


def model(seed, optimizer=None):
    kt = pytest.importorskip("tf_multitier.keras")
    keras.utils.set_random_seed(seed)
    ids, numbers = keras.Input((3,), dtype="int64"), keras.Input((2,))
    scaled = keras.layers.Normalization(name="scaled")
    scaled.adapt(np.random.default_rng(seed).normal(size=(50, 2)))
    own = {"optimizer": tf_multitier.optimizers.Adam(0.1)} if optimizer is None else {}
    first = kt.Embedding(4, combiner="sum", name="first", **own)(ids)
    hidden = keras.layers.Dense(4, name="hidden")(first)
    second = kt.GroupEmbedding(
        {name: {"output_dim": 8, "partitions": parts} for name, parts in (("x", 1), ("y", 2))},
        concat=True,
        name="second",
        **own,
    )({"x": ids, "y": ids})
    merged = keras.layers.Concatenate()([hidden, second, scaled(numbers)])
    made = keras.Model([ids, numbers], keras.layers.Dense(1, name="last")(merged))
    made.compile(kt.with_rows(optimizer) if optimizer else "adam", "mse", run_eagerly=True)
    made.fit([IDS + seed, np.ones([20, 2])], LABELS, epochs=seed, verbose=0)
    return made


@pytest.fixture(scope="module")
def saved():
    return model(1)


@pytest.fixture(scope="module")
def other():
    """A model that no test changes: each that damages something asserts it."""
    return model(2)


@pytest.fixture(scope="module", params=["m.keras", "m.weights.h5"])
def archive(saved, request, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("archive") / request.param)
    (saved.save if request.param == "m.keras" else saved.save_weights)(path)
    return path


def whole(made):
    """Every bit of a model: dense weights, states of optimizers, tables, and what it predicts."""
    found = [made([IDS, np.ones([20, 2])]).numpy()]
    found += [v.numpy() for v in made.variables if not hasattr(v, "embedding_variable")]
    found += [v.numpy() for v in made.optimizer.variables]
    optimizers = [getattr(made.optimizer, "row_optimizer", None)]
    for name in ("first", "second"):
        layer = made.get_layer(name)
        optimizers += [getattr(layer, f"row_optimizer_{i}") for i in range(len(layer.tables))]
        for table in layer.tables:
            rows = table.export_rows()
            found += [rows.keys, rows.rows, rows.frequencies, rows.versions]
    return found + [v.numpy() for one in optimizers if one for v in one.named_variables().values()]


def datasets(weights):
    """{path: dataset} of an HDF5 file."""
    found = {}
    weights.visititems(
        lambda name, item: found.update({name: item} if isinstance(item, h5py.Dataset) else {})
    )
    return found


def of_last(weights, end):
    """The path of the last dataset whose name ends so, in the order in which Keras loads: that of the second embedding layer."""
    return [name for name in sorted(datasets(weights)) if name.endswith(end)][-1]


def changed(end, at=0.5):
    """Flips a bit of a dataset of our layers."""

    def change(weights):
        data = datasets(weights)[of_last(weights, end)]
        array = np.array(data)
        flat = array.reshape(-1).view(np.uint8)
        flat[int(len(flat) * at)] ^= 4
        data[...] = array

    return change


def replaced(end, make):
    def change(weights):
        path = of_last(weights, end)
        array = make(np.array(weights[path]))
        del weights[path]
        if array is not None:
            weights[path] = array

    return change


def swapped(weights):
    """Rows of two tables."""
    paths = [name for name in datasets(weights) if "rows_" in name]
    values = [np.array(weights[path]) for path in paths[:2]]
    for path, value in zip(paths, reversed(values)):
        del weights[path]
        weights[path] = value


def kernel_of_last(weights):
    """Another shape of the last dense layer, which Keras loads after the others."""
    path = next(name for name in datasets(weights) if datasets(weights)[name].shape == (22, 1))
    del weights[path]
    weights[path] = np.zeros([21, 1], np.float32)


MEMBERS = {
    "bit of rows": changed("rows_2"),
    "bit of a manifest": changed("manifest_2"),
    "digit of a manifest": replaced("manifest_2", lambda a: a ^ (a == ord("0")).astype(np.uint8)),
    "bit of a state": changed("state_2_0"),
    "shape of a state": replaced("state_2_0", lambda a: np.zeros(3, a.dtype)),
    "bit of checksums": changed("checksums"),
    "rows are cut": replaced("rows_2", lambda a: a[: len(a) // 2]),
    "no rows": replaced("rows_2", lambda a: None),
    "no manifest": replaced("manifest_2", lambda a: None),
    "no tables": replaced("tables", lambda a: None),
    "no checksums": replaced("checksums", lambda a: None),
    "rows are swapped": swapped,
    "shape of a dense weight": kernel_of_last,
}


def save_folder(made, path):
    keras.src.saving.saving_lib.save_model(made, path, zipped=False)


def edit_archive(path, change):
    """Changes the weights of a .keras file, whose own checksums are then right."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
            names = archive.namelist()
        with h5py.File(os.path.join(folder, "model.weights.h5"), "r+") as weights:
            change(weights)
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.write(os.path.join(folder, name), name)


def edit_weights(path, change):
    with h5py.File(path, "r+") as weights:
        change(weights)


@needs_eager
@pytest.mark.parametrize("member", MEMBERS)
def test_a_damaged_archive_changes_nothing_of_a_model(tmp_path, archive, other, member):
    path = shutil.copy(archive, tmp_path)
    (edit_archive if path.endswith(".keras") else edit_weights)(path, MEMBERS[member])
    before = whole(other)
    with pytest.raises(ValueError, match="objects could not be loaded"):
        other.load_weights(path)
    same_bits(whole(other), before)
    if path.endswith(".keras"):
        with pytest.raises(ValueError, match="objects could not be loaded"):
            keras.models.load_model(path)


@needs_eager
def test_a_whole_archive_is_loaded(archive, saved):
    made = model(3)
    made.load_weights(archive)
    same_bits(whole(made), whole(saved))


FOUND = (ValueError, OSError, KeyError, RuntimeError, zipfile.BadZipFile)


@needs_eager
def test_a_flipped_bit_anywhere_in_an_archive_is_found(tmp_path, saved, other):
    """A .keras file has a checksum of its weights, dense ones too."""
    path = str(tmp_path / "m.keras")
    saved.save(path)
    before = whole(other)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("model.weights.h5")
    for at in np.linspace(info.header_offset + 60, info.header_offset + info.file_size, 20):
        shutil.copy(path, tmp_path / "damaged.keras")
        flip(tmp_path / "damaged.keras", at / os.path.getsize(path))
        with pytest.raises(FOUND):
            other.load_weights(tmp_path / "damaged.keras")
        same_bits(whole(other), before)
        with pytest.raises(FOUND):
            keras.models.load_model(tmp_path / "damaged.keras")


@needs_eager
@pytest.mark.parametrize("damage", FILES)
@pytest.mark.parametrize("kind", ["m.keras", "m.weights.h5", "m.weights.json", "folder"])
def test_a_damaged_part_file_changes_nothing_of_a_model(
    tmp_path, saved, other, kind, damage, monkeypatch
):
    monkeypatch.setattr("tf_multitier.keras.part_files.MAX_BYTES_IN_ARCHIVE", 3000)
    path = str(tmp_path / kind)
    if kind == "folder":
        save_folder(saved, path)
    elif kind == "m.weights.json":
        saved.save_weights(path, max_shard_size=1e-5)
    else:
        (saved.save if kind == "m.keras" else saved.save_weights)(path)
    before = whole(other)
    FILES[damage](glob.glob(glob.escape(str(tmp_path)) + "/**/*.data-*", recursive=True)[-1])
    with pytest.raises(ValueError, match="objects could not be loaded"):
        if kind == "folder":
            keras.models.load_model(path)
        else:
            other.load_weights(path)
    same_bits(whole(other), before)


def rows_of(made):
    return [t.export() for name in ("first", "second") for t in made.get_layer(name).tables]


@needs_eager
def test_what_a_load_may_skip_is_skipped_alone(tmp_path, saved):
    other, path = model(2, "sgd"), str(tmp_path / "m.weights.h5")
    saved.save_weights(path)
    edit_weights(path, MEMBERS["bit of rows"])
    before = rows_of(other)
    with pytest.warns(UserWarning, match="could not be loaded"):
        other.load_weights(path, skip_mismatch=True)
    same_bits(rows_of(other)[1:], before[1:])  # the group
    same_bits(rows_of(other)[:1], rows_of(saved)[:1])
    same_bits(other.get_layer("hidden").get_weights(), saved.get_layer("hidden").get_weights())
