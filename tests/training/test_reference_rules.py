"""The NumPy rules against TensorFlow's stock v1 optimizers: one sparse step at a time, from the same rows.

Where TensorFlow computes with IEEE operations the bits must be equal. Its kernels take 1 / sqrt from an approximate
instruction when at least 8 elements of a row are left; there a bound is stated, in ulp of the largest operand. What the
instruction gives differs between processors, and centered RMSProp takes it of a difference, which makes more of it: 12 ulp were
seen on one processor, fewer than 8 on another.
"""

import numpy as np
import pytest
import reference_rules
import tensorflow as tf

v1 = tf.compat.v1

LR = 0.05
ROWS = 40
STEPS = 10

# name: (optimizer, rule, hyperparameters, columns that are exact at every dim, columns exact at dim 1 and 3)
STOCK = {
    "sgd": (lambda: v1.train.GradientDescentOptimizer(LR), "sgd", {}, "value", ""),
    "momentum": (
        lambda: v1.train.MomentumOptimizer(LR, 0.9),
        "momentum",
        {"momentum": 0.9, "use_nesterov": 0},
        "value momentum",
        "",
    ),
    "nesterov": (
        lambda: v1.train.MomentumOptimizer(LR, 0.9, use_nesterov=True),
        "momentum",
        {"momentum": 0.9, "use_nesterov": 1},
        "value momentum",
        "",
    ),
    "adagrad": (lambda: v1.train.AdagradOptimizer(LR), "adagrad", {}, "accumulator", "value"),
    "adam": (
        lambda: v1.train.AdamOptimizer(LR),
        "adam",
        {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        "value m v",
        "",
    ),
    "rmsprop": (
        lambda: v1.train.RMSPropOptimizer(LR, momentum=0.5),
        "rmsprop",
        {"decay": 0.9, "momentum": 0.5, "epsilon": 1e-10},
        "rms",
        "value momentum",
    ),
    "centered_rmsprop": (
        lambda: v1.train.RMSPropOptimizer(LR, momentum=0.5, centered=True, epsilon=1e-3),
        "centered_rmsprop",
        {"decay": 0.9, "momentum": 0.5, "epsilon": 1e-3},
        "rms mg",
        "value momentum",
    ),
    "adadelta": (
        lambda: v1.train.AdadeltaOptimizer(LR),
        "adadelta",
        {"rho": 0.95, "epsilon": 1e-8},
        "accum",
        "value accum_update",
    ),
}


def check(column, found, expected, before, exact, bound=8):
    if exact:
        differ = found.view(np.uint32) != expected.view(np.uint32)
        assert not differ.any(), (
            f"{column}: {differ.sum()} of {differ.size} elements differ, {found[differ][:3]}"
        )
        return
    operand = np.abs(found) + np.abs(before)
    ulps = np.abs(found.astype(np.float64) - expected) / np.spacing(operand)
    assert ulps.max() <= bound, f"{column}: {ulps.max()} ulp"


def run(make, rule, hyper, dim, exact_columns, bound=8):
    """STEPS sparse steps of the stock optimizer, each compared with the rule applied to the rows as they were."""
    rng = np.random.default_rng(dim)
    graph = tf.Graph()
    with graph.as_default():
        start = rng.normal(size=(ROWS, dim)).astype(np.float32)
        variable = v1.get_variable("w", initializer=start, use_resource=True)
        grad = v1.placeholder(tf.float32, [None, dim])
        ids = v1.placeholder(tf.int64, [None])
        optimizer = make()
        step = optimizer.apply_gradients(
            [(tf.IndexedSlices(grad, ids, tf.constant([ROWS, dim], tf.int64)), variable)]
        )
        slots = {name: optimizer.get_slot(variable, name) for name in optimizer.get_slot_names()}
        initializer = v1.global_variables_initializer()
    assert set(slots) == {slot.name for slot in reference_rules.RULES[rule].slots}
    with v1.Session(graph=graph) as session:
        session.run(initializer)
        for name, initial in reference_rules.make_slots(rule, ROWS, dim).items():
            np.testing.assert_array_equal(session.run(slots[name]), initial)
        for _ in range(STEPS):
            # Stock Adam moves every row; the rule is the same where all are touched.
            rows = rng.permutation(ROWS)[: ROWS if rule == "adam" else 25]
            gradient = rng.normal(size=(len(rows), dim)).astype(np.float32)
            scalars = {"learning_rate": LR, **hyper}
            if rule == "adam":
                scalars["beta1_power"], scalars["beta2_power"] = session.run(
                    optimizer._get_beta_accumulators()
                )
            if scalars.get("l2") == "adjusted":
                scalars["l2"] = session.run(optimizer._adjusted_l2_regularization_strength_tensor)
            value, state = session.run([variable, slots])
            expected, expected_state = (
                value[rows],
                {name: slot[rows] for name, slot in state.items()},
            )
            reference_rules.apply_rule(rule, expected, expected_state, gradient, scalars)
            session.run(step, {grad: gradient, ids: rows})
            new_value, new_state = session.run([variable, slots])
            check("value", new_value[rows], expected, value[rows], "value" in exact_columns, bound)
            for name in slots:
                check(
                    name,
                    new_state[name][rows],
                    expected_state[name],
                    state[name][rows],
                    name in exact_columns,
                    bound,
                )


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 17, 64, 200])
@pytest.mark.parametrize("name", STOCK)
def test_rule_equals_stock_optimizer(name, dim):
    make, rule, hyper, exact, exact_when_narrow = STOCK[name]
    run(
        make,
        rule,
        hyper,
        dim,
        exact.split() + (exact_when_narrow.split() if dim < 8 else []),
        32 if name == "centered_rmsprop" else 8,
    )


@pytest.mark.parametrize("dim", [1, 3, 8, 16, 17, 64, 200])
@pytest.mark.parametrize(
    "l1, l2, shrinkage, beta",
    [(0.0, 0.0, 0.0, 0.0), (0.01, 0.02, 0.0, 0.0), (0.01, 0.02, 0.1, 0.3)],
)
def test_ftrl_equals_stock_optimizer(l1, l2, shrinkage, beta, dim):
    def make():
        return v1.train.FtrlOptimizer(
            LR,
            l1_regularization_strength=l1,
            l2_regularization_strength=l2,
            l2_shrinkage_regularization_strength=shrinkage,
            beta=beta,
        )

    hyper = {"learning_rate_power": -0.5, "l1": l1, "l2": "adjusted", "l2_shrinkage": shrinkage}
    # A row of one element takes its square roots from powf, which is not always the nearest float.
    run(make, "ftrl", hyper, dim, ["accum"] if dim == 1 else ["value", "accum", "linear"])


@pytest.mark.parametrize("dim", [1, 3])
def test_ftrl_with_another_power_equals_stock_optimizer_on_narrow_rows(dim):
    hyper = {"learning_rate_power": -0.7, "l1": 0.01, "l2": 0.0, "l2_shrinkage": 0.0}
    run(
        lambda: v1.train.FtrlOptimizer(
            LR, learning_rate_power=-0.7, l1_regularization_strength=0.01
        ),
        "ftrl",
        hyper,
        dim,
        ["accum"],  # the others within the bound: powf again
    )


def test_unknown_or_missing_hyperparameters_are_refused():
    rows = np.zeros([1, 2], np.float32)
    with pytest.raises(ValueError, match="takes.*learning_rate.*found.*lr"):
        reference_rules.apply_rule("sgd", rows, {}, rows, {"lr": 1.0})


def test_row_sum_adds_in_sixteen_lanes():
    x = np.random.default_rng(0).normal(size=[3, 37]).astype(np.float32)
    lanes = [[np.float32(0)] * 16 for _ in range(3)]
    for row in range(3):
        for d in range(37):
            lanes[row][d % 16] += x[row, d]
        for half in (8, 4, 2, 1):
            lanes[row] = [lanes[row][lane] + lanes[row][lane + half] for lane in range(half)]
    np.testing.assert_array_equal(reference_rules.row_sum(x), np.array(lanes, np.float32))
