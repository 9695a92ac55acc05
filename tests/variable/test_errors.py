"""Each mistake raises one error that states what was expected and what was found."""

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf

import tf_multitier

v1 = tf.compat.v1


@pytest.fixture
def ev(graph):
    return tf_multitier.get_embedding_variable("ev", 4, initializer=v1.zeros_initializer())


@pytest.fixture
def parted(graph):
    return parts()


@pytest.fixture(name="v")
def fixture_v(world):
    """A variable of the world."""
    return tf_multitier.get_embedding_variable("ev", 4, initializer=v1.zeros_initializer())


def parts(name="parted"):
    return tf_multitier.get_embedding_variable(name, 4, partitioner=v1.fixed_size_partitioner(2))


def refused(error, message):
    return pytest.raises(error, match=message)


# ---- creation


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(name=""), "name of embedding variable: expected a non-empty string, found ''"),
        (dict(embedding_dim=0), "'x': embedding_dim: expected at least 1, found 0"),
        (
            dict(embedding_dim=2**20 + 1),
            "'x': embedding_dim: expected at most 1048576, found 1048577",
        ),
        (dict(embedding_dim=-3), "'x': embedding_dim: expected at least 1, found -3"),
        (dict(embedding_dim=4.0), "'x': embedding_dim: expected an integer, found 4.0"),
        (
            dict(key_dtype=tf.string),
            "'x': key_dtype: expected int64, int32, uint64 or uint32, found string",
        ),
        (
            dict(value_dtype=tf.float64),
            "'x': value_dtype: expected float32, bfloat16, float16; found float64",
        ),
        (dict(initializer=object()), "'x': initializer: expected a TensorFlow initializer"),
        (
            dict(initializer=np.zeros((2, 3))),
            r"'x': initial matrix: expected shape \[N, 4\], found \[2, 3\]",
        ),
        (
            dict(initializer=tf.constant_initializer([1.0, 2.0, 3.0])),
            r"'x': initial matrix: expected shape \[N, 4\], found \[3\]",
        ),
        (
            dict(
                ev_option=tf_multitier.EmbeddingVariableOption(
                    init_option=tf_multitier.InitializerOption(np.ones((3, 4)), 7)
                )
            ),
            "'x': default_value_dim: expected 3, the rows of the initial matrix, found 7",
        ),
        (
            dict(initializer=lambda shape, dtype: tf.ones([3]) * tf.ones(shape)),
            r"'x': initializer: expected values float32 \[4096, 4\] of .*, found \w+: .*3",
        ),
        (
            dict(initializer=v1.random_uniform_initializer(1, 1)),
            "minval < maxval, found minval=1.0 and maxval=1.0",
        ),
        (
            dict(initializer=v1.truncated_normal_initializer(stddev=-1.0)),
            "stddev .*: expected at least 0, found -1.0",
        ),
        (dict(partitioner=3), "'x': partitioner: expected a function or None, found 3"),
        (
            dict(partitioner=v1.fixed_size_partitioner(2, axis=1)),
            r"partitioner: expected \[n, 1\] .*found \[1, 2\]",
        ),
        (
            dict(partitioner=lambda shape, dtype: [2000, 1]),
            r"partitioner: expected \[n, 1\] with n from 1 to 1024, found \[2000, 1\]",
        ),
        (
            dict(partitioner=v1.fixed_size_partitioner(1025)),
            r"'x': partitioner: .*found one that makes more partitions",
        ),
        (dict(regularizer=tf.nn.l2_loss), "unexpected keyword argument 'regularizer'"),
        (
            dict(ev_option="DRAM"),
            "'x': ev_option: expected EmbeddingVariableOption or None, found 'DRAM'",
        ),
    ],
)
def test_creating_with_a_bad_argument(world, arguments, message):
    with refused((ValueError, TypeError), message):
        tf_multitier.get_embedding_variable(**{"name": "x", "embedding_dim": 4, **arguments})


def test_reuse_with_something_else(graph, ev, parted):
    v1.get_variable("ordinary", [3, 4], use_resource=True)
    with v1.variable_scope("", reuse=True):
        with refused(ValueError, r"ev.*shape \(0, 8\).*found shape \(0, 4\)"):
            tf_multitier.get_embedding_variable("ev", 8)
        with refused(
            ValueError, "'ev' exists: key_dtype: expected int32, as specified, found int64"
        ):
            tf_multitier.get_embedding_variable("ev", 4, key_dtype=tf.int32)
        with refused(
            ValueError, "'parted' exists: number of partitions: expected 3, as specified, found 2"
        ):
            tf_multitier.get_embedding_variable(
                "parted", 4, partitioner=v1.fixed_size_partitioner(3)
            )
        with refused(
            ValueError,
            "'ev' exists: filter: expected {'kind': 'counter', 'filter_freq': 3}, as specified, found {}",
        ):
            tf_multitier.get_embedding_variable(
                "ev",
                4,
                ev_option=tf_multitier.EmbeddingVariableOption(
                    filter_option=tf_multitier.CounterFilter(3)
                ),
            )
        with refused(ValueError, "ordinary"):
            tf_multitier.get_embedding_variable("ordinary", 4)
        with refused(ValueError, "missing does not exist"):
            tf_multitier.get_embedding_variable("missing", 4)
    for name in ("ev", "parted"):
        with refused(ValueError, f"{name} already exists"):
            tf_multitier.get_embedding_variable(name, 4)


def test_functions_of_a_graph_are_refused_in_one_sentence(ev):
    def create():
        return tf_multitier.get_embedding_variable("other", 4)

    with refused(
        RuntimeError,
        "get_embedding_variable of a v1 graph: expected a use outside of functions, found one in the tf.function",
    ):
        tf.function(create).get_concrete_function()
    with refused(
        RuntimeError,
        "a lookup of embedding variable 'ev' of a v1 graph: expected a use outside of functions, found one in the tf.function",
    ):
        tf.function(lambda: tf.nn.embedding_lookup(ev, [1])).get_concrete_function()


# ---- lookups


def test_ids_of_another_dtype(world, v):
    with refused(TypeError, "'ev': ids: expected int64, found float32"):
        tf.nn.embedding_lookup(v, [1.0])
    with refused(TypeError, "'ev': ids: expected int64, found string"):
        tf.nn.embedding_lookup(v, tf.constant(["a"]))
    small = tf_multitier.get_embedding_variable("small", 4, key_dtype=tf.int32)
    with refused(TypeError, "'small': ids: expected int32, the key_dtype, found int64"):
        tf.nn.embedding_lookup(small, tf.constant([1], tf.int64))


def test_sparse_ids_of_another_rank_or_kind(world, v):
    cube = tf.SparseTensor([[0, 0, 0]], tf.constant([1], tf.int64), [1, 1, 1])
    with refused(ValueError, "sp_ids: expected rank 2, found rank 3"):
        tf.nn.embedding_lookup_sparse(v, cube, None)
    ids = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    with refused(TypeError, "sp_weights: expected a SparseTensor or None, found list"):
        tf.nn.embedding_lookup_sparse(v, ids, [1.0])
    with refused(ValueError, "combiner: expected 'sum', 'mean' or 'sqrtn', found 'max'"):
        tf.nn.embedding_lookup_sparse(v, ids, None, combiner="max")
    with refused(ValueError, "max_norm: expected None or at least 0, found -1.0"):
        tf.nn.embedding_lookup_sparse(v, ids, None, max_norm=-1.0)


def test_sparse_tensors_of_unequal_lengths(world, v):
    ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 2], tf.int64), [1, 2])
    with refused(ValueError, "sp_weights: expected 2 values, one for each of sp_ids, found 1"):
        tf.nn.embedding_lookup_sparse(v, ids, tf.SparseTensor([[0, 0]], [1.0], [1, 2]))

    def weighted(values):
        ids = tf.SparseTensor([[0, 0], [0, 1]], tf.constant([1, 2], tf.int64), [1, 2])
        return tf.nn.embedding_lookup_sparse(v, ids, tf.SparseTensor(ids.indices, values, [1, 2]))

    def placed(rows):
        ids = tf.SparseTensor(rows, tf.constant([1, 2], tf.int64), [2, 2])
        return tf.nn.embedding_lookup_sparse(v, ids, None)

    weights = np.ones(3, np.float32)
    # Eagerly the lengths are known when the lookup is called.
    with refused((tf.errors.InvalidArgumentError, ValueError), "2.*3|3.*2"):
        world.run(weighted, weights)
    with refused(tf.errors.InvalidArgumentError, "(?i)nondecreasing|order"):
        world.run(placed, np.array([[1, 0], [0, 0]]))
    with refused(tf.errors.InvalidArgumentError, "7"):
        world.run(placed, np.array([[0, 0], [7, 0]]))
    with refused((tf.errors.InvalidArgumentError, ValueError), "3"):
        world.run(placed, np.array([[0, 0], [0, 1], [1, 0]]))


@pytest.mark.parametrize("empty", [[], (), [[], []]])
def test_an_empty_list_is_an_empty_list_of_ids(world, v, empty):
    for e in (v, parts()):
        ask = lambda e=e: (
            e.get_frequency(empty),
            e.get_version(empty),
            tf.nn.embedding_lookup(e, empty),
            e.remove(empty),
        )
        frequencies, versions, values, removed = world.run(ask)
        assert (
            frequencies.shape == versions.shape == np.shape(empty) and frequencies.dtype == np.int64
        )
        assert values.shape == np.shape(empty) + (4,) and removed == 0


def test_a_list_of_parts_names_the_object_to_pass(world, v):
    parted = parts()
    for given in (list(parted), [parted[0]]):
        with refused(
            ValueError,
            "expected the embedding variable 'parted', found only parts of it: pass the object",
        ):
            tf.nn.embedding_lookup(given, [1])
    with refused(
        ValueError,
        "'parted/part_0(:0)?': expected the embedding variable 'parted', found only parts of it",
    ):
        tf.gather(parted[0], [1])
    with refused(ValueError, "params: expected one embedding variable, found a list of 2: ev"):
        tf.nn.embedding_lookup([v, v], [1])


def test_the_gradient_of_a_partitioned_variable_names_its_parts(parted):
    loss = loss_of(parted)
    with refused(
        ValueError,
        r"gradient of embedding variable 'parted': expected its parts, .*: pass list\(variable\)",
    ):
        tf.gradients(loss, [parted])
    assert len(tf.gradients(loss, list(parted))) == 2


@pairwise(
    world=WORLDS,
    parts=[1, 2],
    use=[
        lambda e: tf.convert_to_tensor(e),
        lambda e: e + 1.0,
        lambda e: tf.nn.l2_loss(e),
        lambda e: e.value(),
        lambda e: e.assign([1.0]),
        lambda e: e.read_value(),
        lambda e: v1.assign(e, tf.zeros([0, 4])),
        lambda e: tf.identity(e),
        lambda e: tf.matmul(e, e),
    ],
)
def test_dense_uses(world, use, parts):
    variable = tf_multitier.get_embedding_variable(
        "e", 4, partitioner=v1.fixed_size_partitioner(parts)
    )
    with refused(
        (NotImplementedError, TypeError, AttributeError), "is a hash table and has no dense value"
    ):
        use(variable)


def test_slicing_an_embedding_variable(world, v):
    with refused(NotImplementedError, "slicing it is not possible"):
        v[0]


def test_an_uninitialized_variable_says_what_to_run(ev):
    with v1.Session() as session:
        assert not session.run(ev.is_initialized())
        with refused(
            tf.errors.FailedPreconditionError, "'ev' is not initialized: run its initializer"
        ):
            session.run(tf.nn.embedding_lookup(ev, [1]))
        names = session.run(v1.report_uninitialized_variables())
        assert [n.decode() for n in names] == ["ev"]


def test_a_lookup_in_a_loop_cannot_be_trained(graph, ev):
    total = tf.while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, x + tf.reduce_sum(tf.nn.embedding_lookup(ev, [i]))),
        [0, 0.0],
    )[1]
    with refused(NotImplementedError, "inside a loop is not supported"):
        tf.gradients(total, [ev.handle])


# ---- optimizers


def loss_of(variable):
    return tf.reduce_sum(tf.nn.embedding_lookup(variable, [1, 2]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: v1.train.ProximalGradientDescentOptimizer(0.1),
        lambda: v1.train.ProximalAdagradOptimizer(0.1),
        lambda: v1.train.AdagradDAOptimizer(0.1, v1.train.get_or_create_global_step()),
    ],
)
def test_an_optimizer_without_a_rule(ev, make):
    optimizer = make()
    with refused(
        NotImplementedError,
        f"'ev' cannot be trained by {type(optimizer).__name__}: .*supported: .*AdagradOptimizer",
    ):
        optimizer.minimize(loss_of(ev))


def test_a_subclass_that_changes_sparse_updates_has_no_rule(ev):
    class Mine(v1.train.AdagradOptimizer):
        def _resource_apply_sparse(self, grad, var, indices):
            return tf.no_op()

    class Harmless(v1.train.AdagradOptimizer):
        pass

    with refused(NotImplementedError, "cannot be trained by Mine"):
        Mine(0.1).minimize(loss_of(ev))
    Harmless(0.1).minimize(loss_of(ev))


def sgd(world):
    """An optimizer of the world."""
    is_graph = world.is_graph
    return v1.train.GradientDescentOptimizer(0.1) if is_graph else tf_multitier.optimizers.SGD(0.1)


def test_a_dense_gradient(world, v):
    with refused(
        TypeError,
        "gradient of embedding variable 'ev': expected IndexedSlices of keys, found a dense tensor",
    ):
        sgd(world).apply_gradients([(tf.ones([1, 4]), v)])
    if (
        world.is_graph
    ):  # the optimizers of TensorFlow 2 take a dense gradient without rows for an empty one
        with refused(TypeError, "expected IndexedSlices of keys, found a dense tensor"):
            sgd(world).apply_gradients([(tf.zeros([0, 4]), v)])


def test_a_gradient_of_another_dim_or_length(world, v):
    optimizer = sgd(world)

    def train(values, keys):
        return optimizer.apply_gradients([(tf.IndexedSlices(values, keys), v)])

    either = (tf.errors.InvalidArgumentError, ValueError)  # eagerly the shapes are known at once
    with refused(either, "4.*3|3.*4"):
        world.run(train, np.zeros((1, 3), np.float32), np.array([1]))
    with refused(either, "2|1"):
        world.run(train, np.zeros((1, 4), np.float32), np.array([1, 2]))
    assert world.run(v.total_count) == 0
    with refused(either, "4"):
        optimizer.apply_gradients(
            [(tf.IndexedSlices(tf.zeros([1, 3]), tf.zeros([1], tf.int64)), v)]
        )


def test_expiry_by_steps_needs_a_global_step(graph):
    ev = tf_multitier.get_embedding_variable("old", 4, steps_to_live=5)
    with refused(
        ValueError,
        r"'old': expected a global step for GlobalStepEvict\(steps_to_live=5\), found none",
    ):
        v1.train.GradientDescentOptimizer(0.1).minimize(loss_of(ev))


# ---- import


def test_another_minor_version_of_tensorflow_is_refused_in_one_sentence():
    from tf_multitier._src.tensorflow import library

    built = {"2.20": "for_2_20.so", "2.21": "for_2_21.so"}
    assert library.library_for("2.20.3rc1", built) == "for_2_20.so"
    with refused(
        ImportError,
        r"built for TensorFlow 2\.20, 2\.21 and cannot be used with the installed TensorFlow 2\.2\.0: "
        r"install tensorflow==2\.21\.\*",
    ):
        library.library_for("2.2.0", built)


@pytest.mark.skipif(
    not tf.compat.v1.executing_eagerly_outside_functions(), reason="all calls are in a graph"
)
@pytest.mark.parametrize("parts", [None, 2])
def test_an_eager_call_on_a_variable_of_a_graph_names_the_graph(tmp_path, parts):
    """A program of TensorFlow 2 leaves `with graph.as_default()` too early."""
    v1, prefix = tf.compat.v1, str(tmp_path / "model")
    partitioner = v1.fixed_size_partitioner(parts) if parts else None
    with tf.Graph().as_default():
        users = tf_multitier.get_embedding_variable("users", 4, partitioner=partitioner)
        v1.get_variable("a", [2])  # its own error would come first
        saver, session = v1.train.Saver(), v1.Session()
        session.run(v1.global_variables_initializer())
        saver.save(session, prefix)
    for call in (
        lambda: saver.restore(session, prefix),
        lambda: saver.save(session, prefix),
        lambda: users.restore_from(prefix),
        lambda: users.freeze(prefix),
        lambda: users.is_initialized(),
    ):
        with pytest.raises(RuntimeError, match="'users' of a tf.Graph.*graph.as_default"):
            call()
    session.close()
