"""DeepRec's fused lookups return the values of TensorFlow's lookups."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import fused_lookups
from tf_multitier.deeprec.dynamic_dimension import get_dynamic_dimension_embedding_variable
from variable_util import make, sparse

v1 = tf.compat.v1


def _tables():
    yield make(dim=3)
    yield v1.get_variable("static", [20, 3], initializer=v1.random_normal_initializer(seed=1))
    yield tf_multitier.get_multihash_variable(
        "hashed",
        [[5, 3], [5, 3]],
        operation="add",
        initializer=v1.random_normal_initializer(seed=1),
    )


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_fused_lookups_equal_the_safe_lookup(graph, combiner, kind):
    table = list(_tables())[kind]
    ids = sparse([0, 0, 2], [3, 11, 3], [4, 2])
    weights = tf.SparseTensor(ids.indices, [1.0, 2.0, 3.0], ids.dense_shape)
    expected = v1.nn.safe_embedding_lookup_sparse(table, ids, weights, combiner)
    found = [
        fused_lookups.fused_safe_embedding_lookup_sparse(
            table, ids, weights, combiner, None, "f", "div", None, True
        ),
        fused_lookups.fused_embedding_lookup_sparse(
            table, ids, weights, None, "g", combiner, fill_empty_row=True
        ),
    ]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        expected, found = session.run([expected, found])
    assert np.abs(expected).sum() > 0 and (expected[[1, 3]] == 0).all()
    for values in found:
        np.testing.assert_array_equal(values, expected)


def test_blocknums_go_to_a_dynamic_dimension_variable(graph):
    table = get_dynamic_dimension_embedding_variable(
        "d", 2.0, 2, initializer=v1.ones_initializer()
    )  # blocks of 2.0: programs divide
    values = fused_lookups.fused_safe_embedding_lookup_sparse(
        table, sparse([0, 1], [3, 4], [2, 1]), blocknums=[1, 2]
    )
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(values), [[1, 1, 0, 0], [1, 1, 1, 1]])
