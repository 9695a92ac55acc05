"""The graph of grouped lookups: number of ops, static shapes, devices."""

import numpy as np
import pytest
import tensorflow as tf
from group_util import initialized
from group_util import kind
from group_util import sparse
from group_util import static
from group_util import table

from tf_multitier import nn

v1 = tf.compat.v1


@pytest.mark.parametrize("has_step", [False, True])
def test_fifty_features_make_a_fifth_of_the_ops_of_stock_lookups(has_step):
    """Forward; and in training, all but the inputs: variables, lookups, loss, gradients, updates, initializers."""

    def count(grouped):
        with tf.Graph().as_default() as graph:
            placeholders = [v1.sparse_placeholder(tf.int64, [None, None]) for _ in range(50)]
            inputs = len(graph.get_operations())
            step = v1.train.get_or_create_global_step() if has_step else None
            variables = [
                table(f"t{i}", 8)
                if grouped
                else v1.get_variable(f"t{i}", [20, 8], use_resource=True)
                for i in range(50)
            ]
            before = len(graph.get_operations())
            if grouped:
                out = nn.group_embedding_lookup_sparse(variables, placeholders, ["mean"] * 50)
            else:
                out = [
                    v1.nn.embedding_lookup_sparse(v, p, None, combiner="mean")
                    for v, p in zip(variables, placeholders)
                ]
            forward = len(graph.get_operations()) - before
            v1.train.AdagradOptimizer(0.1).minimize(
                tf.reduce_sum(tf.square(tf.concat(out, 1))), step
            )
            v1.global_variables_initializer()
            return forward, len(graph.get_operations()) - inputs

    (ours, ours_training), (stock, stock_training) = count(True), count(False)
    assert 5 * ours <= stock and ours <= 4
    assert 5 * ours_training <= stock_training, (ours_training, stock_training)


def test_shapes_are_known_when_the_graph_is_built(graph):
    del graph
    ids = v1.sparse_placeholder(tf.int64, [32, None])
    ragged = v1.ragged.placeholder(tf.int64, 1, [])
    params = [table("a", 4), table("b", 5)]
    pooled = nn.group_embedding_lookup_sparse(params, [ids, ragged], "sum")
    assert [o.shape.as_list() for o in pooled] == [[32, 4], [None, 5]]
    steps = nn.group_embedding_lookup_sparse(params, [ids, ragged], "sum", is_sequence=True)
    assert [o.shape.as_list() for o in steps] == [[32, None, 4], [None, None, 5]]


def test_variables_of_this_process_make_a_group_and_others_an_exchange(graph):
    with tf.device("/cpu:0"):
        a = table("a", 2)
    with tf.device("/job:ps/task:1/cpu:0"):
        b = table("b", 2, parts=2)  # parts are not in HBM
    nn.group_embedding_lookup_sparse([a, b, a], [sparse([[1]])] * 3, "sum")
    groups = [op for op in graph.get_operations() if kind(op) == "MultitierGroupLookup"]
    assert [op.get_attr("N") for op in groups] == [2]
    (serve,) = [op for op in graph.get_operations() if kind(op) == "MultitierServe"]
    assert serve.device == b.device
    assert {op.device for op in groups} == {a.handle.device}


def over_two_devices(make):
    """The result of make(), with its handles on two devices in turn."""
    made = []

    def device(op):
        if "HandleOp" not in kind(op) and kind(op) != "MultitierEmbeddingVariableHandle":
            return "/cpu:0"
        made.append(op)
        return f"/cpu:{len(made) % 2}"

    with v1.device(device):
        return make()


@pytest.mark.parametrize("is_sequence", [False, True])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_parts_on_several_devices_have_the_bits_of_parts_on_one(graph, is_sequence, strategy):
    rows = [[1, 19, 1], [], [10, 4]]
    ids, weights = sparse(rows), sparse([[1.0, 2.0, 3.0], [], [0.5, 0.7]], np.float32)
    ragged = tf.RaggedTensor.from_sparse(ids), tf.RaggedTensor.from_sparse(weights)
    results = []
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        for place in (over_two_devices, lambda make: make()):
            scope = f"scope{len(results)}"
            ev, var = place(lambda: (table(f"{scope}/ev", 4, 2), static(f"{scope}/var", 4, 2)))
            assert (
                len({part.handle.device for part in ev})
                == len({part.handle.device for part in var})
                == 2 - len(results)
            )
            out = nn.group_embedding_lookup_sparse(
                [ev, var, ev, var],
                [ids, ids, ragged[0], ragged[0]],
                ["mean", "sqrtn", "sum", "mean"],
                [weights, weights, ragged[1], None],
                strategy,
                is_sequence,
                max_norms=[0.9, 0.9, None, None],
            )
            out += nn.group_embedding_lookup(
                [ev, var], [[[1, 4]], [[5, 5]]], strategy, max_norms=0.8
            )
            train = v1.train.AdagradOptimizer(0.1).minimize(
                tf.add_n([tf.reduce_sum(tf.square(o - 0.5)) for o in out])
            )
            initialized(session)
            before = session.run(out)
            for _ in range(5):
                session.run(train)
            results.append([before, session.run(out), session.run(ev.export())])
            assert out[0].shape.as_list() == ([3, 3, 4] if is_sequence else [3, 4])
    for two, one in zip(*(r[0] + r[1] for r in results)):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    for two, one in zip(results[0][0], results[1][0]):
        np.testing.assert_array_equal(two, one)
    np.testing.assert_array_equal(results[0][2][3], results[1][2][3])  # frequencies
