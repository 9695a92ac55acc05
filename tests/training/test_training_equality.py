"""Training an embedding variable equals training a tf.Variable, and equals tests/util/reference_rules.py bit for bit.

Each case trains, over 20 steps of varying ids with repeats, one tf.Variable, one embedding variable and one of three partitions
from the same initial values with the same gradients. Against the NumPy rules every bit must agree. Against TensorFlow every bit
must agree where both do the same arithmetic; where TensorFlow's packet code takes an approximate reciprocal root, or adds
repeated ids one by one to the value, the difference must stay within a stated number of ulp of the largest operand.
"""

import numpy as np
import pytest
import tensorflow as tf
from rule_cases import CASES
from rule_cases import reference_of
from worlds import TF2_ALONE
from worlds import same_bits

import tf_multitier

STEPS = 20
VOCABULARY = 24
BATCH = 24
F = np.float32

v1 = tf.compat.v1


def _batches(rng, dim, every_row):
    """STEPS of (ids [BATCH] with repeats, targets [BATCH, dim])."""
    for _ in range(STEPS):
        ids = rng.zipf(1.3, BATCH) % VOCABULARY
        if every_row:
            ids = np.concatenate([rng.permutation(VOCABULARY), ids])[: 2 * BATCH]
        yield ids.astype(np.int64), rng.standard_normal((len(ids), dim)).astype(F)


def _train(case, dim, sparse, every_row):
    """Trains all three. Returns (stock values, ours, partitioned, reference), each [VOCABULARY, dim]."""
    rng = np.random.default_rng(dim + 1000 * sparse)
    everything = np.arange(VOCABULARY)
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        ids = v1.placeholder(tf.int64, [None])
        targets = v1.placeholder(tf.float32, [None, dim])
        initial_value = v1.placeholder(tf.float32, [VOCABULARY, dim])
        uniform = v1.random_uniform_initializer(-1, 1, seed=5)
        tables = [
            v1.get_variable("stock", initializer=initial_value, use_resource=True),
            tf_multitier.get_embedding_variable("ours", dim, initializer=uniform),
            tf_multitier.get_embedding_variable(
                "parted", dim, initializer=uniform, partitioner=v1.fixed_size_partitioner(3)
            ),
        ]
        train, reads = [], []
        for table in tables:
            if sparse:  # two entries a row, the second with weight 2
                n = tf.shape(ids, out_type=tf.int64)[0]
                where = tf.stack([tf.range(n) // 2, tf.range(n) % 2], axis=1)
                shape = tf.stack([n // 2, 2])
                weights = tf.cast(1 + tf.range(n) % 2, tf.float32)
                out = tf.nn.embedding_lookup_sparse(
                    table,
                    tf.SparseTensor(where, ids, shape),
                    tf.SparseTensor(where, weights, shape),
                    combiner="sum",
                )
                loss = tf.reduce_sum(out * targets[::2])
            else:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) * targets)
            var_list = [table] if isinstance(table, tf.Variable) else list(table)
            train.append(case.make(step).minimize(loss, var_list=var_list))
            reads.append(tf.nn.embedding_lookup(table, everything))
        with tf.control_dependencies(train):
            train_op = v1.assign_add(step, 1)
        with v1.Session() as session:
            session.run([part.initializer for t in tables[1:] for part in t.parts])
            ours, parted = session.run(reads[1:])
            same_bits(ours, parted)
            session.run(v1.global_variables_initializer(), {initial_value: ours})
            references = [reference_of(case, x) for x in (ours, parted)]
            largest = np.abs(ours).max()
            for batch, target in _batches(rng, dim, every_row):
                session.run(train_op, {ids: batch, targets: target})
                factor = (1 + np.arange(len(batch)) % 2).astype(F)[:, None] if sparse else F(1)
                grads = np.repeat(target[::2], 2, axis=0) * factor if sparse else target
                for reference in references:
                    reference.train(batch, grads)
            return (
                session.run(reads),
                [np.stack(list(r.rows.values())) for r in references],
                largest,
            )


def _ulps(a, b, largest):
    """Largest difference in units of the last place of the largest operand."""
    return float(
        np.max(np.abs(a.astype(np.float64) - b))
        / np.spacing(F(max(largest, np.abs(a).max(), np.abs(b).max())))
    )


def test_every_rule_of_the_engine_has_a_case():
    rules = {case.rule for case in CASES.values()} | TF2_ALONE  # these: test_tf2_optimizers.py
    assert rules == set(tf_multitier.engine.update_rules())


def _pairs():
    """Each rule with dims of a vector and a rest, of whole vectors, and of less than one or of many; each with both lookups."""
    for i, name in enumerate(sorted(CASES)):
        yield name, 17, i % 2 == 0
        yield name, (8, 16, 64)[i % 3], i % 2 == 1
        yield name, (1, 3, 200)[i // 2 % 3], i % 2 == 0


@pytest.mark.parametrize("name, dim, sparse", _pairs())
def test_training_equals_stock_and_reference(name, dim, sparse):
    case = CASES[name]
    (stock, ours, parted), (reference, parted_reference), largest = _train(
        case, dim, sparse, every_row=not case.lazy
    )
    same_bits(ours, reference)
    same_bits(parted, parted_reference)
    if not case.alike:
        return
    allowed = 0 if case.packet and dim < 4 else case.ulp[sparse]
    if allowed == 0:
        same_bits(ours, stock)
    else:
        assert _ulps(ours, stock, largest) <= allowed


def test_lazy_adam_leaves_untouched_rows_alone():
    case = CASES["adam"]._replace(lazy=True)
    (_, ours, parted), (reference, parted_reference), _ = _train(case, 8, False, every_row=False)
    same_bits(ours, reference)
    same_bits(parted, parted_reference)
