"""Columns in a group: the values, variables and training of the columns alone, by one op a group."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from group_util import features
from group_util import NoScope
from group_util import kind
from group_util import normal
from group_util import sparse

import tf_multitier
from tf_multitier import feature_column as fc

v1 = tf.compat.v1
stock = v1.feature_column


def columns(scope):
    """Every kind of dense column, made in `scope(name)`, a context manager."""
    ints = lambda key, **kwargs: fc.categorical_column_with_embedding(key, tf.int64, **kwargs)
    with scope("one"):
        made = [
            fc.embedding_column(ints("a"), 3, combiner="sqrtn", initializer=normal(1)),
            stock.embedding_column(
                fc.categorical_column_with_embedding("b"), 4, combiner="sum", initializer=normal(2)
            ),
            fc.embedding_column(
                fc.weighted_categorical_column(ints("w"), "weights"), 3, initializer=normal(3)
            ),
            stock.embedding_column(
                stock.categorical_column_with_identity("stock", 10), 2, initializer=normal(4)
            ),
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_hash_bucket("hashed", 5),
                3,
                "mean",
                initializer=normal(6),
            ),
            fc.numeric_column("price"),
        ]
    with scope("two"):
        made += fc.shared_embedding_columns(
            [ints("c", partition_num=2), ints("d", partition_num=2)], 5, initializer=normal(5)
        )
        made += stock.shared_embedding_columns(
            [stock.categorical_column_with_identity(key, 10) for key in ("first", "second")],
            3,
            "sum",
            initializer=normal(7),
        )
        made += [
            stock.embedding_column(
                stock.categorical_column_with_vocabulary_list("words", ["red", "blue"]),
                2,
                initializer=normal(8),
            )
        ]  # "no" is id -1, which TensorFlow drops
    return made


def built(scope, layer, gives_outputs=True):
    """(values before, values after 20 Adagrad steps, {variable: shape}, {type of a group's op: number}) of a new graph."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.logging.set_verbosity(v1.logging.ERROR)
        by_column, variables = {}, {}
        more = {"cols_to_output_tensors": by_column} if gives_outputs else {}
        out = layer(features(), columns(scope), cols_to_vars=variables, **more)
        train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        before = session.run([out, list(by_column.values())])
        if gives_outputs:
            np.testing.assert_array_equal(before[0], np.concatenate(before[1], 1))
        for _ in range(20):
            session.run(train)
        names = {v.name: v.shape.as_list() for v in v1.global_variables()}
        owned = {column.name: sorted(v.name for v in its) for column, its in variables.items()}
        return (
            before[0],
            session.run(out),
            names,
            owned,
            collections.Counter(
                op.type for op in graph.get_operations() if kind(op) == "MultitierGroupLookup"
            ),
        )


@pytest.mark.parametrize(
    "layer, scope, groups",
    [
        (stock.input_layer, fc.group_embedding_column_scope, 2),
        (fc.input_layer, fc.group_embedding_column_scope, 2),
        (fc.input_layer, NoScope, 1),
        (
            stock.input_layer,
            lambda name: fc.group_embedding_column_scope("the same" if name else name),
            1,
        ),
    ],
)
def test_groups_have_the_bits_and_names_of_columns_alone(layer, scope, groups):
    expected = built(NoScope, stock.input_layer)
    for gives_outputs in (True, False):  # without, neighbours of a group are one tensor
        before, after, names, owned, ops = built(scope, layer, gives_outputs)
        assert max(ops.values()) == groups and not expected[4]
        np.testing.assert_array_equal(before, expected[0])
        np.testing.assert_array_equal(after, expected[1])
        assert names == expected[2]
        assert owned == expected[3]


def test_neighbours_of_a_group_are_one_tensor(graph):
    ids = lambda key: fc.categorical_column_with_embedding(key, tf.int64)
    made = [
        fc.embedding_column(ids(key), dim)
        for key, dim in (("a", 2), ("c", 3), ("w", 4), ("x", 5), ("y", 6))
    ]
    fed = {
        **features(),
        "x": tf.SparseTensor([[0, 0, 0]], tf.constant([1], tf.int64), [3, 1, 2]),
        "y": sparse([[1], [2], [3]]),
    }
    fc.input_layer(fed, made[:3])
    alone = [op for op in graph.get_operations() if kind(op) == "MultitierGroupLookup"]
    assert [op.get_attr("joins") for op in alone] == [[3]]
    assert not {"ConcatV2", "Reshape"} & {
        kind(op) for op in graph.get_operations() if op.name.startswith("input_layer/")
    }
    # In the order of names, "price" is between "c" and "w". "x" has ids of rank 3.
    out = fc.input_layer(fed, made + [fc.numeric_column("price")])
    both = [op for op in graph.get_operations() if kind(op) == "MultitierGroupLookup"]
    assert out.shape.as_list() == [3, 21] and [op.get_attr("joins") for op in both] == [
        [3],
        [2, 1, 1, 1],
    ]
    fed["y"] = sparse([[1], [2]])
    with pytest.raises(ValueError, match="Batch size"):
        fc.input_layer(fed, [made[0], made[4]])
    fed["c"] = v1.sparse_placeholder(
        tf.int64, [None, None]
    )  # compatible with both neighbours, which are not compatible with each other
    with pytest.raises(ValueError, match="Batch size"):
        fc.input_layer(fed, [made[0], made[1], made[4]])


def test_columns_of_several_ops_are_named_where_their_batch_sizes_differ(graph):
    ids = {key: v1.sparse_placeholder(tf.int64, [None, None]) for key in "abc"}
    price = v1.placeholder(tf.float32, [None, 1])
    column = lambda key: fc.embedding_column(fc.categorical_column_with_embedding(key, tf.int64), 2)
    made = [column("a"), column("b")]
    with fc.group_embedding_column_scope("other"):
        made.append(column("c"))
    net = fc.input_layer({**ids, "price": price}, [*made, fc.numeric_column("price")])
    assert [kind(op) for op in graph.get_operations()].count("MultitierCheckSideBySide") == 1
    rows = lambda number: v1.SparseTensorValue(
        np.zeros([0, 2], np.int64), np.zeros([0], np.int64), [number, 1]
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        feeds = lambda a, b, c, p: {
            ids["a"]: rows(a),
            ids["b"]: rows(b),
            ids["c"]: rows(c),
            price: np.zeros([p, 1]),
        }
        assert session.run(net, feeds(2, 2, 2, 2)).shape == (2, 7)
        as_a = "expected batch size 2 to match column 'a_embedding', .* found batch size"
        for sizes, message in [
            ((2, 2, 3, 2), f"column 'c_embedding': {as_a} 3"),
            ((2, 2, 2, 1), f"column 'price': {as_a} 1"),
            (
                (2, 3, 2, 2),
                "member 1 .*b_embedding.*: expected the leading dimensions of .* to match member 0 .*a_embedding",
            ),
        ]:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(net, feeds(*sizes))


def test_max_norm_clips_in_a_group_as_alone():
    """Forward to the bit; the gradient of clipping is the op's own, equal to TensorFlow's up to rounding."""
    results = []
    for layer in (fc.input_layer, stock.input_layer):
        with tf.Graph().as_default(), v1.Session() as session:
            made = [
                fc.embedding_column(
                    fc.categorical_column_with_embedding("a", tf.int64),
                    3,
                    initializer=normal(1),
                    max_norm=0.8,
                ),
                fc.embedding_column(
                    fc.categorical_column_with_embedding("c", tf.int64), 3, initializer=normal(2)
                ),
            ]
            out = layer(features(), made)
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
            session.run(v1.global_variables_initializer())
            before = session.run(out)
            for _ in range(5):
                session.run(train)
            results.append((before, session.run(out)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


def test_a_scope_without_a_name_is_a_group_of_its_own_and_limits_cut_it(graph):
    made = []
    for limit in (10, 2):
        with fc.group_embedding_column_scope(params_num_per_group=limit):
            made += [
                fc.embedding_column(
                    fc.categorical_column_with_embedding(f"f{limit}{i}", tf.int64), 2
                )
                for i in range(4)
            ]
    fed = {column.categorical_column.key: sparse([[1]]) for column in made}
    assert stock.input_layer(fed, iter(made)).shape.as_list() == [1, 16]
    sizes = sorted(
        len(op.get_attr("members"))
        for op in graph.get_operations()
        if kind(op) == "MultitierGroupLookup"
    )
    assert sizes == [2, 2, 4]


def test_the_input_layer_object_and_dense_columns_alone_work(graph):
    with fc.group_embedding_column_scope("g"):
        made = [
            fc.embedding_column(
                fc.categorical_column_with_embedding(key, tf.int64), 2, initializer=normal(1)
            )
            for key in "cd"
        ]
    from tensorflow.python.feature_column import feature_column as v1_columns

    layer = v1_columns.InputLayer(made)
    first, second = (
        layer(features()),
        layer(features()),
    )  # the template's second call takes the same variables
    assert len(tf_multitier.embedding_variables()) == 2
    assert fc.input_layer(features(), fc.numeric_column("price")).shape.as_list() == [3, 1]
    with pytest.raises(ValueError, match="dense columns"):
        fc.input_layer(features(), [made[0], fc.categorical_column_with_embedding("a", tf.int64)])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(*session.run([first, second]))


def test_columns_over_static_variables_alone_are_grouped_too(graph):
    """To stock: the rounding of another order of summation, in bags of 25; partitioned, and restored from a checkpoint."""
    rows = np.random.default_rng(1).integers(0, 50, (4, 25))
    make = lambda: [
        stock.embedding_column(
            stock.categorical_column_with_identity(key, 50), 8, initializer=normal(1)
        )
        for key in ("x", "y")
    ]
    outs = []
    for layer in (fc.input_layer, stock.input_layer):
        with v1.variable_scope(None, "tower", partitioner=v1.fixed_size_partitioner(3)):
            outs.append(layer({"x": rows, "y": rows[:, ::-1]}, make()))
    assert [kind(op) for op in graph.get_operations()].count("MultitierGroupLookup") == 1
    train = v1.train.AdagradOptimizer(0.1).minimize(
        tf.add_n([tf.reduce_sum(tf.square(out - 0.5)) for out in outs])
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            np.testing.assert_allclose(*session.run(outs), rtol=1e-4, atol=1e-5)
            session.run(train)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_static_column_in_a_group_has_the_bits_of_a_group_of_its_own(combiner):
    results = []
    for limit in (10, 1):
        with tf.Graph().as_default(), v1.Session() as session:
            weights = sparse(
                np.random.default_rng(2).uniform(-0.5, 2, (4, 25)).tolist(), np.float32
            )
            rows = sparse(np.random.default_rng(1).integers(0, 50, (4, 25)).tolist())
            with fc.group_embedding_column_scope("g", params_num_per_group=limit):
                ids = [stock.categorical_column_with_identity(key, 50) for key in ("x", "y")]
                made = [
                    stock.embedding_column(ids[0], 8, combiner, initializer=normal(1)),
                    stock.embedding_column(
                        stock.weighted_categorical_column(ids[1], "w"),
                        8,
                        combiner,
                        initializer=normal(2),
                    ),
                    fc.embedding_column(
                        fc.categorical_column_with_embedding("z", tf.int64),
                        8,
                        combiner,
                        initializer=normal(3),
                    ),
                ]
            out = stock.input_layer({"x": rows, "y": rows, "z": rows, "w": weights}, made)
            train = v1.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(tf.square(out - 0.5)))
            session.run(v1.global_variables_initializer())
            before = session.run(out)
            for _ in range(5):
                session.run(train)
            results.append((before, session.run(out)))
    np.testing.assert_array_equal(results[0], results[1])


def test_a_column_that_starts_from_a_checkpoint_is_grouped(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable(
            "trained", initializer=np.arange(6, dtype=np.float32).reshape(3, 2)
        )
        session.run(variable.initializer)
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default() as graph, v1.Session() as session:
        column = stock.embedding_column(
            stock.categorical_column_with_identity("x", 3),
            2,
            ckpt_to_load_from=path,
            tensor_name_in_ckpt="trained",
        )
        out = fc.input_layer({"x": np.array([[2], [0]])}, [column])
        session.run(v1.global_variables_initializer())
        assert session.run(out).tolist() == [[4, 5], [0, 1]]
        assert "MultitierGroupLookup" in [kind(op) for op in graph.get_operations()]


def test_ids_of_unknown_rank_are_looked_up_alone(graph):
    ids = {key: v1.sparse_placeholder(tf.int64) for key in "ax"}
    made = [
        fc.embedding_column(
            fc.categorical_column_with_embedding("a", tf.int64),
            2,
            initializer=v1.ones_initializer(),
        ),
        stock.embedding_column(
            stock.categorical_column_with_identity("x", 3), 2, initializer=v1.ones_initializer()
        ),
    ]
    out = fc.input_layer(ids, made)
    assert "MultitierGroupLookup" not in [kind(op) for op in graph.get_operations()]
    fed = v1.SparseTensorValue([[0, 0]], [1], [2, 1])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run(out, dict.fromkeys(ids.values(), fed)).tolist() == [[1] * 4, [0] * 4]


@pytest.mark.parametrize("place", ["ps", "gpu"])
def test_static_variables_that_one_op_does_not_reach_are_looked_up_alone(graph, place):
    made = [
        stock.embedding_column(stock.categorical_column_with_identity(key, 50), 2) for key in "xy"
    ]
    where = v1.train.replica_device_setter(2) if place == "ps" else "/gpu:0"
    with (
        v1.device(where),
        v1.variable_scope(
            "net", partitioner=v1.fixed_size_partitioner(2) if place == "ps" else None
        ),
    ):
        out = fc.input_layer({key: np.array([[1]]) for key in "xy"}, made)
    assert out.shape.as_list() == [1, 4] and "MultitierGroupLookup" not in [
        kind(op) for op in graph.get_operations()
    ]


@pytest.mark.parametrize("layer", [fc.input_layer, stock.input_layer])
def test_static_columns_work_in_a_wrapped_function_as_ever(layer):
    """Grouped lookups do not work in v1.wrap_function, with which TensorFlow runs a v1 model; static columns do."""
    with fc.group_embedding_column_scope("g"):
        column = stock.embedding_column(
            stock.categorical_column_with_identity("x", 3), 2, initializer=v1.ones_initializer()
        )
    with tf.Graph().as_default(), v1.Session() as session:
        model = v1.wrap_function(
            lambda x: layer({"x": x}, [column]), [tf.TensorSpec([None, 1], tf.int64)]
        )
        out = model(tf.constant([[1], [2]], tf.int64))
        session.run([v1.global_variables_initializer(), *(v.initializer for v in model.variables)])
        assert session.run(out).tolist() == [[1, 1], [1, 1]]


def test_only_columns_made_in_a_scope_are_of_its_group(graph):
    with fc.group_embedding_column_scope("g"):
        inside = stock.embedding_column(stock.categorical_column_with_identity("x", 3), 2)
        with fc.group_embedding_column_scope("h"):
            inner = stock.embedding_column(stock.categorical_column_with_identity("z", 3), 2)
        again = stock.embedding_column(stock.categorical_column_with_identity("u", 3), 2)
    outside = stock.embedding_column(stock.categorical_column_with_identity("y", 3), 2)
    stock.input_layer({key: np.array([[1]]) for key in "uxyz"}, [inside, again, inner, outside])
    assert sorted(
        len(op.get_attr("members"))
        for op in graph.get_operations()
        if kind(op) == "MultitierGroupLookup"
    ) == [1, 2]
