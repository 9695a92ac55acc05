"""Training an embedding variable equals training a tf.Variable, and equals tests/reference_rules.py bit for bit.

Each case trains, over 20 steps of varying ids with repeats, one tf.Variable, one embedding variable and one of three partitions
from the same initial values with the same gradients. Against the NumPy rules every bit must agree. Against TensorFlow every bit
must agree where both do the same arithmetic; where TensorFlow's packet code takes an approximate reciprocal root, or adds
repeated ids one by one to the value, the difference must stay within a stated number of ulp of the largest operand.
"""

import collections

import numpy as np
import pytest
import reference_rules
import tensorflow as tf

import tf_multitier
import worlds

STEPS = 20
VOCABULARY = 24
BATCH = 24
F = np.float32

v1 = tf.compat.v1


def _adam_powers(step, beta1=0.9, beta2=0.999):
    """Beta powers before update number `step` (0 at first), multiplied up in float32 as TensorFlow does."""
    power1, power2 = F(beta1), F(beta2)
    for _ in range(step):
        power1, power2 = power1 * F(beta1), power2 * F(beta2)
    return dict(beta1_power=power1, beta2_power=power2)


def _adam_hyper(step):
    return dict(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8, **_adam_powers(step))


def _decay_hyper(step):
    return dict(
        learning_rate=0.1,
        decay_count=(step + 1) // 5,
        accumulator_decay_rate=0.5,
        accumulator_baseline=0.1,
    )


# make: function of the global step variable.
# ulp: allowed difference from TensorFlow after all steps, for (dense, sparse) lookups; 0 is bit for bit.
# packet: the difference comes from TensorFlow's packet code alone, so that rows shorter than a packet agree bit for bit.
# lazy: TensorFlow touches only the rows of the batch, as we do.
# alike: ordinary variables are trained by the same rule.
Case = collections.namedtuple(
    "Case", ["make", "rule", "hyper", "ulp", "packet", "lazy", "slots", "alike"]
)


def _case(make, rule, hyper, ulp=(0, 0), packet=False, lazy=True, slots=None, alike=True):
    return Case(
        make,
        rule,
        hyper if callable(hyper) else (lambda step: hyper),
        ulp,
        packet,
        lazy,
        slots or {},
        alike,
    )


CASES = {
    # TensorFlow adds the gradients of a repeated id to the value one after the other; we add their sum.
    "sgd": _case(
        lambda s: v1.train.GradientDescentOptimizer(0.1), "sgd", dict(learning_rate=0.1), ulp=(8, 0)
    ),
    "momentum": _case(
        lambda s: v1.train.MomentumOptimizer(0.1, 0.9),
        "momentum",
        dict(learning_rate=0.1, momentum=0.9, use_nesterov=0),
    ),
    "nesterov": _case(
        lambda s: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        "momentum",
        dict(learning_rate=0.1, momentum=0.9, use_nesterov=1),
    ),
    "adagrad": _case(
        lambda s: v1.train.AdagradOptimizer(0.1, 0.2),
        "adagrad",
        dict(learning_rate=0.1),
        ulp=(4, 4),
        packet=True,
        slots={"accumulator": 0.2},
    ),
    "adagrad_epsilon": _case(
        lambda s: worlds.AdagradWithEpsilon(0.1, 0.2),
        "adagrad_epsilon",
        dict(learning_rate=0.1, epsilon=1e-8),
        ulp=(4, 4),
        slots={"accumulator": 0.2},
    ),  # 1e-8 is less than a bit of its roots; from 0: test_tf2_optimizers.py
    "adam": _case(lambda s: v1.train.AdamOptimizer(0.01), "adam", _adam_hyper, lazy=False),
    "rmsprop": _case(
        lambda s: v1.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=1e-6),
        "rmsprop",
        dict(learning_rate=0.01, decay=0.9, momentum=0.5, epsilon=1e-6),
        ulp=(4, 4),
        packet=True,
    ),
    "centered_rmsprop": _case(
        lambda s: v1.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=1e-2, centered=True),
        "centered_rmsprop",
        dict(learning_rate=0.01, decay=0.9, momentum=0.5, epsilon=1e-2),
        ulp=(4, 4),
        packet=True,
    ),
    "ftrl": _case(
        lambda s: v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02
        ),
        "ftrl",
        dict(learning_rate=0.1, learning_rate_power=-0.5, l1=0.01, l2=0.02, l2_shrinkage=0),
    ),
    "ftrl_shrinkage": _case(
        lambda s: v1.train.FtrlOptimizer(
            0.1, l2_shrinkage_regularization_strength=0.03, initial_accumulator_value=0.3
        ),
        "ftrl",
        dict(learning_rate=0.1, learning_rate_power=-0.5, l1=0, l2=0, l2_shrinkage=0.03),
        slots={"accum": 0.3},
    ),
    "adadelta": _case(
        lambda s: v1.train.AdadeltaOptimizer(1.0, epsilon=1e-4),
        "adadelta",
        dict(learning_rate=1.0, rho=0.95, epsilon=1e-4),
        ulp=(4, 4),
        packet=True,
    ),
    # Ours: what they are compared with is their own code for ordinary variables, which TensorFlow's ops compute.
    "adagrad_decay": _case(
        lambda s: tf_multitier.train.AdagradDecayOptimizer(0.1, s, 0.1, 5, 0.5),
        "adagrad_decay",
        _decay_hyper,
        ulp=(4, 4),
    ),
    "adagrad_decay_v2": _case(
        lambda s: tf_multitier.train.AdagradDecayOptimizerV2(0.1, s, 0.1, 5, 0.5),
        "adagrad_decay_v2",
        _decay_hyper,
        ulp=(4, 4),
    ),
    "adam_async": _case(
        lambda s: tf_multitier.train.AdamAsyncOptimizer(0.01),
        "adam_async",
        lambda step: dict(_adam_hyper(step), apply_sparse_rmsprop=0),
    ),
    "adam_async_rmsprop": _case(
        lambda s: tf_multitier.train.AdamAsyncOptimizer(
            0.01, epsilon=1e-6, apply_sparse_rmsprop=True
        ),
        "adam_async",
        lambda step: dict(_adam_hyper(step), epsilon=1e-6, apply_sparse_rmsprop=1),
        ulp=(8, 8),
    ),
    "adamw": _case(
        lambda s: tf_multitier.train.AdamWOptimizer(0.01, 0.01),
        "adamw",
        lambda step: dict(_adam_hyper(step), weight_decay=0.01),
        alike=False,
    ),  # see test_adamw.py
    "rowwise_adagrad": _case(
        lambda s: tf_multitier.train.RowwiseAdagradOptimizer(0.1),
        "rowwise_adagrad",
        dict(learning_rate=0.1, epsilon=1e-8),
        ulp=(4, 4),
    ),
}


def reference_of(case, initial):
    """Rows 0 .. n - 1 that begin with `initial` [n, dim], trained by the NumPy rule."""
    return reference_rules.Rows(case.rule, dict(enumerate(initial)), case.hyper, case.slots)


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
            np.testing.assert_array_equal(ours, parted)
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
    assert {case.rule for case in CASES.values()} == set(tf_multitier.engine.update_rules())


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
    np.testing.assert_array_equal(ours, reference)
    np.testing.assert_array_equal(parted, parted_reference)
    if not case.alike:
        return
    allowed = 0 if case.packet and dim < 4 else case.ulp[sparse]
    if allowed == 0:
        np.testing.assert_array_equal(ours, stock)
    else:
        assert _ulps(ours, stock, largest) <= allowed


def test_lazy_adam_leaves_untouched_rows_alone():
    case = CASES["adam"]._replace(lazy=True)
    (_, ours, parted), (reference, parted_reference), _ = _train(case, 8, False, every_row=False)
    np.testing.assert_array_equal(ours, reference)
    np.testing.assert_array_equal(parted, parted_reference)
