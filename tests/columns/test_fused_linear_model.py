"""linear_model with all categorical columns looked up by one op: TensorFlow's names, values and training."""

import numpy as np
import pytest
import tensorflow as tf
from column_util import ints
from group_util import sparse

from tf_multitier import feature_column as fc
from tf_multitier._src.columns import fused_linear_model
from tf_multitier.deeprec import columns as deeprec_columns

v1 = tf.compat.v1
stock = v1.feature_column

FEATURES = {
    "a": [["x", "y"], ["z", ""], ["x", "x"]],
    "b": [[1, -1], [2, 3], [-1, -1]],
    "w": [[0.5, 0.0], [-1.0, 2.0], [0.0, 0.0]],
    "n": [[1.0], [2.0], [3.0]],
}


def all_columns(over_embedding_variables):
    if over_embedding_variables:
        a, b = fc.categorical_column_with_embedding("a"), ints("b", partition_num=2)
    else:
        a, b = (
            stock.categorical_column_with_hash_bucket("a", 7),
            stock.categorical_column_with_identity("b", 5),
        )
    return [
        a,
        fc.weighted_categorical_column(b, "w"),
        stock.numeric_column("n"),
        stock.bucketized_column(stock.numeric_column("n"), [1.5, 2.5]),
        stock.crossed_column(["a", "n_key"], 11),
    ]


def trained(make, over_embedding_variables, combiner, partitioner=None):
    """(predictions, {name: value of each dense variable}) after three steps of two units, and the graph's op types."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        features["b"] = tf.constant(FEATURES["b"], tf.int64)
        features["n_key"] = tf.constant(["p", "q", "p"])[:, None]
        found = {}
        with v1.variable_scope("wide", partitioner=partitioner):
            logits = make(
                features,
                all_columns(over_embedding_variables),
                units=2,
                sparse_combiner=combiner,
                cols_to_vars=found,
            )
        v1.train.get_or_create_global_step()
        train = v1.train.FtrlOptimizer(0.5).minimize(tf.reduce_sum((logits - [[1.0, -2.0]]) ** 2))
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        names = sorted(
            (getattr(column, "name", column), [v.name for v in variables])
            for column, variables in found.items()
        )
        return session.run(logits), names, [op.type for op in graph.get_operations()]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("ours", [False, True])
def test_trains_as_tensorflows_linear_model(ours, combiner):
    expected, names, _ = trained(stock.linear_model, ours, combiner)
    values, fused_names, _ = trained(fused_linear_model.linear_model, ours, combiner)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert fused_names == names


def test_partitioned_weights_train_as_tensorflows():
    partitioner = v1.fixed_size_partitioner(2)
    expected, names, _ = trained(stock.linear_model, False, "sum", partitioner)
    values, fused_names, _ = trained(fused_linear_model.linear_model, False, "sum", partitioner)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert fused_names == names


def test_do_fusion_makes_one_lookup_of_all_columns():
    fused = lambda *args, **kwargs: deeprec_columns.linear_model(*args, do_fusion=True, **kwargs)
    assert trained(fused, True, "sum")[2].count("MultitierGroupLookup") == 1
    assert trained(deeprec_columns.linear_model, True, "sum")[2].count("MultitierGroupLookup") == 0


def test_ids_of_rank_three_and_one_column_alone():
    with tf.Graph().as_default(), v1.Session() as session:
        ids = tf.SparseTensor(
            [[0, 0, 0], [0, 1, 1], [1, 0, 0]], tf.constant([1, 2, 2], tf.int64), [2, 2, 2]
        )
        column = stock.categorical_column_with_identity("a", 4)
        logits = fused_linear_model.linear_model({"a": ids}, [column])
        session.run(v1.global_variables_initializer())
        weights = v1.global_variables("linear_model/a")[0]
        session.run(weights.assign([[0.0], [1.0], [10.0], [100.0]]))
        np.testing.assert_array_equal(session.run(logits), [[11], [10]])


def test_an_item_that_is_no_column_is_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="feature_column"):
        fused_linear_model.linear_model({"a": sparse([[1]])}, ["a"])
