"""tf_multitier.optimizers: every rule gives the bits of the v1 optimizer, and what they refuse."""

import numpy as np
import pytest
import reference_rules
import tensorflow as tf

import tf_multitier
from worlds import OPTIMIZERS
from worlds import TF2_ALONE
from worlds import WORLDS
from worlds import make_world
from worlds import needs_eager
from worlds import parts_of
from worlds import same_bits

pytestmark = needs_eager
optimizers = tf_multitier.optimizers
STORAGES = ["DRAM", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"]


def make(name="ev", dim=4, option=None, **kwargs):
    return tf_multitier.get_embedding_variable(
        name,
        dim,
        initializer=tf.random_uniform_initializer(-1, 1, seed=3),
        ev_option=option,
        **kwargs,
    )


def storage(name, path):
    sizes = {"DRAM": None, "DRAM_SSDHASH": [512], "DRAM_PMEM_LEVELDB": [512, 1024]}[name]
    option = tf_multitier.StorageOption(
        storage_type=getattr(tf_multitier.StorageType, name),
        storage_path=None if name == "DRAM" else str(path),
        storage_size=sizes,
    )
    return tf_multitier.EmbeddingVariableOption(storage_option=option)


def loss(variables, batch):
    values = tf.nn.embedding_lookup(variables[0], batch[0])
    return tf.reduce_sum((values - 0.5) ** 2) + tf.reduce_sum(values[0] ** 3)


@pytest.mark.parametrize("storage_type", STORAGES)
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_each_rule_gives_the_same_bits_in_each_world(rule, storage_type, tmp_path):
    rng = np.random.default_rng(1)
    batches = [[rng.integers(-30, 30, 24)] for _ in range(20)]
    results = []
    for name in WORLDS[1:] if rule in TF2_ALONE else WORLDS:
        world = make_world(name)
        world.variables(lambda: [make(option=storage(storage_type, tmp_path / name))])
        world.train(loss, rule, batches)
        # Rows with slots, frequencies and versions; the manifest has the names of the columns.
        results.append(world.ask(lambda variables: tuple(variables[0].export_rows())))
    keys, rows = results[0][1:3]
    assert keys.size > 50 and rows.shape[1] >= 4
    for other in results[1:]:
        same_bits(results[0][1:], other[1:])


@pytest.mark.parametrize("dim", [1, 17])
@pytest.mark.parametrize("rule", sorted(TF2_ALONE))
def test_rules_without_a_v1_optimizer_give_the_bits_of_the_reference(rule, dim):
    ev, optimizer, rng = make(dim=dim), OPTIMIZERS[rule][1](), np.random.default_rng(dim)
    names = reference_rules.RULES[rule].hyperparameters
    hyper = lambda step: dict(zip(names, optimizer._hyper(0.1)))
    initial = tf.nn.embedding_lookup(ev, range(12)).numpy()
    reference = reference_rules.Rows(rule, dict(enumerate(initial)), hyper)
    for _ in range(8):
        ids, grads = rng.integers(0, 12, 9), rng.standard_normal((9, dim)).astype(np.float32)
        grads[0] = 0
        reference.train(ids, grads)
        optimizer.apply_gradients([(tf.IndexedSlices(grads, ids), ev)])
    same_bits(
        tf.nn.embedding_lookup(ev, range(12)).numpy(), np.stack(list(reference.rows.values()))
    )


# Rules of DeepRec's optimizers, which v1 graphs have alone.
V1_ALONE = {"adagrad_decay", "adagrad_decay_v2", "adam_async"}


def test_every_rule_and_every_class_is_trained_here():
    made = [make_ours() for _, make_ours in OPTIMIZERS.values()]
    assert {ours._RULE for ours in made} | V1_ALONE == set(tf_multitier.engine.update_rules())
    assert {type(ours).__name__ for ours in made} | {"RowOptimizer"} == set(optimizers.__all__)


def train(variables, optimizer, ids=(1, 2)):
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(tf.nn.embedding_lookup(ev, list(ids))) for ev in variables])
    parts = parts_of(variables)
    return optimizer.apply_gradients(zip(tape.gradient(total, parts), parts))


# ---- TensorFlow 2's formulas, on dense variables of the same rows

KERAS = {
    "SGD": ({}, {}),
    "Momentum": (dict(momentum=0.9), dict(momentum=0.9)),
    "Adagrad": ({}, {}),
    "Adam": ({}, {}),
    "AdamW": (dict(weight_decay=0.1), dict(weight_decay=0.1)),
    "RMSprop": ({}, {}),
    "RMSprop centered": (dict(centered=True, momentum=0.5), dict(centered=True, momentum=0.5)),
    "Ftrl": (dict(l2_regularization_strength=0.01), dict(l2_regularization_strength=0.01)),
    "Adadelta": ({}, {}),
    "Adam amsgrad": (dict(amsgrad=True), dict(amsgrad=True)),
    "AdamW amsgrad": (dict(amsgrad=True), dict(amsgrad=True)),
    "Adamax": ({}, {}),
    "Lion": ({}, {}),
    "Nadam": ({}, {}),
}
for _name, (_ours, _theirs) in list(KERAS.items()):
    KERAS[f"{_name} decayed"] = dict(_ours, weight_decay=0.5), dict(_theirs, weight_decay=0.5)


@pytest.mark.parametrize("name", KERAS)
def test_rows_follow_the_optimizer_of_keras(name):
    ours, theirs = KERAS[name]
    ours_name = name.split()[0]
    keras_name = {"Momentum": "SGD"}.get(ours_name, ours_name)
    row_optimizer = getattr(optimizers, ours_name)(0.05, **ours)
    optimizer = getattr(tf.keras.optimizers, keras_name)(0.05, **theirs)
    ev, ids = make(), tf.range(6, dtype=tf.int64)
    dense = tf.Variable(tf.nn.embedding_lookup(ev, ids))
    for step in range(10):
        target = tf.sin(tf.range(24.0) + step)
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(ev, ids)
            value = tf.reduce_sum((tf.reshape(rows, [24]) - target) ** 2)
            value += tf.reduce_sum((tf.reshape(dense, [24]) - target) ** 2)
        gradients = tape.gradient(value, [ev, dense])
        row_optimizer.apply_gradients([(gradients[0], ev)])
        optimizer.apply_gradients([(gradients[1], dense)])
    np.testing.assert_allclose(tf.nn.embedding_lookup(ev, ids), dense, rtol=1e-4, atol=1e-5)


def test_with_rows_takes_every_optimizer_that_keras_has_too():
    for name in optimizers.__all__:
        if hasattr(tf.keras.optimizers, name):
            tf_multitier.keras.with_rows(getattr(tf.keras.optimizers, name)())


def test_defaults_are_those_of_keras():
    for name in tf_multitier.keras.optimizers._RULES:
        ours = getattr(optimizers, name)().get_config()
        theirs = getattr(tf.keras.optimizers, name)().get_config()
        own = {"Adagrad": {"epsilon"}, "Adam": {"catch_up"}}  # Adagrad's is outside of the root
        for key in set(ours) - {"name"} - own.get(name, set()):
            assert ours[key] == pytest.approx(theirs[key]), (name, key)


# ---- learning rates, state


def test_a_learning_rate_is_a_number_a_callable_a_schedule_or_a_variable():
    rates = [
        0.5,
        lambda: 0.5,
        tf.Variable(0.5),
        tf.keras.optimizers.schedules.PiecewiseConstantDecay([100], [0.5, 0.1]),
    ]
    for rate in rates:
        ev = make()
        before = tf.nn.embedding_lookup(ev, [1])
        train([ev], optimizers.SGD(rate))
        same_bits(tf.nn.embedding_lookup(ev, [1]), before - 0.5)
    with pytest.raises(TypeError, match="learning_rate: expected a number, a callable"):
        optimizers.SGD("fast")


def test_an_assigned_learning_rate_holds_in_a_traced_function():
    ev, optimizer = make(), optimizers.SGD(1.0)
    step = tf.function(lambda: train([ev], optimizer))
    step()
    optimizer.learning_rate = 0.0
    before = tf.nn.embedding_lookup(ev, [1])
    step()
    same_bits(tf.nn.embedding_lookup(ev, [1]), before)
    assert optimizer.iterations == 2


def test_state_and_hyperparameters_are_tracked():
    names = {v.name for v in optimizers.AdamW().variables}
    expected = (
        "iterations learning_rate beta_1 beta_2 epsilon beta_1_power beta_2_power weight_decay"
    )
    assert names == {f"{name}:0" for name in [*expected.split(), "rate_is_given"]}


def test_versions_are_iterations_and_expire_by_them():
    option = tf_multitier.EmbeddingVariableOption(evict_option=tf_multitier.GlobalStepEvict(2))
    ev, optimizer = make(option=option), optimizers.SGD()
    train([ev], optimizer, [1])
    for _ in range(3):
        train([ev], optimizer, [2])
    assert ev.get_version([1, 2]).numpy().tolist() == [0, 3]
    assert ev.expire(optimizer.iterations) == 1 and ev.get_version([1]) == -1


def test_variables_of_a_group_are_updated_by_one_op():
    a, b, optimizer = make("a"), make("b"), optimizers.Adagrad()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            values = tf_multitier.nn.group_embedding_lookup([a, b], [[1], [2]], concat=True)
            value = tf.reduce_sum(values)
        optimizer.apply_gradients(zip(tape.gradient(value, [a, b]), [a, b]))

    types = [op.type for op in step.get_concrete_function().graph.get_operations()]
    assert types.count("MultitierGroupApply") == 1 and "MultitierApply" not in types


# ---- refusals


def test_no_gradient_for_one_variable_and_for_all():
    a, b, optimizer = make("a"), make("b"), optimizers.Adam()
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.nn.embedding_lookup(a, [1]))
    gradients = tape.gradient(value, [a, b])
    assert gradients[1] is None
    optimizer.apply_gradients(zip(gradients, [a, b]))
    assert (a.total_count(), b.total_count()) == (1, 0)
    with pytest.raises(
        ValueError, match="expected a gradient of at least one of the embedding variables"
    ):
        optimizer.apply_gradients([(None, b)])


def test_an_empty_batch_makes_no_row():
    ev, optimizer = make(), optimizers.Adam()
    train([ev], optimizer, np.zeros([0], np.int64).tolist())
    assert ev.total_count() == 0 and optimizer.iterations == 1


def test_bad_gradients_and_variables_are_refused_by_name():
    ev, optimizer = make(), optimizers.SGD()
    keys = tf.constant([1], tf.int64)
    with pytest.raises(
        TypeError, match="'ev': expected IndexedSlices of keys, found a dense tensor"
    ):
        optimizer.apply_gradients([(tf.ones([1, 4]), ev)])
    # Zeros of TensorFlow's unconnected_gradients have the shape [0, dim]: test_tf2_recompute.py.
    for shape in ([0, 5], [0, 0], [0], [0, 4, 1], [1, 4]):
        refused = r"'ev': expected IndexedSlices of keys, found a dense tensor \("
        with pytest.raises(TypeError, match=refused):
            optimizer.apply_gradients([(tf.zeros(shape), ev)])
        with pytest.raises(TypeError, match=refused):
            tf.function(lambda shape=shape: optimizer.apply_gradients([(tf.zeros(shape), ev)]))()
    assert optimizer.iterations == 0 and ev.total_count() == 0
    with pytest.raises(TypeError, match="values: expected float32, found float64"):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 4], tf.float64), keys), ev)])
    with pytest.raises(TypeError, match="expected an embedding variable, found 'dense:0'"):
        optimizer.apply_gradients([(tf.ones([1]), tf.Variable([1.0], name="dense"))])
    parts = make("parts", partitioner=tf.compat.v1.fixed_size_partitioner(2))
    with pytest.raises(
        TypeError, match="expected a list of 2 gradients, one for each of its parts"
    ):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 4]), keys), parts)])


def test_an_optimizer_in_a_graph_is_refused():
    with tf.Graph().as_default():
        with pytest.raises(
            RuntimeError, match="optimizers.SGD: expected eager execution or a tf.function"
        ):
            optimizers.SGD()


@pytest.mark.parametrize("name", ["_X", "__Y", "Größe", "_9", "___"])
def test_a_class_of_any_name_trains(name):
    kind = type(name, (optimizers.Adagrad,), {})
    ev, optimizer = make(), kind(0.1)
    for wrap in (lambda step: step, tf.function):
        wrap(lambda: train_once(ev, optimizer))()
    assert ev.total_count() == 2 and optimizer.iterations == 2


def train_once(ev, optimizer):
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 2]) ** 2)
    optimizer.apply_gradients([(tape.gradient(value, ev), ev)])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_build_adds_the_slots_that_the_first_update_would_add(rule, parts):
    """Rows with slots that were written before the first update go on as those of the variable that had them."""
    partitioner = tf.compat.v1.fixed_size_partitioner(parts) if parts > 1 else None
    trained, copied = (make(name, partitioner=partitioner) for name in ("ev", "copy"))
    of_trained, of_copied = OPTIMIZERS[rule][1](), OPTIMIZERS[rule][1]()
    train_once(trained, of_trained)
    of_copied.build([copied])
    of_copied.build([copied])  # again: nothing to do
    names = of_trained._columns(trained.parts[0])[0]
    own = of_copied._columns(copied.parts[0])[0]
    [rows] = trained.rows(columns=["value", *names]) if parts == 1 else [whole(trained, names)]
    slots = {mine: rows.columns[its] for mine, its in zip(own, names)}
    copied.upsert(rows.keys, rows.columns["value"], slots, rows.frequencies, rows.versions)
    for name, variable in of_copied.named_variables().items():
        variable.assign(of_trained.named_variables()[name])
    for ev, optimizer in ((trained, of_trained), (copied, of_copied)):
        train_once(ev, optimizer)
    same_bits(whole(copied, own).columns.values(), whole(trained, names).columns.values())


def whole(ev, names):
    """All rows, by key."""
    pieces = list(ev.rows(columns=["value", *names]))
    keys = np.concatenate([piece.keys for piece in pieces])
    order = np.argsort(keys)
    join = lambda of: np.concatenate([of(piece) for piece in pieces])[order]
    columns = {name: join(lambda piece: piece.columns[name]) for name in ["value", *names]}
    return type(pieces[0])(
        keys[order], columns, join(lambda p: p.frequencies), join(lambda p: p.versions), 0
    )


def test_build_refuses_what_has_no_rows():
    with pytest.raises(TypeError, match="Adagrad: expected an embedding variable, found"):
        optimizers.Adagrad(0.1).build([tf.Variable([1.0])])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_an_accumulator_that_begins_at_0_has_an_epsilon(dtype):
    ev, f = make(dim=5, value_dtype=dtype), np.float32
    optimizer = optimizers.Adagrad(0.1, 0.0, epsilon=1e-3)
    assert optimizers.Adagrad.from_config(optimizer.get_config()).get_config()["epsilon"] == f(1e-3)
    row = tf.nn.embedding_lookup(ev, [1]).numpy().astype(f)
    slots = reference_rules.make_slots("adagrad_epsilon", 1, 5)
    for grad in ([[0, 1e-30, 1e-3, 1, -2]], [[0, 0, 0, 0, 0]], [[3, 2, 1, 1, 1]]):
        grad = np.array(grad, f).astype(dtype.as_numpy_dtype)
        optimizer.apply_gradients([(tf.IndexedSlices(grad, tf.constant([1], tf.int64)), ev)])
        hyper = {"learning_rate": 0.1, "epsilon": 1e-3}
        reference_rules.apply_rule("adagrad_epsilon", row, slots, grad.astype(f), hyper)
        row = row.astype(dtype.as_numpy_dtype).astype(f)
        same_bits(tf.nn.embedding_lookup(ev, [1]).numpy().astype(f), row)
    [found] = ev.rows(columns=["value", "ev/Adagrad"])
    same_bits(found.columns["ev/Adagrad"], slots["accumulator"])


def test_bad_hyperparameters_are_refused():
    refused = "initial_accumulator_value: expected more than 0 without an epsilon, found 0"
    with pytest.raises(ValueError, match=refused):
        optimizers.Adagrad(initial_accumulator_value=0)
    with pytest.raises(
        ValueError, match="initial_accumulator_value: expected at least 0, found -1"
    ):
        optimizers.Adagrad(initial_accumulator_value=-1, epsilon=1e-8)
    ev = make()
    with pytest.raises(tf.errors.InvalidArgumentError, match="adagrad_epsilon.*epsilon"):
        train([ev], optimizers.Adagrad(epsilon=0.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="beta1"):
        train([ev], optimizers.Adam(beta_1=2.0))
    assert ev.total_count() == 0


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda made: type(made)(clipnorm=1.0), TypeError, "found clipnorm: .*with_rows"),
        (lambda made: type(made)(beta1=0.5), TypeError, "found beta1: did you mean 'beta_1'"),
        (lambda made: made.minimize(None, []), AttributeError, "found 'minimize': take the grad"),
        (lambda made: setattr(made, "amsgrad", True), AttributeError, "amsgrad: expected to keep"),
        (lambda made: setattr(made, "weight_decay", 0.1), AttributeError, "weight_decay: expected"),
        (lambda made: setattr(made, "lr", 0.5), AttributeError, "found 'lr': use learning_rate"),
    ],
)
def test_what_keras_has_and_rows_have_not_is_an_error_with_its_cure(use, error, message):
    with pytest.raises(error, match=message):
        use(optimizers.Adam(0.1))


def test_an_assigned_hyperparameter_is_that_of_the_next_step():
    ev, made = make(), optimizers.Momentum(1.0, momentum=0.9)
    gradient = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([1], tf.int64))
    made.apply_gradients([(gradient, ev)])
    before = ev.peek([1])
    made.momentum = 0.5
    assert made.momentum == 0.5
    made.apply_gradients([(gradient, ev)])
    np.testing.assert_allclose(ev.peek([1]), before - 1.5)
