"""Feature columns over embedding variables: equality with lookups by hand, training, names."""

import os

import numpy as np
import pytest
import tensorflow as tf
from column_util import NORMAL
from column_util import count
from column_util import embedded
from column_util import ints
from column_util import only_variable
from column_util import rows_by_hand
from column_util import run
from column_util import sequence
from column_util import train
from group_util import sparse

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
stock = v1.feature_column


# --- Equality with lookups by hand, and ids ------------------------------------------------------

IDS = [[3, 5, 5], [], [-1], [0, 2**63 - 1, -(2**63)]]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_input_layer_of_sparse_ids_equals_rows_pooled_by_hand(session, combiner):
    net = stock.input_layer({"a": sparse(IDS)}, [embedded(ints("a"), combiner=combiner)])
    assert net.shape.as_list()[1:] == [3]
    found = run(session, net)
    for row, ids in zip(found, IDS):
        if not ids:
            np.testing.assert_array_equal(row, np.zeros(3))
            continue
        values = rows_by_hand(session, only_variable(), ids)
        assert np.abs(values).min() > 0
        divisor = {"sum": 1.0, "mean": len(ids), "sqrtn": np.sqrt(len(ids))}[combiner]
        np.testing.assert_allclose(row, values.sum(axis=0) / divisor, rtol=1e-6, atol=1e-6)


def test_training_through_input_layer_moves_each_id_once_by_the_sum_of_its_gradients(session):
    net = stock.input_layer({"a": sparse(IDS)}, [embedded(ints("a"), combiner="sum")])
    variable = only_variable()
    session.run(v1.global_variables_initializer())
    keys = [3, 5, -1, 0, 2**63 - 1, -(2**63)]
    before = rows_by_hand(session, variable, keys + [9])
    train(session, tf.reduce_sum(net))
    after = rows_by_hand(session, variable, keys + [9])
    moved = np.array([1, 2, 1, 1, 1, 1, 0])[:, None]
    np.testing.assert_array_equal(after, before - moved.astype(np.float32))
    assert count(session, variable) == len(keys)
    np.testing.assert_array_equal(session.run(variable.get_frequency(keys + [9])), moved[:, 0])


def test_reading_a_column_creates_no_rows(session):
    run(session, stock.input_layer({"a": sparse(IDS)}, [embedded(ints("a"))]))
    assert count(session, only_variable()) == 0


def test_strings_hash_to_64_bits(session):
    net = stock.input_layer(
        {"s": tf.constant(["x", "y"])}, [embedded(fc.categorical_column_with_embedding("s"))]
    )
    found = run(session, net)
    ids = session.run(tf.strings.to_hash_bucket_fast(["x", "y"], 2**63 - 1))
    assert ids.max() > 2**40
    np.testing.assert_array_equal(found, rows_by_hand(session, only_variable(), ids))


@pytest.mark.parametrize("dtype", [tf.int8, tf.int32, tf.uint32, tf.int64])
def test_integer_features_of_any_width_are_the_same_ids(session, dtype):
    column = fc.categorical_column_with_embedding("a", dtype=dtype)
    found = run(
        session, stock.input_layer({"a": tf.constant([[7], [100]], dtype)}, [embedded(column)])
    )
    np.testing.assert_array_equal(found, rows_by_hand(session, only_variable(), [7, 100]))


@pytest.mark.parametrize(
    "ignore, kept",
    [
        ({}, [[7], [0]]),
        (dict(ignore_value=None), [[7, -1], [-1, 0]]),
        (dict(ignore_value=0), [[7, -1], [-1]]),
        (dict(ignore_value=-1), [[7], [0]]),
    ],
)
def test_dense_ids_drop_padding_unless_ignore_value_differs(session, ignore, kept):
    dense = tf.constant([[7, -1], [-1, 0]], tf.int64)
    net = stock.input_layer({"a": dense}, [embedded(ints("a", **ignore), combiner="sum")])
    found = run(session, net)
    for row, ids in zip(found, kept):
        expected = rows_by_hand(session, only_variable(), ids).sum(axis=0)
        np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "ignore, empty_is_kept",
    [({}, False), (dict(ignore_value=None), True), (dict(ignore_value="x"), True)],
)
def test_dense_strings_drop_the_empty_one_unless_ignore_value_differs(
    session, ignore, empty_is_kept
):
    column = fc.categorical_column_with_embedding("s", **ignore)
    found = run(session, stock.input_layer({"s": tf.constant(["", "z"])}, [embedded(column)]))
    assert (np.abs(found).sum(axis=1) > 0).tolist() == [empty_is_kept, True]


def test_a_batch_of_no_rows_gives_no_rows(session):
    ids = v1.placeholder(tf.int64, [None])
    net = stock.input_layer({"a": ids}, [embedded(ints("a"))])
    session.run(v1.global_variables_initializer())
    assert session.run(net, {ids: []}).shape == (0, 3)


# --- Weighted columns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [fc.weighted_categorical_column, stock.weighted_categorical_column]
)
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_weighted_column_equals_the_weighted_sum_by_hand(session, make, combiner):
    ids = sparse([[4, -9], [6]])
    weights = tf.SparseTensor(ids.indices, [0.5, 2.0, 3.0], ids.dense_shape)
    column = make(ints("a"), "w")
    net = stock.input_layer({"a": ids, "w": weights}, [embedded(column, combiner=combiner)])
    found = run(session, net)
    rows = rows_by_hand(session, only_variable(), [4, -9, 6])
    expected = np.stack([0.5 * rows[0] + 2 * rows[1], 3 * rows[2]])
    if combiner == "mean":
        expected /= [[2.5], [3.0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    train(session, tf.reduce_sum(net))
    moved = rows - rows_by_hand(session, only_variable(), [4, -9, 6])
    by = [0.5, 2, 3] if combiner == "sum" else [0.5 / 2.5, 2 / 2.5, 1.0]
    np.testing.assert_allclose(moved, np.tile(np.array(by)[:, None], (1, 3)), rtol=1e-5)


def test_dense_weights_stand_by_their_ids_even_where_zero_or_padded(session):
    features = {
        "a": tf.constant([[4, 5], [-1, 6]], tf.int64),
        "w": tf.constant([[0.0, 2.0], [9.0, 3.0]]),
    }
    column = fc.weighted_categorical_column(ints("a"), "w")
    found = run(session, stock.input_layer(features, [embedded(column, combiner="sum")]))
    rows = rows_by_hand(session, only_variable(), [5, 6])
    np.testing.assert_allclose(found, rows * [[2.0], [3.0]], rtol=1e-6)


@pytest.mark.parametrize("shape", [[5, 1], [5], [1, 5]])
@pytest.mark.parametrize("is_known", [True, False])
def test_dense_weights_of_another_shape_than_the_sparse_ids_are_in_their_order(
    session, shape, is_known
):
    ids = sparse([[4, 4], [5], [6, 7]])  # [3, 2]
    values = np.arange(1, 6, dtype=np.float32).reshape(shape)
    weights = (
        tf.constant(values)
        if is_known
        else v1.placeholder_with_default(values, [None] * len(shape))
    )
    features = {"a": ids, "w": weights}
    column = fc.weighted_categorical_column(ints("a"), "w")
    found = run(session, stock.input_layer(features, [embedded(column, combiner="sum")]))
    rows = rows_by_hand(session, only_variable(), [4, 5, 6, 7])
    np.testing.assert_allclose(
        found, [rows[0] * 3, rows[1] * 3, rows[2] * 4 + rows[3] * 5], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("is_known", [True, False])
def test_dense_weights_of_the_shape_of_the_sparse_ids_are_at_their_places(session, is_known):
    values = np.array([[2.0, 9.0], [3.0, 4.0]], np.float32)
    weights = tf.constant(values) if is_known else v1.placeholder_with_default(values, [None, None])
    column = fc.weighted_categorical_column(ints("a"), "w")
    found = run(
        session,
        stock.input_layer(
            {"a": sparse([[4], [5, 6]]), "w": weights}, [embedded(column, combiner="sum")]
        ),
    )
    rows = rows_by_hand(session, only_variable(), [4, 5, 6])
    np.testing.assert_allclose(
        found, [rows[0] * 2, rows[1] * 3 + rows[2] * 4], rtol=1e-6, atol=1e-6
    )


def test_dense_weights_of_another_number_than_the_ids_are_refused(session):
    column = fc.weighted_categorical_column(ints("a"), "w")
    net = stock.input_layer(
        {
            "a": sparse([[4], [5, 6]]),
            "w": v1.placeholder_with_default([[1.0], [2.0]], [None, None]),
        },
        [embedded(column)],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many weights as keys"):
        run(session, net)


def test_weighted_column_over_a_stock_column_is_the_stock_one():
    identity = stock.categorical_column_with_identity("a", 10)
    assert type(fc.weighted_categorical_column(identity, "w")) is type(
        stock.weighted_categorical_column(identity, "w")
    )


def test_weights_of_another_dtype_are_refused(session):
    column = fc.weighted_categorical_column(ints("a"), "w")
    with pytest.raises(
        ValueError, match="'a_weighted_by_w': expected float32 weights, found float64"
    ):
        stock.input_layer(
            {"a": sparse([[1]]), "w": tf.constant([[1.0]], tf.float64)}, [embedded(column)]
        )


# --- Shared columns ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [fc.shared_embedding_columns, stock.shared_embedding_columns])
def test_shared_columns_read_and_train_one_variable(session, make):
    columns = make([ints("a"), ints("b")], 2, initializer=NORMAL, combiner="sum")
    net = stock.input_layer({"a": sparse([[1, 2]]), "b": sparse([[2]])}, columns)
    variable = only_variable()
    assert variable.variable_name == "input_layer/a_b_shared_embedding/embedding_weights"
    found = run(session, net)
    rows = rows_by_hand(session, variable, [1, 2])
    np.testing.assert_allclose(found, [np.concatenate([rows[0] + rows[1], rows[1]])], rtol=1e-6)
    train(session, tf.reduce_sum(net))
    np.testing.assert_array_equal(
        rows_by_hand(session, variable, [1, 2]), rows - np.float32([[1], [2]])
    )


def test_shared_columns_share_over_input_layers(session):
    columns = fc.shared_embedding_columns([ints("a"), ints("b")], 2, initializer=NORMAL)
    features = {"a": sparse([[1]]), "b": sparse([[1]])}
    first = stock.input_layer(features, columns[:1])
    second = stock.input_layer(features, columns[1:])
    only_variable()
    first, second = run(session, [first, second])
    np.testing.assert_array_equal(first, second)


def test_shared_columns_with_unlike_options_are_refused():
    counter = tf_multitier.EmbeddingVariableOption(filter_option=tf_multitier.CounterFilter(3))
    with pytest.raises(ValueError, match="'b': expected ev_option and partition_num of 'a'"):
        fc.shared_embedding_columns([ints("a"), ints("b", ev_option=counter)], 2)


def test_making_shared_columns_leaves_later_variables_and_scopes_alone(session):
    with v1.variable_scope("outer") as scope:
        stock.shared_embedding_columns([ints("a"), ints("c")], 2)
        plain = v1.get_variable("plain", [4, 2])
        assert scope.custom_getter is None
        with v1.variable_scope("inner"):
            net = stock.input_layer({"b": sparse([[1]])}, [embedded(ints("b", partition_num=2))])
    assert not tf_multitier.is_embedding_variable(plain)
    assert only_variable().num_partitions == 2
    assert run(session, net).shape == (1, 3)


# --- Sequence columns ----------------------------------------------------------------------------


def test_sequence_input_layer_equals_rows_by_hand_with_lengths(session):
    net, lengths = fc.sequence_input_layer(
        {"a": sparse([[1, -1, 3], [], [4]])}, [embedded(sequence("a"), 2)]
    )
    found, lengths = run(session, [net, lengths])
    rows = rows_by_hand(session, only_variable(), [1, -1, 3, 4])
    expected = np.zeros((3, 3, 2), np.float32)
    expected[0], expected[2, 0] = rows[:3], rows[3]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(lengths, [3, 0, 1])


def test_training_through_a_sequence_column_moves_its_ids(session):
    net, _ = fc.sequence_input_layer({"a": sparse([[1, 1], [4]])}, [embedded(sequence("a"), 2)])
    session.run(v1.global_variables_initializer())
    before = rows_by_hand(session, only_variable(), [1, 4])
    train(session, tf.reduce_sum(net))
    np.testing.assert_array_equal(
        rows_by_hand(session, only_variable(), [1, 4]), before - np.float32([[2], [1]])
    )
    assert count(session, only_variable()) == 2


def test_sequence_input_layer_mixes_with_stock_and_shared_columns_in_order_of_names(session):
    features = {
        "a": sparse([[1, 2], [3]]),
        "b": sparse([[2, 0], [1]]),
        "price": tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [0.5, 0.25, 4.0], [2, 2]),
    }
    [shared] = fc.shared_embedding_columns([sequence("a")], 2, initializer=NORMAL)
    one_hot = fc.indicator_column(fc.sequence_categorical_column_with_identity("b", 3))
    net, lengths = fc.sequence_input_layer(
        features, [fc.sequence_numeric_column("price"), one_hot, shared]
    )
    found, lengths = run(session, [net, lengths])
    rows = rows_by_hand(session, only_variable(), [1, 2, 3])
    np.testing.assert_array_equal(found[..., :2], [rows[:2], [rows[2], [0, 0]]])
    np.testing.assert_array_equal(found[..., 2:5], [[[0, 0, 1], [1, 0, 0]], [[0, 1, 0], [0, 0, 0]]])
    np.testing.assert_array_equal(found[..., 5], [[0.5, 0.25], [4, 0]])
    np.testing.assert_array_equal(lengths, [2, 1])


def test_sequence_columns_of_unlike_lengths_fail_when_run(session):
    net, _ = fc.sequence_input_layer(
        {"a": sparse([[1, 2]] * 2), "b": sparse([[1, 2], [3]])},
        [embedded(sequence("a")), embedded(sequence("b"))],
    )
    session.run(v1.global_variables_initializer())
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="columns a_embedding and b_embedding differ"
    ):
        session.run(net)


def test_sequence_input_layer_refuses_what_is_no_sequence(session):
    with pytest.raises(ValueError, match="feature_columns: expected sequence dense columns"):
        fc.sequence_input_layer({}, [fc.numeric_column("x")])
    with pytest.raises(
        ValueError, match="feature_columns: expected at least one column, found none"
    ):
        fc.sequence_input_layer({}, [])
    with pytest.raises(
        ValueError, match="feature_columns: expected distinct names, found 'a_embedding' twice"
    ):
        fc.sequence_input_layer({}, [embedded(sequence("a")), embedded(sequence("a"))])
    with pytest.raises(ValueError, match="must not be of type"):
        stock.input_layer({"a": sparse([[1]])}, [embedded(sequence("a"))])


# --- Beside TensorFlow's own columns -------------------------------------------------------------


def test_input_layer_mixes_with_stock_columns_in_order_of_names(session):
    features = {
        "a": sparse([[1], [2]]),
        "c": tf.constant([[0], [1]], tf.int64),
        "b": tf.constant([1.5, 2.5]),
        "d": tf.constant(["u", "v"]),
    }
    net = stock.input_layer(
        features,
        [
            fc.indicator_column(fc.categorical_column_with_identity("c", 2)),
            fc.embedding_column(fc.categorical_column_with_hash_bucket("d", 10), 2),
            fc.numeric_column("b"),
            embedded(ints("a")),
        ],
    )
    found = run(session, net)
    np.testing.assert_array_equal(found[:, :3], rows_by_hand(session, only_variable(), [1, 2]))
    np.testing.assert_array_equal(found[:, 3:6], [[1.5, 1, 0], [2.5, 0, 1]])
    assert {v.op.name: v.shape.as_list() for v in v1.global_variables()} == {
        "input_layer/a_embedding/embedding_weights": [0, 3],
        "input_layer/d_embedding/embedding_weights": [10, 2],
    }


def test_crossed_column_over_our_ids_is_the_stock_cross(session):
    def cross(column):
        crossed = fc.crossed_column([column, "s"], 1000)
        return stock.linear_model(
            {"a": tf.constant([[1], [2]], tf.int64), "s": tf.constant([["x"], ["y"]])}, [crossed]
        )

    ours, theirs = cross(ints("a")), cross(fc.categorical_column_with_identity("a", 5))
    weights = [v for v in v1.global_variables() if v.shape.as_list() == [1000, 1]]
    assert len(weights) == 2 and not tf_multitier.embedding_variables()
    session.run(v1.global_variables_initializer())
    values = np.arange(1000, dtype=np.float32)[:, None]
    for variable in weights:
        variable.load(values, session)
    ours, theirs = session.run([ours, theirs])
    np.testing.assert_array_equal(ours, theirs)
    assert (ours > 0).all()


def test_parse_example_spec_covers_our_columns(session):
    weighted = fc.weighted_categorical_column(ints("n"), "w")
    columns = [
        embedded(fc.categorical_column_with_embedding("s")),
        embedded(weighted),
        fc.numeric_column("x"),
    ]
    spec = fc.make_parse_example_spec(columns)
    assert {key: (type(value).__name__, value.dtype) for key, value in spec.items()} == {
        "s": ("VarLenFeature", tf.string),
        "n": ("VarLenFeature", tf.int64),
        "w": ("VarLenFeature", tf.float32),
        "x": ("FixedLenFeature", tf.float32),
    }
    example = tf.train.Example()
    example.features.feature["s"].bytes_list.value.append(b"z")
    example.features.feature["n"].int64_list.value.extend([-1, 2])
    example.features.feature["w"].float_list.value.extend([1.0, 2.0])
    example.features.feature["x"].float_list.value.append(0.5)
    features = v1.parse_example([example.SerializeToString()], spec)
    assert run(session, stock.input_layer(features, columns)).shape == (1, 7)


# --- Names and refusals --------------------------------------------------------------------------


def test_module_has_tensorflows_names_and_ours():
    missing = [name for name in dir(stock) if not name.startswith("_") and not hasattr(fc, name)]
    assert missing == []
    assert sorted(fc.__all__) == fc.__all__
    for name in fc.__all__:
        assert callable(getattr(fc, name))


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(key=3), "key: expected a non-empty string, found 3"),
        (
            dict(key="a", dtype=tf.float32),
            "'a': dtype: expected tf.string or an integer type, found float32",
        ),
        (dict(key="a", partition_num=0), "'a': partition_num: expected at least 1, found 0"),
    ],
)
def test_bad_arguments_of_a_column_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fc.categorical_column_with_embedding(**kwargs)


def test_feature_of_another_dtype_is_refused(session):
    with pytest.raises(ValueError, match="'a': expected string features, found int64"):
        stock.input_layer(
            {"a": sparse([[1]])}, [embedded(fc.categorical_column_with_embedding("a"))]
        )
    with pytest.raises(ValueError, match="'a': expected int64 features, found string"):
        stock.input_layer({"a": tf.constant(["x"])}, [embedded(ints("a"))])


def test_indicator_column_is_refused(session):
    with pytest.raises(ValueError, match="found 'a', which takes every 64-bit id"):
        fc.indicator_column(ints("a"))


def test_shared_embeddings_of_tensorflow_2_is_refused(session):
    with pytest.raises(NotImplementedError, match="column 'a' takes every 64-bit id"):
        tf.feature_column.shared_embeddings([ints("a")], 2)


@pytest.mark.skipif(
    os.environ.get("TF_MULTITIER_TEST_BEHAVIOR") == "v1",
    reason="eager execution is off in v1 behaviour",
)
@pytest.mark.parametrize(
    "layer",
    [
        lambda f, c: stock.input_layer(f, [embedded(c)]),
        lambda f, c: stock.linear_model(f, [c]),
        lambda f, c: stock.linear_model(f, [fc.weighted_categorical_column(c, "w")]),
        lambda f, c: stock.input_layer(f, [embedded(fc.weighted_categorical_column(c, "w"))]),
    ],
)
@pytest.mark.parametrize("parts", [None, 2])
def test_eager_layers_are_refused_in_one_sentence(layer, parts):
    features = {"a": tf.constant([[1], [2]], tf.int64), "w": tf.ones([2, 1])}
    with pytest.raises(
        RuntimeError,
        match="of an embedding variable works in graphs and Sessions only, not eagerly: call",
    ):
        layer(features, ints("a", partition_num=parts))


def test_a_variable_of_no_rows_that_is_not_a_columns_stays_ordinary(session):
    with v1.variable_scope("scope"):
        assert ints("a")._num_buckets == 0
        plain = v1.get_variable("plain", [0, 3])
        assert not tf_multitier.is_embedding_variable(plain)
        assert not tf_multitier.is_embedding_variable(v1.get_variable("weights", [0, 3]))
    assert tf_multitier.embedding_variables() == []


def test_columns_are_values():
    option = tf_multitier.EmbeddingVariableOption()
    assert ints("a", ev_option=option) == ints("a", ev_option=option)
    assert hash(ints("a", ev_option=option)) == hash(ints("a", ev_option=option))
    assert ints("a") != ints("b") and ints("a") != ints("a", partition_num=2)
    assert {embedded(ints("a")): 1}[embedded(ints("a"))] == 1
