"""Programs that use keras.layers.Embedding, with our layer in its place: the same calls give the same results."""

import functools
import gc
import os
import re
import sys
import warnings
import weakref

import numpy as np
import pytest
import tensorflow as tf

import keras_util
import tf_multitier
import worlds

keras = pytest.importorskip("keras", reason="Keras is not installed")
kt = pytest.importorskip("tf_multitier.keras")
layers = pytest.importorskip("tf_multitier.keras.layers")
optimizers = tf_multitier.optimizers
pytestmark = worlds.needs_eager


def sgd(stock=False):
    optimizer = keras.optimizers.SGD(0.1)
    return optimizer if stock else kt.with_rows(optimizer)


def build(embedding):
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int64")
    values = keras.layers.Flatten()(embedding(ids))
    return keras.Model(ids, keras.layers.Dense(1, name="out")(values))


def losses(model, epochs=2):
    arguments = dict(batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return model.fit(keras_util.X, keras_util.Y, **arguments).history["loss"]


def static(**kwargs):
    return keras.layers.Embedding(40, 4, **kwargs)


ours = functools.partial(kt.Embedding, 4)


# ---- initial values


def test_set_random_seed_gives_the_same_rows_twice_in_a_process():
    def train():
        keras.utils.set_random_seed(42)
        model = keras.Sequential([ours(), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile(sgd(), "mse")
        return losses(model)

    first = train()
    assert train() == first
    keras.utils.set_random_seed(42)
    one, two = ours(), ours()
    ids = tf.range(10, dtype=tf.int64)
    assert not np.array_equal(one(ids), two(ids))


def test_a_seed_of_the_initializer_is_kept_after_set_random_seed():
    ids = tf.range(5, dtype=tf.int64)
    values = []
    for program in (1, 2):
        keras.utils.set_random_seed(program)
        values.append(ours(keras.initializers.RandomUniform(seed=7))(ids).numpy())
    np.testing.assert_array_equal(*values)


def test_a_loaded_model_gives_new_ids_the_rows_that_the_saved_one_gives_them(tmp_path):
    keras.utils.set_random_seed(1)
    model = build(ours())
    model.save(tmp_path / "m.keras")
    keras.utils.set_random_seed(2)
    loaded = keras.models.load_model(tmp_path / "m.keras")
    ids = np.arange(1000, 1030).reshape(10, 3)
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))


@pytest.mark.parametrize("shape", [(40, 4), (4,)])
def test_a_constant_matrix_is_the_initial_rows(tmp_path, shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype("float32")
    initializer = keras.initializers.Constant(matrix)
    expected, model = build(static(embeddings_initializer=initializer)), build(ours(initializer))
    expected.compile(sgd(stock=True), "mse")
    model.compile(sgd(), "mse")
    np.testing.assert_allclose(losses(model), losses(expected), rtol=1e-5)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras_util.predicted(loaded), keras_util.predicted(model))
    with pytest.raises(ValueError, match=r"initial matrix: expected shape \[N, 3\], found"):
        kt.Embedding(3, initializer)(tf.constant([1]))


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 1, 4)])
def test_a_constant_of_more_dimensions_is_refused_by_the_name_of_the_layer(shape):
    initializer = keras.initializers.Constant(np.zeros(shape, np.float32))
    message = (
        r"embeddings_initializer: expected a Constant of a number or of shape \[dim\] or \[N, dim\], found shape "
        + re.escape(str(shape))
    )
    with pytest.raises(ValueError, match="layer 'emb', embeddings: " + message):
        ours(initializer, name="emb").build()
    features = {"a": dict(output_dim=4, embeddings_initializer=initializer)}
    with pytest.raises(ValueError, match="layer 'g', a: " + message):
        kt.GroupEmbedding(features, name="g").build()


@pytest.mark.parametrize("missing", ["module", "function"])
def test_without_the_seed_of_the_program_the_name_gives_the_rows(monkeypatch, missing):
    keras.utils.set_random_seed(1)
    if missing == "module":
        monkeypatch.setitem(sys.modules, "keras.src.utils.rng_utils", None)
    else:
        monkeypatch.delattr("keras.src.utils.rng_utils.get_random_seed")
    values = [ours(name="emb")(tf.constant([1, 2])) for _ in range(2)]
    np.testing.assert_array_equal(*values)


# ---- ids


def test_booleans_are_ids_as_in_keras():
    ids = np.array([True, False, True])
    layer = ours()
    np.testing.assert_array_equal(layer(ids), layer(tf.constant([1, 0, 1])))


def test_strings_are_refused_and_the_layers_that_make_ids_are_named():
    with pytest.raises(TypeError, match=r"found strings: .*keras\.layers\.StringLookup or Hash"):
        ours()(np.array(["a", "b"]))


def test_ids_of_three_dimensions_are_refused_by_a_combiner_also_when_a_model_is_built():
    message = r"layer '.*': ids for a combiner: expected .* found shape \(2, 3, 4\): reshape them"
    layer = ours(combiner="mean")
    group = kt.GroupEmbedding({"a": dict(output_dim=4)})
    ids = keras.Input(batch_shape=(2, 3, 4), dtype="int64")
    for call in (
        lambda: layer(tf.zeros([2, 3, 4], tf.int64)),
        lambda: group({"a": tf.zeros([2, 3, 4], tf.int64)}),
        lambda: layer(ids),
        lambda: group({"a": ids}),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert ours()(ids).shape == (2, 3, 4, 4)


def test_a_layer_that_is_built_twice_has_one_table():
    layer, group = ours(), kt.GroupEmbedding({"a": dict(output_dim=4)})
    for made in (layer, group):
        made.build()
        tables = made.tables
        made.build((None, 3))
        assert len(made.tables) == 1 and made.tables[0] is tables[0]


def test_a_build_that_failed_leaves_the_layer_as_it_was(monkeypatch):
    layer = kt.GroupEmbedding({name: dict(output_dim=4) for name in "ab"}, name="g")
    whole = layers.get_embedding_variable

    def failing(name, *args, **kwargs):
        if name == "b":
            raise OSError("the disk is full")
        return whole(name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(layers, "get_embedding_variable", failing)
        with pytest.raises(OSError, match="the disk is full"):
            layer.build()
    assert not layer.built and layer.tables == [] and layer.weights == []
    layer.build()
    assert [weight.path for weight in layer.weights] == ["g/a", "g/b"]
    assert len(layer.tables) == 2


@pytest.mark.parametrize(
    "features, found",
    [
        ({"a/b": 1, "a_b": 1}, "'a/b' and 'a_b' with 'a_b'"),
        ({"a": 2, "a_part_1": 1}, "'a' and 'a_part_1' with 'a_part_1'"),
    ],
)
def test_two_features_whose_weights_have_one_path_are_refused(features, found):
    made = {name: dict(output_dim=4, partitions=parts) for name, parts in features.items()}
    message = f"layer 'g': expected features whose weights have different paths, found {found}"
    with pytest.raises(ValueError, match=message):
        kt.GroupEmbedding(made, name="g")


# ---- arguments of keras.layers.Embedding


@pytest.mark.parametrize(
    "argument, value, cure",
    [
        ("embeddings_regularizer", "l2", "use activity_regularizer"),
        ("embeddings_constraint", "unit_norm", "UnitNormalization"),
        ("weights", [np.zeros((40, 4))], r"keras\.initializers\.Constant\(matrix\)"),
        ("lora_rank", 2, "a row for each id"),
        ("lora_alpha", 2, "a row for each id"),
        ("quantization_config", {"mode": "int8"}, "value_dtype="),
    ],
)
def test_arguments_that_need_all_rows_are_refused_with_a_cure(argument, value, cure):
    message = rf"tf_multitier\.keras\.Embedding has no {argument}: expected none, found .*{cure}"
    with pytest.raises(TypeError, match=message):
        ours(**{argument: value})
    assert ours(**{argument: None}).output_dim == 4


@pytest.mark.parametrize(
    "argument, value, cure",
    [
        ("input_dim", 40, "the features have output_dim"),
        ("embeddings_constraint", "unit_norm", "constrain the layer's outputs"),
        (
            "weights",
            [np.zeros((40, 4))],
            r"give the features .*layer\.embeddings\[feature\]\.upsert",
        ),
        ("lora_rank", 2, "a row for each id"),
        ("quantization_config", {"mode": "int8"}, r"give the features ev_option="),
    ],
)
def test_a_group_refuses_these_arguments_with_what_its_features_take(argument, value, cure):
    message = rf"keras\.GroupEmbedding has no {argument}: expected none, found .*{cure}"
    with pytest.raises(TypeError, match=message):
        kt.GroupEmbedding({"a": dict(output_dim=4)}, **{argument: value})


def test_the_rows_of_a_group_are_written_as_its_messages_say():
    layer = kt.GroupEmbedding({"a": dict(output_dim=4)})
    layer.build()
    layer.embeddings["a"].upsert([1], tf.ones([1, 4]))
    np.testing.assert_array_equal(
        layer({"a": tf.constant([[1]])}, training=False)["a"], [[1.0] * 4]
    )


def test_input_length_is_left_out_with_a_warning_as_in_keras():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer = ours(input_length=3)
    assert [str(w.message) for w in caught if "input_length" in str(w.message)]
    assert "input_length" not in layer.get_config()


# ---- weights


@pytest.mark.parametrize("partitions", [1, 2])
def test_weights_have_the_paths_of_keras(partitions):
    expected = build(static(name="emb"))
    model = build(ours(name="emb", partitions=partitions))
    paths = [v.path for v in model.variables]
    if partitions == 1:
        assert paths[0] == expected.variables[0].path == "emb/embeddings"
    else:
        assert paths[:2] == ["emb/embeddings_part_0", "emb/embeddings_part_1"]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_weight_is_assigned_to_that_of_another_model(is_own, partitions):
    make = lambda: build(
        ours(optimizer=optimizers.SGD(0.1) if is_own else None, partitions=partitions)
    )
    online, target = make(), make()
    online.compile(keras.optimizers.SGD(0.1) if is_own else sgd(), "mse")
    losses(online)
    for to, of in zip(target.variables, online.variables, strict=True):
        to.assign(of)
    np.testing.assert_array_equal(keras_util.predicted(target), keras_util.predicted(online))
    before = keras_util.predicted(target)
    losses(online)  # the copy does not follow
    np.testing.assert_array_equal(keras_util.predicted(target), before)


def test_a_state_tree_is_set_on_another_model():
    online, target = build(ours(name="emb")), build(ours(name="emb"))
    online.compile(sgd(), "mse")
    target.compile(sgd(), "mse")
    losses(online)
    tree = {"trainable_variables": online.get_state_tree()["trainable_variables"]}
    target.set_state_tree(tree)
    np.testing.assert_array_equal(keras_util.predicted(target), keras_util.predicted(online))


def trained(embedding):
    model = build(embedding)
    model.compile(sgd(), "mse")
    losses(model, epochs=1)
    return model


def content(rows):
    keys, values, *_ = rows.embedding_variable.export()
    order = np.argsort(keys.numpy())
    return keys.numpy()[order], tf.cast(values, tf.float32).numpy()[order]


PARTS = r"expected \(partition, partitions, dim\) "
REFUSED = {
    "dim": (ours, lambda: kt.Embedding(2), 0, PARTS + r"\(0, 1, 4\), found \(0, 1, 2\) of"),
    "two onto one": (
        ours,
        lambda: ours(partitions=2),
        0,
        PARTS + r"\(0, 1, 4\), found \(0, 2, 4\) of",
    ),
    "one onto two": (
        lambda: ours(partitions=2),
        ours,
        0,
        PARTS + r"\(0, 2, 4\), found \(0, 1, 4\) of",
    ),
    "another partition": (
        lambda: ours(partitions=2),
        lambda: ours(partitions=2),
        1,
        PARTS + r"\(0, 2, 4\), found \(1, 2, 4\) of",
    ),
    "keys": (ours, lambda: ours(key_dtype="uint64"), 0, "expected keys of int64, found uint64 of"),
    "values": (
        ours,
        lambda: ours(dtype="bfloat16"),
        0,
        "expected values of float32, found bfloat16 of",
    ),
}


@pytest.mark.parametrize("by_array", [False, True], ids=["weight", "set_weights"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_weight_of_another_layout_is_refused_and_changes_nothing(case, by_array):
    make, make_other, number, message = REFUSED[case]
    target = trained(make())
    other = build(make_other())
    its = other.layers[1].embeddings
    its.upsert(tf.cast(tf.range(40), its.key_dtype), tf.ones([40, its.embedding_dim], its.dtype))
    source = other.variables[number]
    rows = target.variables[0]
    before = content(rows)
    assert len(before[0]) > 5 and len(content(source)[0]) > 5
    with pytest.raises(ValueError, match=rf"rows of layer '{target.layers[1].name}': {message}"):
        rows.assign(source.numpy() if by_array else source)
    for found, expected in zip(content(rows), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_of_another_type_of_values_are_assigned_while_restores_convert():
    rows, source = trained(ours()).variables[0], trained(ours(dtype="bfloat16")).variables[0]
    with tf_multitier.train.convert_on_restore():
        rows.assign(source)
    for found, expected in zip(content(rows), content(source), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize(
    "make, found",
    [
        (
            lambda: build(static(name="stock")).variables[0],
            r"the weight 'stock/embeddings' of shape \(40, 4\)",
        ),
        (lambda: tf.ones([40, 4]), r"a dense tensor of shape \(40, 4\)"),
        (lambda: tf.Variable(tf.ones([40, 4])), r"a dense tensor of shape \(40, 4\)"),
        (lambda: [[1.0] * 4], "a list"),
    ],
)
def test_what_is_no_weight_of_ours_is_refused_and_changes_nothing(make, found, is_own):
    model = trained(ours(name="emb", optimizer=optimizers.Adagrad(0.1) if is_own else None))
    rows = model.variables[0]
    before = content(rows)
    message = f"rows of layer 'emb': expected a weight of an embedding layer of tf_multitier, found {found}"
    with pytest.raises(TypeError, match=message):
        rows.assign(make())
    for now, expected in zip(content(rows), before, strict=True):
        np.testing.assert_array_equal(now, expected)


def test_a_weight_that_cannot_be_assigned_is_refused_and_changes_nothing():
    rows, fine = trained(ours()).variables[0], trained(ours()).variables[0]
    parts = build(ours(partitions=2)).layers[1]
    before = content(rows)
    with pytest.raises(ValueError, match=r"found the partitioned embedding variable .* one by one"):
        rows.assign(parts.embeddings)
    with pytest.raises(NotImplementedError, match=r"in a tf\.function: call assign\(\) outside"):
        tf.function(lambda: rows.assign(fine))()
    for found, expected in zip(content(rows), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda rows: tf.nn.l2_loss(rows),
        lambda rows: tf.nn.embedding_lookup(rows, [1]),
        lambda rows: keras.ops.transpose(rows),
    ],
)
def test_a_weight_used_as_a_tensor_names_its_layer_and_what_to_do(use):
    rows = build(ours(name="emb")).variables[0]
    message = r"rows of layer 'emb' .*tf\.nn\.embedding_lookup\(layer\.embeddings, ids\)"
    with pytest.raises(NotImplementedError, match=message):
        use(rows)


def test_a_sampled_softmax_over_the_rows_of_a_layer_trains_as_that_of_keras():
    sampled = (
        np.arange(5, dtype="int64"),
        np.full([8, 1], 0.5, "float32"),
        np.full([5], 0.5, "float32"),
    )
    queries = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    labels = np.arange(10, 18).reshape(8, 1)

    def train(layer, optimizer):
        layer.build()
        embeddings = layer.embeddings if isinstance(layer, kt.Embedding) else layer.embeddings.value

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.nn.sampled_softmax_loss(
                    embeddings, tf.zeros([40]), labels, queries, 5, 40, sampled_values=sampled
                )
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return tf.reduce_mean(loss)

        return [float(step()) for _ in range(3)]

    expected = train(static(embeddings_initializer="ones"), sgd(stock=True))
    np.testing.assert_allclose(train(ours("ones"), sgd()), expected, rtol=1e-5)
    assert expected[0] != expected[2]


# ---- optimizers


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="new in Keras 3.15")
def test_an_optimizer_for_each_layer_trains_rows_where_it_can():
    def train(embedding, for_rows, own=keras.optimizers.SGD):
        model = build(embedding)
        chosen = keras.optimizers.OptimizerMap(own(0.05))
        chosen[".*embeddings"] = for_rows
        model.compile(keras.optimizers.MultiOptimizer(chosen), "mse")
        return losses(model)

    expected = train(static(embeddings_initializer="ones"), sgd(stock=True))
    np.testing.assert_allclose(train(ours("ones"), sgd()), expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"found SGD: give the layer"):
        train(ours("ones"), sgd(stock=True))


def test_zeros_that_the_program_made_have_no_rows_and_train_nothing():
    ev = tf_multitier.get_embedding_variable("users", 4)
    optimizer = optimizers.SGD(0.1)
    optimizer.apply_gradients([(tf.zeros([0, 4]), ev)])
    assert int(ev.total_count()) == 0 and int(optimizer.iterations) == 1
    with pytest.raises(TypeError, match=r"expected IndexedSlices of keys, found a dense tensor"):
        optimizer.apply_gradients([(tf.zeros([1, 4]), ev)])


# ---- ends


def test_a_model_that_a_function_deletes_goes_with_its_files_before_the_function_ends(tmp_path):
    tiers = tf_multitier.StorageOption("DRAM_SSDHASH", str(tmp_path / "rows"), [1 << 16])
    option = tf_multitier.EmbeddingVariableOption(storage_option=tiers)
    model = build(ours(ev_option=option))
    model.compile(sgd(), "mse")
    losses(model, epochs=1)
    copies = model.get_weights()
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    loaded.set_weights(copies)
    assert os.listdir(tmp_path / "rows")
    ends = weakref.ref(model), weakref.ref(loaded)
    del model, loaded, copies
    keras.backend.clear_session()
    gc.collect()
    assert [end() for end in ends] == [None, None]
    assert not [files for _, _, files in os.walk(tmp_path / "rows") if files]
