"""What users change after a layer is built: trainable, optimizers, learning rates, weights of other models."""

import copy
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from keras_util import tables
from keras_util import X
from keras_util import Y
from worlds import needs_eager
from worlds import same_bits

pytestmark = needs_eager
kt = pytest.importorskip("tf_multitier.keras")
optimizers = tf_multitier.optimizers


def small_model(row_optimizer=None, frozen=False, partitions=1):
    """A model like a stock one: an embedding layer, which may be frozen before it is built, and a dense layer."""
    ids = keras.Input((3,), dtype="int64")
    layer = kt.Embedding(
        4, "ones", combiner="sum", optimizer=row_optimizer, partitions=partitions, name="emb"
    )
    layer.trainable = not frozen
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


def train(trained, optimizer="sgd"):
    trained.compile(optimizer, "mse")
    trained.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
    return trained


def rows(trained):
    """What export() returns for each table, by key."""
    found = []
    for table in trained.get_layer("emb").tables:
        columns = [np.asarray(column) for column in table.export()]
        found.append([column[np.argsort(columns[0])] for column in columns])
    return found


# ---- trainable


@pytest.mark.parametrize("with_model", [False, True])
@pytest.mark.parametrize("thaw", ["layer", "model", "loaded"])
def test_a_layer_that_was_built_frozen_trains_once_it_is_trainable(tmp_path, thaw, with_model):
    make = lambda frozen: small_model(None if with_model else optimizers.SGD(0.1), frozen)
    optimizer = lambda: kt.with_rows(keras.optimizers.SGD(0.1)) if with_model else "sgd"
    frozen = make(True)
    assert frozen.get_layer("emb").trainable_weights == []
    train(frozen, optimizer())
    assert rows(frozen)[0][0].size == 0
    if thaw == "loaded":
        frozen.save(tmp_path / "m.keras")
        frozen = keras.models.load_model(tmp_path / "m.keras")
    if thaw == "model":
        frozen.trainable = False  # Keras ignores a value that the model has already
        frozen.trainable = True
    else:
        frozen.get_layer("emb").trainable = True
    assert len(frozen.get_layer("emb").trainable_weights) == 1
    stock = make(False)
    stock.layers[-1].set_weights(frozen.layers[-1].get_weights())
    same_bits(rows(train(frozen, optimizer())), rows(train(stock, optimizer())))
    assert rows(frozen)[0][0].size == np.unique(X).size


def test_a_layer_that_is_frozen_again_stays_as_it_is():
    trained = train(small_model(optimizers.SGD(0.1)))
    before = rows(trained)[0][:2]
    trained.get_layer("emb").trainable = False
    train(trained)
    same_bits(rows(trained)[0][:2], before)


# ---- the optimizer of a layer


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.0, 10, 0.5)


@pytest.mark.parametrize("before, after", [(0.5, 0.0), (0.5, SCHEDULE), (lambda: 0.5, 0.0)])
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_learning_rate_of_a_built_layer_holds(before, after, partitions):
    trained = small_model(optimizers.SGD(before), partitions=partitions)
    train(trained)
    moved = rows(trained)
    assert any(np.any(part[1] != 1) for part in moved)
    trained.get_layer("emb").optimizer.learning_rate = after
    train(trained)
    same_bits([part[:2] for part in rows(trained)], [part[:2] for part in moved])


def test_another_optimizer_of_a_built_layer_trains_it():
    trained = train(small_model(optimizers.SGD(0.5)))
    layer = trained.get_layer("emb")
    moved = rows(trained)[0][1]
    layer.optimizer = optimizers.Adagrad(0.0)
    train(trained)
    same_bits(rows(trained)[0][1], moved)
    assert layer.weights[0].row_optimizer is layer.row_optimizer_0
    assert int(layer.row_optimizer_0.iterations) == 4
    layer.optimizer = None
    with pytest.raises(ValueError, match="found SGD: give the layer"):
        train(trained)
    train(trained, kt.with_rows(keras.optimizers.SGD(0.5)))
    assert np.any(rows(trained)[0][1] != moved)
    with pytest.raises(TypeError, match="optimizer: expected one of tf_multitier.optimizers"):
        layer.optimizer = keras.optimizers.Adam()


def test_slots_stay_when_a_model_is_compiled_again():
    def slots(trained):
        [table] = tables(trained)
        found = table.export_rows()
        return found.rows.numpy()[np.argsort(found.keys.numpy())][:, 4:]

    trained = train(small_model(), kt.with_rows(keras.optimizers.Adagrad(0.1)))
    first = slots(trained)
    second = kt.with_rows(keras.optimizers.Adagrad(0.1))
    with pytest.warns(UserWarning, match="begin anew .*, found those of another optimizer.*name="):
        train(trained, second)
    assert np.all(slots(trained) >= first) and np.any(slots(trained) > first)
    assert int(second.row_optimizer.iterations) == 4


def test_optimizers_of_two_names_have_slots_of_their_own():
    def rows(layer, with_rows):
        models = [keras.Sequential([keras.Input((2,), dtype="int64"), layer]) for _ in "ab"]
        for model, name in zip(models, ("first", "second")):
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9, name=name)
            model.compile(with_rows(optimizer), "mse")
        for model in models * 2:
            model.fit(np.arange(4).reshape(2, 2), np.ones([2, 2, 3]), epochs=3, verbose=0)
        return layer(np.arange(4))

    values = keras.initializers.Constant(np.arange(12).reshape(4, 3) / 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours = rows(kt.Embedding(3, values), kt.with_rows)
    stock = rows(keras.layers.Embedding(4, 3, values), lambda made: made)
    np.testing.assert_allclose(ours, stock, rtol=1e-3, atol=1e-4)


# ---- weights of a model with another optimizer


WAYS = ["archive", "weights file", "set_weights"]


def transfer(way, source, target, path):
    if way == "set_weights":
        target.set_weights(source.get_weights())
        return
    name = path / ("m.keras" if way == "archive" else "m.weights.h5")
    (source.save if way == "archive" else source.save_weights)(name)
    target.load_weights(name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["Momentum", "Adam", "Adagrad"])
def test_state_goes_into_an_optimizer_of_the_same_class_only(tmp_path, way, kind):
    source = train(small_model(optimizers.Adagrad(0.5)))
    target = small_model(getattr(optimizers, kind)(0.25))
    state = lambda: {
        name: float(v)
        for name, v in target.get_layer("emb").row_optimizer_0.named_variables().items()
    }
    before = state()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        transfer(way, source, target, tmp_path)
    found = [w for w in said if f"the state of {kind}, found that of Adagrad" in str(w.message)]
    same_bits(rows(target), rows(source))
    if kind == "Adagrad":
        assert not found
        assert state() == {"iterations": 4.0, "learning_rate": 0.5, "rate_is_given": 1.0}
    else:
        assert len(found) == 1
        assert state() == before


@pytest.mark.parametrize("way", WAYS)
def test_a_schedule_stays_where_the_weights_have_a_number(tmp_path, way):
    source = train(small_model(optimizers.Momentum(0.5, 0.75)))
    target = small_model(optimizers.Momentum(SCHEDULE, 0.25))
    transfer(way, source, target, tmp_path)
    optimizer = target.get_layer("emb").row_optimizer_0
    assert int(optimizer.iterations) == 4 and float(optimizer.hyperparameters["momentum"]) == 0.75
    assert optimizer.learning_rate is SCHEDULE


def test_the_state_of_with_rows_goes_into_the_same_rule_only(tmp_path):
    source = train(small_model(), kt.with_rows(keras.optimizers.Adam(0.5)))
    source.save_weights(tmp_path / "m.weights.h5")
    for kind, expected in (("Adam", 4), ("Adadelta", 0)):
        optimizer = kt.with_rows(getattr(keras.optimizers, kind)(0.5))
        target = small_model()
        target.compile(optimizer, "mse")
        optimizer.build(target.trainable_variables)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            target.load_weights(tmp_path / "m.weights.h5")
        assert int(optimizer.row_optimizer.iterations) == expected
        found = [w for w in said if "the state of Adadelta, found that of Adam" in str(w.message)]
        assert len(found) == (kind == "Adadelta")
        same_bits(rows(target), rows(source))


# ---- layers that are not built


class Branches(keras.Model):
    """A model that calls only one of its embedding layers."""

    def __init__(self):
        super().__init__()
        self.used = kt.Embedding(4, combiner="sum")
        self.unused = kt.Embedding(4, combiner="sum")
        self.unused_group = kt.GroupEmbedding({"a": {"output_dim": 4}})

    def call(self, ids):
        return self.used(ids)


def test_weights_of_a_model_with_a_layer_that_was_never_called_are_loaded(tmp_path):
    source, target = Branches(), Branches()
    expected = source(X[:4])
    target(X[:4])
    source.save_weights(tmp_path / "m.weights.h5")
    target.load_weights(tmp_path / "m.weights.h5")
    same_bits(target(X[:4]), expected)
    source.unused(X[:4])
    source.save_weights(tmp_path / "m.weights.h5")
    target.unused_group({"a": X[:4]})
    with pytest.raises(ValueError, match="expected rows of embedding variables in the archive"):
        target.load_weights(tmp_path / "m.weights.h5")


def test_a_layer_that_is_not_built_is_copied():
    layer = kt.Embedding(4, "ones", optimizer=optimizers.SGD(0.1))
    assert copy.deepcopy(layer)(tf.constant([1])).numpy().tolist() == [[1.0] * 4]
    assert not layer.built


# ---- partitions and names


def test_clipnorm_takes_the_norm_of_all_partitions():
    def moved(partitions):
        trained = small_model(partitions=partitions)
        trained.layers[-1].set_weights([np.ones([4, 1]), np.zeros([1])])
        optimizer = kt.with_rows(keras.optimizers.SGD(1.0, clipnorm=1e-3))
        trained.compile(optimizer, "mse")
        trained.fit(X[:32], Y[:32], batch_size=32, verbose=0)
        [layer] = [one for one in trained.layers if isinstance(one, kt.Embedding)]
        return np.asarray(tf.nn.embedding_lookup(layer.embeddings, np.unique(X))) - 1

    whole = moved(1)
    np.testing.assert_allclose(np.linalg.norm(whole), 1e-3, rtol=1e-3)
    np.testing.assert_allclose(moved(3), whole, atol=2e-7)


def test_statistics_of_tables_of_one_name_are_all_written(tmp_path):
    ids = keras.Input((3,), dtype="int64")
    inner = [keras.Model(ids, kt.Embedding(4, combiner="sum", name="emb")(ids)) for _ in range(2)]
    trained = keras.Model(ids, keras.layers.Dense(1)(inner[0](ids) + inner[1](ids)))
    trained.compile(kt.with_rows("sgd"), "mse")
    trained.fit(X, Y, verbose=0, callbacks=[kt.StatisticsCallback(tmp_path)])
    found = {}
    [path] = tmp_path.iterdir()
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        found.update({v.tag: v.simple_value for v in event.summary.value})
    count = np.unique(X).size
    assert found["rows/emb/embeddings"] == found["rows/emb/embeddings_1"] == count
    assert found["rows/all"] == 2 * count
