"""Collections of tf_multitier.dynamicemb: inputs, sharing, steps, evaluation, admission, checks, Checkpoint and Keras."""

import dynamicemb_dump_util as dump_util
import dynamicemb_util as util
import keras
import numpy as np
import pytest
import tensorflow as tf
import worlds

from tf_multitier import dynamicemb as de

pytestmark = worlds.needs_eager

ADAM = de.EmbOptimType.ADAM


def _bags(pooling, **kwargs):
    tables = [
        de.EmbeddingBagConfig("a", 3, 128, ["u", "v"], pooling=pooling),
        de.EmbeddingBagConfig("b", 5, 128, ["w"], pooling=pooling),
    ]
    made = de.EmbeddingBagCollection(tables, **kwargs)
    return made.create({"a": util.options(), "b": util.options()}, {})


def _forms(dense):
    """Ids [2, 2] of one feature in each form that a dict may have."""
    dense = np.array(dense)
    return {
        "dense": tf.constant(dense),
        "numpy": dense,
        "int32": tf.constant(dense, tf.int32),
        "ragged": tf.RaggedTensor.from_tensor(dense),
        "sparse": tf.sparse.from_dense(dense),
    }


def test_all_forms_of_input_read_and_train_alike():
    u, v, w = [[1, 2], [3, 1]], [[3, 9], [7, 7]], [[1, 4], [5, 2]]
    kjt = de.KeyedJaggedTensor(["u", "v", "w"], np.ravel([u, v, w]), lengths=[2] * 6)
    inputs = [{"u": a, "v": b, "w": c} for a, b, c in zip(*[_forms(x).values() for x in (u, v, w)])]
    for make in (
        lambda: util.collection(
            [util.config("a", 3, features=["u", "v"]), util.config("b", 5, features=["w"])]
        ),
        lambda: _bags(de.PoolingType.SUM),
        lambda: _bags(de.PoolingType.MEAN),
    ):
        results = []
        for given in [*inputs, kjt]:
            tf.random.set_seed(3)
            made = make()
            found = tf.function(lambda x: made(x, training=True))(given)
            util.train(made, given)
            after = util.variable(made, "a").export_rows()
            results.append([*[np.ravel(util.flat(found[f])) for f in "uvw"], *after[1:]])
            assert util.variable(made, "a").get_frequency([1, 3, 7]).numpy().tolist() == [2, 2, 2]
            assert util.variable(made, "b").get_frequency([1, 3, 7]).numpy().tolist() == [1, 0, 0]
        for other in results[1:]:
            for a, b in zip(results[0], other):
                np.testing.assert_array_equal(a, b)


def test_bags_are_sums_and_means_of_weighted_rows_also_when_empty():
    ids = {"u": tf.ragged.constant([[1, 2, 3], []], dtype=tf.int64)}
    weights = {"u": tf.ragged.constant([[1.0, 2.0, 4.0], []])}
    for pooling, count in ((de.PoolingType.SUM, 1), (de.PoolingType.MEAN, 3)):
        for weighted in (False, True):
            made = _bags(pooling, is_weighted=weighted)
            rows = np.array([util.variable(made, "a").peek([k])[0] for k in (1, 2, 3)])
            of = np.array([[1.0], [2.0], [4.0]] if weighted else [[1.0]] * 3)
            found = made(ids, weights if weighted else None, training=True)["u"]
            np.testing.assert_allclose(found[0], (rows * of).sum(0) / count, 1e-5)
            np.testing.assert_array_equal(found[1], np.zeros(3))
            with pytest.raises(ValueError, match="weights: expected"):
                made(ids, None if weighted else weights)


def test_features_that_are_unknown_missing_or_empty():
    made = util.collection([util.config("a", features=["u", "v"]), util.config("b")])
    with pytest.raises(ValueError, match="features: expected .*'u', 'v', 'b'.*found 'x'"):
        made({"x": util.keys(1)})
    with pytest.raises(TypeError, match="feature 'u'.*expected int64.*float32"):
        made({"u": tf.constant([1.0])})
    assert made({}) == {}
    util.train(made, {"v": tf.ragged.constant([[], []], dtype=tf.int64), "u": util.keys(4)})
    util.train(made, {"b": tf.zeros([0, 3], tf.int64)})
    assert made({"v": tf.zeros([0, 2], tf.int64)}, training=False)["v"].shape == (0, 2, 4)
    assert [int(util.variable(made, name).total_count()) for name in "ab"] == [1, 0]


def test_one_op_looks_up_and_one_updates_tables_whatever_their_options(tmp_path):
    S = de.DynamicEmbScoreStrategy
    admit = de.FrequencyAdmissionStrategy(2)
    its = [
        util.options(),
        util.options(S.LFU, index_type=tf.uint64),
        util.options((S.TIMESTAMP, S.LFU), storage_type="DRAM_SSDHASH", storage_path=str(tmp_path)),
        util.options(S.NO_EVICTION, admit_strategy=admit),
    ]
    tables = [util.config(f"t{i}", 2 + i) for i in range(4)]
    made = util.collection(tables, {f"t{i}": each for i, each in enumerate(its)}, optimizer=ADAM)
    step = tf.function(lambda ids: util.train(made, ids), autograph=False)
    ids = {f"t{i}": tf.constant([1, 2], its[i].index_type or tf.int64) for i in range(4)}
    step(ids)
    kinds = [op.type for op in step.get_concrete_function(ids).graph.get_operations()]
    ours = [kind for kind in kinds if kind.startswith("MultitierGroup")]
    assert ours == ["MultitierGroupLookup", "MultitierGroupLookupGrad", "MultitierGroupApply"]
    assert "MultitierApply" not in kinds


def test_several_calls_of_a_step_update_a_table_once():
    tables = [util.config("a", features=["u", "v"])]
    results = []
    for calls in (
        [{"u": util.keys(1, 2), "v": util.keys(2, 3)}],
        [{"u": util.keys(1, 2)}, {"v": util.keys(2, 3)}],
    ):
        tf.random.set_seed(1)
        made = util.collection(tables, optimizer=ADAM)
        for step in (util.train, tf.function(util.train, autograph=False)):
            step(made, *calls)
        assert de.get_score(made) == {"model": {"a": 3}}
        results.append(util.variable(made, "a").export_rows()[1:])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


def test_evaluation_changes_nothing_and_reads_its_own_initial_value():
    constant = de.DynamicEmbInitializerArgs(de.DynamicEmbInitializerMode.CONSTANT, value=7.0)
    made = util.collection([util.config("a")], {"a": util.options(eval_initializer_args=constant)})
    util.train(made, {"a": util.keys(1)})
    before = util.variable(made, "a").export_rows()
    found = made.eval()({"a": util.keys(1, 2)})["a"]
    np.testing.assert_array_equal(found[1], [7.0] * 4)
    assert np.all(made.train()({"a": util.keys(2)})["a"] != 7.0)
    for a, b in zip(before, util.variable(made, "a").export_rows()):
        np.testing.assert_array_equal(a, b)
    with tf.GradientTape() as tape:
        evaluated = made.eval()({"a": util.keys(1, 2)})["a"]
        loss = tf.reduce_sum(evaluated + made({"a": util.keys(1, 1)}, training=True)["a"])
    [of_training] = tape.gradient(loss, made.parameters())
    assert set(of_training.indices.numpy()) == {1}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made.eval()({"a": util.keys(1, 2)})["a"])
    with pytest.raises(ValueError, match="no lookup with training=True"):
        made.apply_gradients(tape.gradient(loss, made.parameters()))
    made.train()
    frozen = util.collection(
        [util.config("a")], {"a": util.options(training=False)}, optimizer=ADAM
    )
    assert b"Adam" not in util.variable(frozen, "a").export_rows().manifest.numpy()
    with pytest.raises(RuntimeError, match=r"training=False.*\['a'\]"):
        frozen({"a": util.keys(1)}, training=True)
    with pytest.raises(RuntimeError, match=r"apply_gradients.*\['a'\]"):
        frozen.apply_gradients([])


def test_safe_check_mode_tells_keys_without_a_row(caplog):
    caplog.set_level("WARNING", logger="tensorflow")  # other tests of the process set another one
    strategy, mode = de.DynamicEmbScoreStrategy.LFU, de.DynamicEmbCheckMode
    tables = [util.config(each.name, rows=16) for each in mode]
    of_table = {
        each.name: util.options(strategy, bucket_capacity=16, safe_check_mode=each) for each in mode
    }
    made = util.collection(tables, of_table)
    full = util.keys(*range(16), *range(16))
    util.train(made, {each.name: full for each in mode})
    for step in (util.train, tf.function(util.train, autograph=False)):
        step(made, {"IGNORE": util.keys(50, 51)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)table .*ERROR.* 2 keys"):
            step(made, {"ERROR": util.keys(50, 51)})
        caplog.clear()
        step(made, {"WARNING": util.keys(50, 51)})
        assert "table 'WARNING'" in caplog.text
        assert "2 keys" in caplog.text


def test_a_key_is_admitted_at_its_threshold():
    mode = de.DynamicEmbInitializerMode.CONSTANT
    five = de.DynamicEmbInitializerArgs(mode, value=5.0)
    tables = [util.config("own"), util.config("five")]
    counter = de.KVCounter(64)
    admit = {
        "own": de.FrequencyAdmissionStrategy(3),
        "five": de.FrequencyAdmissionStrategy(3, five),
    }
    of_table = {
        name: util.options(admit_strategy=each, admission_counter=counter)
        for name, each in admit.items()
    }
    made = util.collection(tables, of_table)
    ids = {"own": util.keys(1), "five": util.keys(1)}
    first = np.array(made(ids, training=True)["own"])
    for count in (1, 2, 3):
        read = made(ids, training=True)
        np.testing.assert_array_equal(read["own"], first)
        assert np.all(read["five"] == 5.0)
        util.train(made, ids)
        assert [int(util.variable(made, n).total_count()) for n in admit] == [count == 3] * 2
    assert np.all(made(ids, training=True)["five"] != 5.0)


@pytest.mark.parametrize("when", ["before create", "before the first call", "trained"])
def test_a_checkpoint_restores_tables_scores_and_states(when, tmp_path):
    S = de.DynamicEmbScoreStrategy
    tables = [util.config("a"), util.config("custom"), util.config("static")]
    of_table = {"a": util.options(), "custom": util.options(S.CUSTOMIZED), "static": None}
    fused = {"optimizer": ADAM}
    ids = dict.fromkeys(("a", "custom", "static"), util.keys(1, 2, 1))
    made = util.collection(tables, of_table, **fused)
    de.set_score(made, 8)
    util.train(made, ids)
    path = tf.train.Checkpoint(model=made).save(str(tmp_path / "c"))
    other = de.EmbeddingCollection(tables)
    if when == "before create":
        status = tf.train.Checkpoint(model=other).restore(path)
        other.create(of_table, fused)
    else:
        other.create(of_table, fused)
        if when == "trained":
            de.set_score(other, 3)
            util.train(other, ids)
        status = tf.train.Checkpoint(model=other).restore(path)
    status.assert_consumed()
    assert de.get_score(other) == de.get_score(made) == {"model": {"a": 2, "custom": 8}}
    for each in (made, other):
        util.train(each, ids)
    for name in ("a", "custom"):
        rows = [util.variable(each, name).export_rows()[1:] for each in (made, other)]
        for a, b in zip(*rows):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(*[util.variable(each, "static") for each in (made, other)])


@pytest.mark.parametrize("kind", ["STEP", "CUSTOMIZED"])
def test_a_model_of_a_strategy_with_one_replica_trains_dumps_and_loads(kind, tmp_path):
    kind = de.DynamicEmbScoreStrategy[kind]
    tf.random.set_seed(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    make = lambda: dump_util.make(kind, ADAM)
    plain = make()
    with strategy.scope():
        model, other = make(), make()
    step = tf.function(lambda: strategy.run(lambda: dump_util.train(model, [1, 2])))
    for score in (4, 5):
        if kind is de.DynamicEmbScoreStrategy.CUSTOMIZED:
            de.set_score([plain, model], score)
        dump_util.train(plain, [1, 2])
        step()
    dump_util.assert_same(dump_util.everything(model), dump_util.everything(plain))
    de.DynamicEmbDump(tmp_path, model, optim=True)
    de.DynamicEmbLoad(tmp_path, other, optim=True)
    its = [dump_util.everything(each) for each in (other, plain)]
    if kind is de.DynamicEmbScoreStrategy.CUSTOMIZED:
        for _, optimizer in its:
            del optimizer["iterations"]  # goes on where it is a score
    dump_util.assert_same(*its)


def test_options_of_other_tables_and_bad_fused_params_are_refused_before_anything_is_made():
    made = de.EmbeddingCollection([util.config("a")])
    with pytest.raises(RuntimeError, match="call create"):
        made({"a": util.keys(1)})
    for options, fused, error, text in (
        ({"b": util.options()}, {}, ValueError, r"expected those of the tables \['a'\]"),
        ({"a": util.options()}, {"momentum": 0.5}, ValueError, "momentum.*its default"),
        ({"a": util.options()}, {"epsilon": 0.5}, ValueError, "found 'epsilon'"),
        ({"a": util.options()}, {"weight_decay": 0.5}, ValueError, "ADAM uses it"),
        ({"a": util.options()}, {"optimizer": "adam"}, TypeError, "EmbOptimType"),
        ({"a": util.options(caching=True)}, {}, ValueError, "caching"),
    ):
        with pytest.raises(error, match=text):
            made.create(options, fused)
    made.create({"a": util.options()}, {})


def test_keras_fit_trains_as_the_eager_program(tmp_path):
    tables = [util.config("a", features=["u"]), util.config("b", 6, features=["w"])]
    rng = np.random.default_rng(0)
    x = {f: rng.integers(0, 20, (32, 3)) for f in "uw"}
    y = rng.normal(size=(32, 1)).astype("f")
    results = []
    for kind in ("eager", "fit", "run_eagerly"):
        tf.random.set_seed(2)
        made = util.collection(tables, optimizer=ADAM, learning_rate=0.1)
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        head = lambda rows: dense(keras.ops.concatenate([rows[f][:, 0] for f in "uw"], -1))
        if kind == "eager":
            optimizer = keras.optimizers.SGD(0.1)
            for i in range(0, 32, 8):
                with tf.GradientTape() as tape:
                    out = head(made({f: x[f][i : i + 8] for f in "uw"}))
                    loss = tf.reduce_mean((out - y[i : i + 8]) ** 2)
                parameters = made.parameters()
                its = tape.gradient(loss, parameters + dense.trainable_weights)
                made.apply_gradients(its[: len(parameters)])
                optimizer.apply_gradients(zip(its[len(parameters) :], dense.trainable_weights))
        else:
            inputs = {f: keras.Input([3], dtype="int64", name=f) for f in "uw"}
            model = keras.Model(inputs, head(made.keras_layer(name="rows")(inputs)))
            model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=kind == "run_eagerly")
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            assert [path for path, _ in de.collection.find_collections(model)] == ["model.rows"]
        assert set(de.get_score(made)["model"].values()) == {5}
        results.append([util.variable(made, n).export_rows() for n in "ab"])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a.keys, b.keys)
            np.testing.assert_allclose(a.rows, b.rows, 1e-5, 1e-6)
            np.testing.assert_array_equal(a.versions, b.versions)


def test_a_layer_takes_a_keyed_jagged_tensor_and_no_tensor():
    made = util.collection([util.config("a", features=["u"])])
    ids, layer = de.KeyedJaggedTensor(["u"], [1, 2, 3], lengths=[1, 2]), made.keras_layer()
    for found in (layer(ids), layer(ids, True), layer(inputs=ids)):
        np.testing.assert_array_equal(found["u"].flat_values, made(ids)["u"].flat_values)
    np.testing.assert_array_equal(layer(ids, False)["u"].flat_values, np.zeros((3, 4)))
    with pytest.raises(
        TypeError, match="inputs: expected a dict from features .*found KerasTensor"
    ):
        layer(keras.Input([3], dtype="int64"))
    for args, its, found in (
        ((True,), {"training": False}, "multiple values"),
        ((1, 2), {}, "too many"),
    ):
        with pytest.raises(TypeError, match=found):
            layer(ids, *args, **its)


@pytest.mark.parametrize("call", [de.pop_evicted_keys, de.get_score, lambda m: de.set_score(m, 1)])
def test_a_model_without_a_collection_is_refused(call):
    for model in (3, None, tf.Module(), {}):
        with pytest.raises(ValueError, match="expected one with an EmbeddingCollection"):
            call(model)


def test_results_of_two_features_have_two_names():
    tables = [util.config("a", features=["f"]), util.config("b", features=["f", "f@a"])]
    with pytest.raises(ValueError, match="different names, found .*f@a"):
        de.EmbeddingCollection(tables)
