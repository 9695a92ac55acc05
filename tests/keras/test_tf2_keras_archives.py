"""Rows that are too large for an archive of Keras: part files next to it."""

import io
import os
import signal
import sys

import forks
import h5py
import keras
import numpy as np
import pytest
from paths import environment
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
part_files = pytest.importorskip("tf_multitier.keras.part_files")

RNG = np.random.default_rng(0)
X = RNG.integers(0, 200, (128, 3))
Y = RNG.normal(size=(128, 1)).astype("float32")


@pytest.fixture(autouse=True)
def small_archives(monkeypatch):
    """Room for the rows of the layer "small", and for nothing more."""
    monkeypatch.setattr(part_files, "MAX_BYTES_IN_ARCHIVE", 8000)


def model(**kwargs):
    keras.utils.set_random_seed(7)
    ids = keras.Input((3,), dtype="int64")
    small = kt.Embedding(1, combiner="sum", name="small")(ids % 50)
    big = kt.Embedding(16, combiner="sum", name="big", **kwargs)(ids)
    made = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()([small, big])))
    made.compile(kt.with_rows(keras.optimizers.Adagrad(0.1)), "mse")
    return made


def fit(made, **kwargs):
    made.fit(X, Y, batch_size=32, shuffle=False, verbose=0, **kwargs)
    return made


def rows(made):
    return [table.export() for name in ("small", "big") for table in made.get_layer(name).tables]


def parts(folder):
    return sorted(name for name in os.listdir(folder) if "-of-" in name)


def save_folder(made, path):
    keras.src.saving.saving_lib.save_model(made, path, zipped=False)


def loaded_weights(path):
    made = model()
    made.optimizer.build(made.trainable_variables)  # else Keras loads no state of it
    made.load_weights(path)
    return made


WAYS = {
    "m.keras": (lambda made, path: made.save(path), keras.models.load_model),
    "weights of m.keras": (lambda made, path: made.save(path), loaded_weights),
    "m.weights.h5": (lambda made, path: made.save_weights(path), loaded_weights),
    "m.weights.json": (
        lambda made, path: made.save_weights(path, max_shard_size=1e-5),
        loaded_weights,
    ),
    "folder": (save_folder, keras.models.load_model),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_above_the_limit_are_in_a_part_file_and_come_back(tmp_path, way):
    save, load = WAYS[way]
    saved, path = fit(model()), str(tmp_path / way.rpartition(" ")[2])
    save(saved, path)
    folder = path if way == "folder" else tmp_path
    assert len(parts(folder)) == 1
    other = load(path)
    same_bits(rows(other), rows(saved))
    fit(saved), fit(other)
    same_bits(rows(other), rows(saved))
    if way != "folder":  # Keras writes no folder twice
        save(saved, path)
        assert len(parts(folder)) == 1  # that of the first save was removed


def test_parts_of_a_table_are_in_files_of_their_own(tmp_path):
    saved, other = fit(model(partitions=3)), model(partitions=3)
    saved.save_weights(tmp_path / "m.weights.h5")
    assert 2 <= len(parts(tmp_path)) <= 3
    other.load_weights(tmp_path / "m.weights.h5")
    same_bits(rows(other), rows(saved))


def test_an_archive_moves_with_its_part_files(tmp_path):
    saved = fit(model())
    saved.save(tmp_path / "m.keras")
    other = tmp_path / "other"
    other.mkdir()
    for name in os.listdir(tmp_path):
        if name != "other":
            os.rename(tmp_path / name, other / name)
    os.rename(other / "m.keras", other / "renamed.keras")
    same_bits(rows(keras.models.load_model(other / "renamed.keras")), rows(saved))


DAMAGE = {
    "missing": (lambda path: os.remove(path), "expected part file '.*' of .* bytes, found no file"),
    "cut": (
        lambda path: os.truncate(path, 100),
        "expected part file '.*' of .* bytes, found 100 bytes",
    ),
    "foreign": (
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        "layer 'big': rows in '.*: .*offset 0",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_a_damaged_part_file_is_one_error_and_changes_no_row(tmp_path, name, damage):
    saved, other = fit(model()), fit(fit(model()))
    (saved.save if name == "m.keras" else saved.save_weights)(tmp_path / name)
    change, message = DAMAGE[damage]
    change(tmp_path / parts(tmp_path)[0])
    before = rows(other)
    with pytest.raises(ValueError, match=message):
        other.load_weights(tmp_path / name)
    same_bits(rows(other), before)  # also those of the layer whose rows are in the archive


def test_an_archive_that_is_no_local_file_has_no_part_files():
    saved, stream = fit(model()), io.BytesIO()
    with pytest.raises(ValueError, match="'big': .* need a file next to the archive.*local path"):
        keras.src.saving.saving_lib.save_model(saved, stream)


def test_a_copy_of_an_archive_keeps_its_part_files(tmp_path):
    """As BackupAndRestore(double_checkpoint=True) copies: in one folder, then a save to the first path."""
    saved = fit(model())
    for name, save in (("m.keras", saved.save), ("m.weights.h5", saved.save_weights)):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        save(folder / name)
        (folder / f"copy_of_{name}").write_bytes((folder / name).read_bytes())
        before = rows(saved)
        fit(saved)
        for _ in range(2):
            save(folder / name)
        assert len(parts(folder)) == 2
        same_bits(rows(loaded_weights(folder / f"copy_of_{name}")), before)
        same_bits(rows(loaded_weights(folder / name)), rows(saved))


def test_a_save_removes_the_part_files_before_it(tmp_path):
    saved = fit(model())
    for _ in range(2):
        saved.save(tmp_path / "m.keras")
    assert len(parts(tmp_path)) == 1


def checkpoint_of_the_name(folder):
    (folder / "m.keras.index").touch()


def unreadable_weights(folder):
    (folder / "copy.weights.h5").write_bytes(b"\x89HDF, and no more")


def unreadable_archive(folder):
    (folder / "copy.keras").write_bytes(b"PK\x03\x04, and no more")


def foreign_weights(folder):
    with h5py.File(folder / "other.h5", "w") as file:
        file["file_0"] = np.frombuffer(b"no JSON", np.uint8)


@pytest.mark.parametrize(
    "reason", [checkpoint_of_the_name, unreadable_weights, unreadable_archive, foreign_weights]
)
def test_part_files_that_may_be_in_use_stay(tmp_path, reason):
    saved = fit(model())
    saved.save(tmp_path / "m.keras")
    reason(tmp_path)
    [before] = parts(tmp_path)
    saved.save(tmp_path / "m.keras")
    assert len(parts(tmp_path)) == 2 and before in parts(tmp_path)


def test_bars_show_the_progress_of_loads(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    saved = fit(model())
    saved.save_weights(tmp_path / "m.weights.h5")
    model().load_weights(tmp_path / "m.weights.h5")
    shown = screen.getvalue()
    assert "restore: 100%" in shown


KILLED = """
import os, signal
import test_tf2_keras_archives as t
t.part_files.MAX_BYTES_IN_ARCHIVE = 8000
class Killer(t.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            os.kill(os.getpid(), signal.SIGKILL)
t.fit(t.model(), epochs=5, callbacks=[t.backup({folder!r}), Killer()])
"""


def backup(folder):
    return keras.callbacks.BackupAndRestore(folder, double_checkpoint=True)


@pytest.mark.parametrize("is_last_cut", [False, True])
def test_training_that_was_killed_goes_on_from_its_backup_with_the_same_bits(tmp_path, is_last_cut):
    folder = str(tmp_path / "backup")
    run = forks.run(["-c", KILLED.format(folder=folder)], env=environment())
    assert run.returncode == -signal.SIGKILL, run.stderr
    if is_last_cut:  # as by a kill while it was saved
        os.truncate(os.path.join(folder, "latest.weights.h5"), 100)
    resumed = fit(model(), epochs=5, callbacks=[backup(folder)])
    same_bits(rows(resumed), rows(fit(model(), epochs=5)))
    assert not os.path.exists(folder)


def test_model_checkpoints_have_their_part_files(tmp_path):
    saved = model()
    path = str(tmp_path / "{epoch}.keras")
    fit(saved, epochs=2, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    assert [name[:8] for name in parts(tmp_path)] == ["1.keras.", "2.keras."]
    same_bits(rows(keras.models.load_model(tmp_path / "2.keras")), rows(saved))
