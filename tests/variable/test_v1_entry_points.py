"""Functions of tf.compat.v1 that take variables, gradients or savers: each works with embedding variables or refuses them."""

import forks
import numpy as np
import pytest
from pairs import pairwise
import tensorflow as tf
from group_util import sparse
from variable_util import initialized_session
from variable_util import make

import tf_multitier
from tf_multitier import nn

v1 = tf.compat.v1


def refused(error, message):
    return pytest.raises(error, match=message)


def lookup(ev):
    return tf.reduce_sum(tf.nn.embedding_lookup(ev, [1, 1, 2]))


# ---- dense uses


@pytest.mark.parametrize(
    "name",
    [
        "scatter_update",
        "scatter_add",
        "scatter_sub",
        "scatter_mul",
        "scatter_div",
        "scatter_max",
        "scatter_min",
        "scatter_nd_update",
        "scatter_nd_add",
        "scatter_nd_sub",
        "batch_scatter_update",
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_scattering_into_a_variable_is_refused_when_the_graph_is_built(graph, name, parts):
    ev = make(parts=parts)
    indices = [[1]] if "_nd_" in name or "batch" in name else [1]
    with refused(
        NotImplementedError,
        r"'ev' is a hash table .*scatter operation .*scatter_update and its siblings",
    ):
        getattr(v1, name)(ev, indices, tf.ones([1, 1, 4] if "batch" in name else [1, 4]))
    assert not [op for op in graph.get_operations() if op.type.startswith("ResourceScatter")]


@pytest.mark.parametrize(
    "name",
    [
        "scatter_update",
        "scatter_add",
        "scatter_sub",
        "scatter_nd_update",
        "batch_scatter_update",
        "count_up_to",
        "initialized_value",
        "load",
        "assign",
        "value",
        "numpy",
        "gather_nd",
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_methods_that_need_a_dense_value_are_refused_by_name(graph, name, parts):
    with refused(
        NotImplementedError,
        rf"'ev' is a hash table and has no dense value, so {name}\(\) is not possible",
    ):
        getattr(make(parts=parts), name)()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_moving_average_is_refused(graph, parts):
    ev = make(parts=parts)
    for variables in ([ev], list(ev.parts), None):
        with refused(NotImplementedError, "'ev' is a hash table and has no dense value"):
            v1.train.ExponentialMovingAverage(0.9).apply(variables)
    assert v1.global_variables() == ev.parts  # no average was made


@pytest.mark.parametrize("parts", [1, 2])
def test_what_asks_whether_it_is_initialized_answers_or_names_what_does(graph, parts):
    ev = make(parts=parts)
    for variables in ([ev], None):
        with refused(
            NotImplementedError,
            "'ev' .*report_uninitialized_variables says whether it is initialized",
        ):
            v1.assert_variables_initialized(variables)
    report, single = v1.report_uninitialized_variables([ev]), v1.is_variable_initialized(ev)
    with v1.Session() as session:
        assert len(session.run(report)) == 1 and not session.run(single)
        session.run(v1.variables_initializer([ev]))
        assert len(session.run(report)) == 0 and session.run(single)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: v1.train.Saver([s]),
        lambda s: v1.train.Saver({"s": s}),
        lambda s: tf.convert_to_tensor(s),
        lambda s: s + 1.0,
        lambda s: 2.0 * s,
        lambda s: tf.ones([4]) * s,
        lambda s: s.read_value(),
        lambda s: v1.assign(s, [[1.0]]),
        lambda s: s[0],
        lambda s: v1.scatter_update(s, [1], tf.ones([1, 4])),
        lambda s: tf.gather(s, [1]),
        lambda s: tf.nn.embedding_lookup(s, [1]),
        lambda s: v1.train.ExponentialMovingAverage(0.9).apply([s]),
        lambda s: v1.Session().run(s),
        lambda s: s.eval(),
    ],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_slot_says_what_it_is_and_what_saves_it(graph, use, parts):
    ev = make(parts=parts)
    optimizer = v1.train.AdagradOptimizer(0.1)
    optimizer.minimize(lookup(ev))
    with refused(
        NotImplementedError,
        "slot 'ev/Adagrad' is a column of the rows of embedding variable 'ev', .*Saver of 'ev' saves",
    ):
        use(optimizer.get_slot(ev.parts[0], "accumulator"))


@pytest.mark.parametrize("parts", [1, 2])
def test_the_variables_of_an_optimizer(graph, parts):
    optimizer = v1.train.AdamOptimizer(0.1)
    optimizer.minimize(lookup(make(parts=parts)))
    with refused(NotImplementedError, "slot 'ev/Adam.*' is a column .*Saver of 'ev' saves"):
        v1.train.Saver(optimizer.variables())
    report = v1.report_uninitialized_variables(optimizer.variables())
    with v1.Session() as session:
        assert len(session.run(report)) == 2 * parts + 2  # two slots of each part, two powers
        session.run(v1.global_variables_initializer())
        assert len(session.run(report)) == 0


# ---- gradients


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.uint64, tf.bool, tf.complex64])
def test_indices_of_a_gradient_that_are_not_keys(graph, dtype):
    ev = make()
    for indices in (tf.cast([1], dtype), tf.identity(tf.cast([1], dtype))):
        with refused(
            TypeError,
            f"gradient of embedding variable 'ev': indices: expected int64 keys, found {dtype.name}",
        ):
            v1.train.GradientDescentOptimizer(1.0).apply_gradients(
                [(tf.IndexedSlices(tf.ones([1, 4]), indices), ev)]
            )


def test_a_gradient_of_lists_or_of_another_dtype(graph):
    ev = make()
    apply = lambda values, keys: v1.train.GradientDescentOptimizer(1.0).apply_gradients(
        [(tf.IndexedSlices(values, keys), ev)]
    )
    with refused(TypeError, "expected int64 keys, found float32"):
        apply(tf.ones([1, 4]), [1.7])
    with refused(TypeError, "'ev': values: expected float32, found float64"):
        apply(tf.ones([1, 4], tf.float64), [1])
    steps = [apply([[1.0, 1.0, 1.0, 1.0]], [3]), apply(tf.ones([1, 4]), tf.constant([4], tf.uint8))]
    with initialized_session() as session:
        session.run(steps)
        assert session.run(ev.export())[0].tolist() == [3, 4]


def test_a_gradient_for_a_whole_partitioned_variable_names_its_parts(graph):
    gradient = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([1], tf.int64))
    with refused(
        ValueError, r"gradient of embedding variable 'ev': expected its parts, .*list\(variable\)"
    ):
        v1.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, make(parts=2))])


@pytest.mark.parametrize(
    "look_up",
    [lookup, lambda ev: nn.group_embedding_lookup_sparse([ev], [sparse([[1, 2]])], "sum")[0]],
)
@pytest.mark.parametrize("parts", [1, 2])
def test_functions_with_a_gradient_of_their_own_do_not_lose_the_variable(graph, look_up, parts):
    """Without a refusal the dense variable would be trained and the embedding variable would not."""
    ev, dense = make(parts=parts), v1.get_variable("dense", [4], use_resource=True)

    @tf.custom_gradient
    def doubled(x):
        return x * look_up(ev), lambda upstream: 2.0 * upstream

    with refused(
        TypeError, "must accept keyword argument 'variables', since function uses variables: .*ev"
    ):
        doubled(dense)
    with refused(NotImplementedError, "'ev' is a hash table and has no dense value"):
        tf.recompute_grad(lambda x: x * look_up(ev))(tf.identity(dense))
    with tf.GradientTape() as tape:
        out = look_up(ev)
    with refused(NotImplementedError, "tf.GradientTape has no gradient of an embedding variable"):
        tape.gradient(out, list(ev.parts))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("pooled", [False, True])
def test_synchronous_replicas_are_refused_with_the_reason(graph, parts, pooled):
    ev = make(parts=parts)
    out = (
        tf.nn.embedding_lookup_sparse(ev, sparse([[1, 1, 2]]), None)
        if pooled
        else tf.nn.embedding_lookup(ev, [1, 1, 2])
    )
    optimizer = v1.train.SyncReplicasOptimizer(v1.train.GradientDescentOptimizer(1.0), 2)
    with refused(
        NotImplementedError,
        "'ev' comes from a SparseConditionalAccumulator, which SyncReplicasOptimizer creates.*CollectiveStrategy",
    ):
        optimizer.minimize(tf.reduce_sum(out), global_step=v1.train.get_or_create_global_step())


def test_the_accumulator_of_synchronous_replicas_loses_keys_that_are_not_sorted(graph):
    """The reason for the refusal. Where this fails TensorFlow's accumulator has changed: read it again."""

    def taken(first, second):
        accumulator = v1.SparseConditionalAccumulator(tf.float32, shape=())
        given = [
            accumulator.apply_grad(indices, tf.ones([len(indices), 1]))
            for indices in (first, second)
        ]
        with v1.Session() as session:
            for gradient in given:
                session.run(gradient)
            result = session.run(accumulator.take_indexed_slices_grad(2))
        return np.bincount(result.indices, result.values[:, 0]).tolist()

    assert taken([1, 2], [1, 2]) == [0.0, 1.0, 1.0]  # sorted: the mean of two gradients
    assert taken([2, 1], [1, 2]) == [0.0, 2.0, 1.0]  # the same two, in another order
    assert taken([1, 1, 1], [1]) == [0.0, 3.0]  # four occurrences count as three


# ---- checkpoints


def trained(ev):
    return v1.train.AdagradOptimizer(0.1).minimize(lookup(ev))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """{number of parts: (path, what ev.export() and the dense variable gave)}."""
    made = {}
    for parts in (1, 2):
        with tf.Graph().as_default():
            ev, step = make(parts=parts), None
            dense = v1.get_variable(
                "dense", [3], initializer=v1.ones_initializer(), use_resource=True
            )
            step = trained(ev)
            with initialized_session() as session:
                session.run(step)
                path = v1.train.Saver().save(
                    session, str(tmp_path_factory.mktemp("saved") / "model")
                )
                made[parts] = path, session.run(ev.export()), session.run(dense)
    return made


WAYS = {
    "pattern": lambda path, ev: v1.train.warm_start(path),
    "pattern of one": lambda path, ev: v1.train.warm_start(path, "ev"),
    "names": lambda path, ev: v1.train.warm_start(path, ["ev", "dense"]),
    "variables": lambda path, ev: v1.train.warm_start(path, [ev]),
    "parts": lambda path, ev: v1.train.warm_start(path, list(ev.parts)),
    "previous name": lambda path, ev: v1.train.warm_start(
        path, "ev", var_name_to_prev_var_name={"ev": "ev"}
    ),
    "map to the variable": lambda path, ev: v1.train.init_from_checkpoint(path, {"ev": ev}),
    "pairs": lambda path, ev: v1.train.init_from_checkpoint(path, [("ev", ev)]),
    "map of a scope": lambda path, ev: v1.train.init_from_checkpoint(path, {"/": "/"}),
}


@pairwise(way=WAYS, before=[1, 2], after=[1, 2])
def test_a_model_starts_from_a_checkpoint(graph, checkpoints, way, before, after):
    path, expected, dense_values = checkpoints[before]
    ev, dense = (
        make(parts=after),
        v1.get_variable("dense", [3], initializer=v1.zeros_initializer(), use_resource=True),
    )
    WAYS[way](path, ev)
    step = trained(ev)  # after: its slots join the initializer
    with initialized_session() as session:
        for found, saved in zip(session.run(ev.export()), expected):
            np.testing.assert_array_equal(found, saved)
        starts_all = way in ("pattern", "names", "map of a scope")
        np.testing.assert_array_equal(
            session.run(dense), dense_values if starts_all else 0 * dense_values
        )
        session.run(step)
        assert session.run(ev.get_frequency([1, 2])).tolist() == [4, 2]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_warm_start_under_another_name(graph, checkpoints, parts, as_list):
    path, expected, _ = checkpoints[2]
    ev = make("scope/new", parts=parts)
    v1.train.warm_start(
        path, [ev] if as_list else "scope/new", var_name_to_prev_var_name={"scope/new": "ev"}
    )
    with initialized_session() as session:
        np.testing.assert_array_equal(session.run(ev.export())[1], expected[1])


def test_a_warm_start_of_what_cannot_be(graph, checkpoints):
    ev = make()
    vocabulary = tf.compat.v1.train.warm_start.__globals__["VocabInfo"]("new", 3, 0, "old")
    with refused(ValueError, "'ev' has keys, not a vocabulary"):
        v1.train.warm_start(checkpoints[1][0], "ev", var_name_to_vocab_info={"ev": vocabulary})
    with refused(ValueError, "Tensor missing is not found"):
        v1.train.warm_start(checkpoints[1][0], [ev], var_name_to_prev_var_name={"ev": "missing"})


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "options", [dict(), dict(sharded=True), dict(var_list="dict"), dict(defer_build=True)]
)
def test_a_saver_of_format_v1_is_refused_when_it_is_built(graph, parts, options):
    ev = make(parts=parts)
    if "var_list" in options:
        options = dict(var_list={"ev": ev})
    with refused(
        NotImplementedError,
        r"'ev' is saved in checkpoints of format V2 only: expected .*V2\), found V1",
    ):
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1, **options)
        saver.build()  # a deferred one


def test_a_saver_of_format_v1_saves_other_variables(graph, tmp_path):
    make()
    dense = v1.get_variable("dense", [3], use_resource=True)
    saver = v1.train.Saver([dense], write_version=v1.train.SaverDef.V1)
    with initialized_session() as session:
        saver.restore(session, saver.save(session, str(tmp_path / "model")))


@pytest.mark.parametrize("options", [dict(), dict(sharded=True)])
def test_a_saver_of_some_parts_is_refused_when_it_is_built(graph, options):
    ev = make(parts=3)
    for some in ([ev.parts[1]], {"ev": ev.parts[:1]}, list(ev.parts)[1:]):
        with refused(
            ValueError,
            r"'ev': expected a Saver of all 3 parts, found one of part_\d",
        ):
            v1.train.Saver(some, **options)
    v1.train.Saver(list(ev.parts), **options)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    "options", [dict(), dict(sharded=True), dict(reshape=True), dict(restore_sequentially=True)]
)
def test_a_dict_of_variables_saves_and_restores_them(graph, tmp_path, parts, options):
    ev = make(parts=parts)
    step = trained(ev)
    saver = v1.train.Saver({"ev": ev}, **options)
    with initialized_session() as session:
        session.run(step)
        path = saver.save(session, str(tmp_path / "model"))
        saved = session.run(ev.export())
        session.run(step)
        saver.restore(session, path)
        for found, expected in zip(session.run(ev.export()), saved):
            np.testing.assert_array_equal(found, expected)
    assert dict(tf.train.list_variables(path))["ev"] == [0, 4]


def test_a_dict_with_a_variable_whose_parts_are_on_several_devices_names_the_list(graph):
    devices = iter(["/job:ps/task:0", "/job:ps/task:1"])
    with v1.device(
        lambda op: next(devices) if op.type == "MultitierEmbeddingVariableHandle" else ""
    ):
        ev = make(parts=2)
    with refused(
        ValueError,
        r"'ev': expected all parts on one device, found them on .*: give list\(variable\)",
    ):
        v1.train.Saver({"ev": ev})
    v1.train.Saver({"ev": list(ev)}, sharded=True)


# ---- without the package


LIBRARY_ALONE = r"""
import sys
import tensorflow as tf
v1 = tf.compat.v1
library, folder = sys.argv[1:]
tf.load_op_library(library)
from tensorflow.core.protobuf import saved_model_pb2
saved = saved_model_pb2.SavedModel()
saved.ParseFromString(open(folder + "/saved_model.pb", "rb").read())
[meta] = saved.meta_graphs
with tf.Graph().as_default(), v1.Session() as session:  # what a server without Python does
    tf.import_graph_def(meta.graph_def, name="")
    session.run(meta.saver_def.restore_op_name, {meta.saver_def.filename_tensor_name: folder + "/variables/variables"})
    print("SERVED", session.run("out:0", {"ids:0": [1, 2]}).sum())
try:
    tf.saved_model.load(folder)
except IndexError:
    print("REFUSED")
"""


@pytest.mark.parametrize("parts", [1, 2])
def test_the_op_library_alone_serves_a_saved_model_and_python_loaders_need_the_package(
    graph, tmp_path, parts
):
    """The statements of docs/serving.md about processes without the package."""
    ev, ids = make(parts=parts), v1.placeholder(tf.int64, [None], "ids")
    out = tf.identity(tf.nn.embedding_lookup(ev, ids), name="out")
    step = trained(ev)
    with initialized_session() as session:
        session.run(step)
        expected = session.run(out, {ids: [1, 2]}).sum()
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"ids": ids}, {"out": out})
    library = tf_multitier.get_library_path()
    run = forks.run(["-c", LIBRARY_ALONE, library, str(tmp_path / "model")])
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == ["SERVED", str(expected), "REFUSED"]


def test_a_frozen_graph_says_that_the_variable_is_not_initialized(graph):
    """convert_variables_to_constants knows TensorFlow's variables alone; docs/limitations.md says so."""
    out = tf.identity(tf.nn.embedding_lookup(make(), [1]), name="out")
    with initialized_session() as session:
        session.run(out)
        frozen = v1.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["out"]
        )
    with tf.Graph().as_default(), v1.Session() as session:
        [out] = tf.import_graph_def(frozen, return_elements=["out:0"])
        with refused(tf.errors.FailedPreconditionError, "'ev' is not initialized"):
            session.run(out)
