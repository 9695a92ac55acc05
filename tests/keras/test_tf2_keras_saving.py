"""Keras models with embedding layers: archives, weights, checkpoints, clones and exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from keras_util import fit
from keras_util import model
from keras_util import predicted
from keras_util import tables
from keras_util import X
from keras_util import Y
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers


def option(path):
    storage = tf_multitier.StorageOption(
        storage_type=tf_multitier.StorageType.DRAM_SSDHASH,
        storage_path=str(path),
        storage_size=[256],
    )
    return tf_multitier.EmbeddingVariableOption(
        storage_option=storage, filter_option=tf_multitier.CounterFilter(2)
    )


@pytest.mark.parametrize("with_model", [False, True])
def test_a_saved_model_goes_on_with_the_same_bits(tmp_path, with_model):
    saved = model(None if with_model else optimizers.Adam(0.01), ev_option=option(tmp_path))
    fit(saved, kt.with_rows("adam") if with_model else "adam")
    saved.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    same_bits(tables(loaded)[0].export(), tables(saved)[0].export())
    assert tables(loaded)[0].storage_type == "DRAM_SSDHASH"
    fit(saved, None), fit(loaded, None)
    same_bits(tables(loaded)[0].export(), tables(saved)[0].export())


def test_weights_and_checkpoints_of_keras_restore(tmp_path):
    saved = model(optimizers.Adagrad(0.1), partitions=2)
    fit(saved)
    expected = predicted(saved)
    saved.save_weights(tmp_path / "w.weights.h5")
    tf.train.Checkpoint(saved).save(tmp_path / "ck")
    for restore in (
        lambda m: m.load_weights(tmp_path / "w.weights.h5"),
        lambda m: tf.train.Checkpoint(m).restore(tf.train.latest_checkpoint(tmp_path)),
    ):
        other = model(optimizers.Adagrad(0.1), partitions=2)
        restore(other)
        same_bits(predicted(other), expected)


class Towers(keras.Model):
    """Embedding and GroupEmbedding in a subclassed model."""

    def __init__(self, optimizer, partitions):
        super().__init__()
        feature = {"output_dim": 2, "combiner": "sum", "partitions": partitions}
        self.one = kt.Embedding(**feature, optimizer=optimizer)
        self.group = kt.GroupEmbedding({"a": feature, "b": feature}, optimizer=optimizer)
        self.dense = keras.layers.Dense(1)

    def call(self, ids):
        pooled = self.group({"a": ids, "b": ids + 1})
        return self.dense(tf.concat([self.one(ids), pooled["a"], pooled["b"]], 1))

    def export_rows(self):
        return [t.export() for t in (*self.one.tables, *self.group.tables)]


@pytest.mark.parametrize("partitions, own_optimizer", [(1, True), (2, False)])
def test_training_goes_on_from_a_checkpoint_with_the_state_of_optimizers(
    tmp_path, partitions, own_optimizer
):
    def towers():
        made = Towers(optimizers.Adam(0.05) if own_optimizer else None, partitions)
        dense = keras.optimizers.Adam(0.1)
        made.compile(dense if own_optimizer else kt.with_rows(dense), "mse")
        made(X)
        return made

    def fit_once(made):
        made.fit(X, np.ones((len(X), 1)), batch_size=32, shuffle=False, verbose=0)

    saved, other = towers(), towers()
    fit_once(saved)
    path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).write(tmp_path / "ck")
    fit_once(saved)
    status = tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path)
    fit_once(other)
    status.assert_consumed()
    same_bits(other.export_rows(), saved.export_rows())


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_checkpoint_has_the_rows_of_a_group(tmp_path, partitions):
    feature = {"output_dim": 4, "partitions": partitions}

    def trained():
        group = kt.GroupEmbedding({"a": feature, "b.c": feature}, optimizer=optimizers.SGD(0.1))
        inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in ("a", "b.c")}
        made = keras.Model(inputs, keras.layers.Concatenate()(list(group(inputs).values())))
        made.compile("sgd", "mse")
        return made, group

    saved, group = trained()
    saved.fit({"a": X, "b.c": X}, np.ones((128, 8)), verbose=0)
    path = tf.train.Checkpoint(saved).write(tmp_path / "ck")
    other, restored = trained()
    tf.train.Checkpoint(other).read(path).assert_existing_objects_matched()
    same_bits([t.export() for t in restored.tables], [t.export() for t in group.tables])
    assert sum(int(t.total_count()) for t in restored.tables) == 2 * np.unique(X).size


def test_model_checkpoint_and_backup_run(tmp_path):
    saved = model(optimizers.Adagrad(0.1))
    saved.compile("adam", "mse")
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="loss"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
    ]
    saved.fit(X, Y, epochs=2, verbose=0, callbacks=callbacks)
    loaded = keras.models.load_model(tmp_path / "best.keras")
    same_bits(tables(loaded)[0].export()[0], tables(saved)[0].export()[0])


def test_a_group_is_saved_and_cloned(tmp_path):
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in "ab"}
    features = {"a": kt.Embedding(4, combiner="sum"), "b": {"output_dim": 6}}
    group = kt.GroupEmbedding(features, concat=True, optimizer=optimizers.Adam(0.1))
    saved = keras.Model(inputs, keras.layers.Dense(1)(group(inputs)))
    saved.compile("adam", "mse")
    saved.fit({"a": X, "b": X}, Y, verbose=0)
    saved.save(tmp_path / "g.keras")
    loaded = keras.models.load_model(tmp_path / "g.keras")
    same_bits(
        loaded.predict({"a": X, "b": X}, verbose=0), saved.predict({"a": X, "b": X}, verbose=0)
    )
    cloned = keras.models.clone_model(saved)
    assert cloned.predict({"a": X, "b": X}, verbose=0).shape == (128, 1)


def test_a_cloned_model_has_tables_of_its_own():
    saved = model(optimizers.Adagrad(0.1), partitions=2, mask_zero=True)
    fit(saved)
    before = [table.export() for table in tables(saved)]
    cloned = keras.models.clone_model(saved)
    assert sum(int(table.total_count()) for table in tables(cloned)) == 0
    assert cloned.get_layer("emb").get_config() == saved.get_layer("emb").get_config()
    fit(cloned)
    assert sum(int(table.total_count()) for table in tables(cloned)) == np.unique(X[X != 0]).size
    same_bits([table.export() for table in tables(saved)], before)


def test_weights_of_another_model_are_refused_before_a_row_changes(tmp_path):
    saved, other = model(optimizers.SGD(0.1)), model(optimizers.SGD(0.1), partitions=2)
    fit(saved), fit(other)
    saved.save_weights(tmp_path / "w.weights.h5")
    before = [table.export() for table in tables(other)]
    with pytest.raises(ValueError, match="expected 2 tables in the archive, found 1"):
        other.load_weights(tmp_path / "w.weights.h5")
    same_bits([table.export() for table in tables(other)], before)


def test_an_exported_model_answers_with_the_same_bits(tmp_path):
    saved = model(optimizers.Adagrad(0.1), partitions=2)
    fit(saved)
    saved.export(tmp_path / "served", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    unseen = np.concatenate([X, [[-1, 2**40, 0]]])
    expected = saved.predict(unseen, batch_size=len(unseen), verbose=0)
    same_bits(loaded.serve(tf.constant(unseen)), expected)
