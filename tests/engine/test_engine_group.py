"""Many tables in one call from NumPy: tf_multitier.engine.Group."""

import numpy as np
import pytest
from pairs import pairwise

from tf_multitier import engine


def uniform_table(**options):
    return engine.Table(dim=4, initializer="uniform", a=-1.0, b=1.0, seed=5, **options)


def test_a_group_reads_and_trains_as_its_tables_alone():
    make = lambda name, dim: engine.Table(
        dim=dim, initializer="uniform", a=-1, b=1, seed=dim, name=name
    )
    grouped, alone = [make("a", 3), make("b", 8)], [make("a", 3), make("b", 8)]
    keys, splits = [[5, 7, 5, -1], [2, 2]], [[0, 2, 2, 4], [0, 1, 2, 2]]
    rng = np.random.default_rng(0)
    for _ in range(3):
        group = engine.Group(grouped, keys, splits, combiners=["sum", "sum"], train=True)
        assert group.keys[0].tolist() == [5, 7, -1] and group.counts[0].tolist() == [2, 1, 1]
        grads = [rng.normal(size=v.shape).astype(np.float32) for v in group.values]
        hyper = {"learning_rate": 0.1}
        for table, k, s, v, g in zip(alone, keys, splits, group.values, grads):
            rows = np.repeat(np.arange(3), np.diff(s))
            expected = np.zeros_like(v)
            for row, value in zip(rows, table.lookup(k)):
                expected[row] += value
            np.testing.assert_array_equal(v, expected)
            table.apply("adagrad", k, g[rows], hyper=hyper)
        group.apply("adagrad", grads, hyper=hyper)
    for a, b, k in zip(grouped, alone, keys):
        np.testing.assert_array_equal(a.lookup(k), b.lookup(k))
        np.testing.assert_array_equal(a.frequency(k), b.frequency(k))
    [values] = engine.Group([grouped[0]], [[5, 6]], weights=[[0.5, 2.0]], max_norms=[None]).values
    np.testing.assert_array_equal(
        values, grouped[0].lookup([5, 6]) * np.array([[0.5], [2.0]], np.float32)
    )


def test_a_sequence_in_a_group_is_padded_and_trains_as_its_table_alone():
    make = lambda name, dim: engine.Table(
        dim=dim, initializer="uniform", a=-1, b=1, seed=dim, name=name
    )
    grouped, alone = [make("a", 3), make("b", 8)], [make("a", 3), make("b", 8)]
    keys, splits = [[5, 7, 5, -1, 9], [2, 2]], [[0, 2, 2, 5], [0, 1, 2, 2]]
    weights = np.array([0.5, 2.0, -1.0, 0.0, 3.0], np.float32)
    rows, steps = [0, 0, 2, 2, 2], [0, 1, 0, 1, 2]
    rng = np.random.default_rng(0)
    for _ in range(3):
        # A mean of one weighted entry would be the entry.
        group = engine.Group(
            grouped,
            keys,
            splits,
            combiners="mean",
            weights=[weights, None],
            train=True,
            is_sequence=[True, False],
        )
        assert [v.shape for v in group.values] == [(3, 3, 3), (3, 8)] and group.values[
            0
        ].dtype == np.float32
        expected = np.zeros((3, 3, 3), np.float32)
        expected[rows, steps] = alone[0].lookup(keys[0]) * weights[:, None]
        np.testing.assert_array_equal(group.values[0], expected)
        np.testing.assert_array_equal(group.values[1][:2], alone[1].lookup([2, 2]))
        grads = [rng.normal(size=v.shape).astype(np.float32) for v in group.values]
        group.apply("adagrad", grads, hyper={"learning_rate": 0.1})
        alone[0].apply(
            "adagrad",
            keys[0],
            grads[0][rows, steps] * weights[:, None],
            hyper={"learning_rate": 0.1},
        )
        alone[1].apply("adagrad", keys[1], grads[1][:2], hyper={"learning_rate": 0.1})
    for a, b, k in zip(grouped, alone, keys):
        np.testing.assert_array_equal(a.lookup(k), b.lookup(k))
        np.testing.assert_array_equal(a.frequency(k), b.frequency(k))


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("splits", [[0], [0, 0, 0]])
def test_a_sequence_without_keys_has_no_steps(splits, train):
    table = uniform_table()
    group = engine.Group([table], [[]], [splits], weights=[[]], train=train, is_sequence=True)
    assert group.values[0].shape == (len(splits) - 1, 0, 4)
    if train:
        group.apply("sgd", group.values, hyper={"learning_rate": 1.0})
        assert group.weights_gradients(group.values)[0].shape == (0,) and len(table) == 0


@pairwise(rows=[7, 12000], max_norm=[None, 0.7], form=["sum", "mean", "sqrtn", "sequence"])
def test_gradients_of_weights_are_finite_differences(form, max_norm, rows):
    rng = np.random.default_rng(rows)
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 4, rows))])
    keys = rng.integers(0, 50, splits[-1])
    weights = rng.uniform(0.5, 2.0, len(keys)).astype(np.float32)
    table, other = uniform_table(), uniform_table()
    group = engine.Group(
        [other, table],
        [[1], keys],
        [[0, 1], splits],
        combiners="sum" if form == "sequence" else form,
        weights=[None, weights],
        max_norms=[None, max_norm],
        train=True,
        is_sequence=[False, form == "sequence"],
    )
    grads = [rng.normal(size=v.shape) for v in group.values]

    row, start = (
        np.repeat(np.arange(rows), np.diff(splits)),
        np.repeat(splits[:-1], np.diff(splits)),
    )
    values = table.lookup(keys).astype(np.float64)
    if max_norm is not None:
        values *= np.minimum(1, max_norm / np.linalg.norm(values, axis=1, keepdims=True))
    grad = grads[1][row, np.arange(len(keys)) - start] if form == "sequence" else grads[1][row]
    along = np.sum(
        grad * values, axis=1
    )  # the derivative of the loss by each entry's weight, before the divisor

    def row_losses(w):
        """The loss of each entry's row, a row's pooled values times their gradient."""
        sums = lambda x: np.bincount(row, x, rows)[row]
        divisor = {"mean": sums(w), "sqrtn": np.sqrt(sums(w * w))}.get(form, 1.0)
        return sums(w * along) / divisor

    expected, step = np.zeros(len(keys)), 1e-5
    for place in range(3):  # one entry of every row at once: rows are independent
        moved = np.where(np.arange(len(keys)) - start == place, step, 0)
        difference = (row_losses(weights + moved) - row_losses(weights - moved)) / (2 * step)
        expected[moved > 0] = difference[moved > 0]
    found = group.weights_gradients(grads)
    assert found[0] is None and found[1].dtype == np.float32
    np.testing.assert_allclose(found[1], expected, rtol=1e-4, atol=1e-5)
    group.apply("sgd", grads, hyper={"learning_rate": 1.0})
    np.testing.assert_array_equal(group.weights_gradients(grads)[1], found[1])


@pairwise(rows=[20, 9000], weighted=[False, True], combiner=["sum", "mean", "sqrtn"])
def test_a_table_twice_in_a_group_trains_as_one_lookup_of_the_joined_keys(combiner, weighted, rows):
    rng = np.random.default_rng(rows)
    twice, joined, between = uniform_table(), uniform_table(), engine.Table(dim=2)
    for _ in range(3):
        splits = [np.concatenate([[0], np.cumsum(rng.integers(0, 4, rows))]) for _ in range(2)]
        keys = [rng.integers(0, 30, s[-1]) for s in splits]
        weights = [
            rng.uniform(0.5, 2.0, len(k)).astype(np.float32) if weighted else None for k in keys
        ]
        group = engine.Group(
            [twice, between, twice],
            [keys[0], [3, 4], keys[1]],
            [splits[0], [0, 1, 2], splits[1]],
            combiner,
            [weights[0], None, weights[1]],
            train=True,
        )
        one = engine.Group(
            [joined],
            [np.concatenate(keys)],
            [np.concatenate([splits[0], splits[0][-1] + splits[1][1:]])],
            combiner,
            [np.concatenate(weights) if weighted else None],
            train=True,
        )
        np.testing.assert_array_equal(
            np.concatenate([group.values[0], group.values[2]]), one.values[0]
        )
        grads = [rng.normal(size=v.shape).astype(np.float32) for v in group.values]
        for k in keys:
            k += 1000  # the caller's again
        group.apply("adagrad", grads, hyper={"learning_rate": 0.1})
        one.apply("adagrad", [np.concatenate([grads[0], grads[2]])], hyper={"learning_rate": 0.1})
    a, b = twice.export(), joined.export()
    assert [twice.stats()["applies"], between.frequency([3, 4]).tolist()] == [3, [3, 3]]
    for name in ("keys", "frequencies", "versions", "data"):
        np.testing.assert_array_equal(
            getattr(a, name)[np.argsort(a.keys)], getattr(b, name)[np.argsort(b.keys)]
        )


def test_a_table_in_a_group_as_a_sequence_and_pooled_gets_one_update_of_both():
    table, alone = uniform_table(), uniform_table()
    keys, splits = [[1, 2, 1], [2, 9], []], [[0, 1, 3], [0, 2], [0]]
    group = engine.Group(
        [table] * 3, keys, splits, combiners="mean", train=True, is_sequence=[True, False, True]
    )
    grads = [np.random.default_rng(0).normal(size=v.shape).astype(np.float32) for v in group.values]
    group.apply("adagrad", grads, hyper={"learning_rate": 0.1})
    entries = np.concatenate(
        [grads[0][[0, 1, 1], [0, 0, 1]], np.repeat(grads[1] * np.float32(0.5), 2, axis=0)]
    )
    alone.apply("adagrad", [1, 2, 1, 2, 9], entries, hyper={"learning_rate": 0.1})
    np.testing.assert_array_equal(table.lookup([1, 2, 9]), alone.lookup([1, 2, 9]))
    assert table.frequency([1, 2, 9]).tolist() == [2, 2, 1] and table.version([1]) == alone.version(
        [1]
    )


def test_weights_updated_in_place_do_not_change_the_update_of_their_group():
    table, weights = engine.Table(dim=2), np.array([0.5, 2.0], np.float32)
    group = engine.Group([table], [[1, 2]], weights=[weights], train=True)
    weights += 100
    group.apply("sgd", [np.ones((2, 2))], hyper={"learning_rate": 1.0})
    np.testing.assert_array_equal(table.lookup([1, 2]), [[-0.5, -0.5], [-2.0, -2.0]])


def test_a_table_without_room_is_not_updated_and_the_others_are():
    tables = [
        engine.Table(dim=2, name="a"),
        engine.Table(dim=2, name="full", storage_size=[4 * 16]),
        engine.Table(dim=2, name="b"),
    ]
    members = [*tables, tables[2]]
    group = engine.Group(members, [[1, 2], list(range(50)), [1], [2]], train=True)
    with pytest.raises(engine.ResourceExhaustedError, match="'full'"):
        group.apply("sgd", [np.ones(v.shape) for v in group.values], hyper={"learning_rate": 1.0})
    assert [len(table) for table in tables] == [2, 0, 2]
    np.testing.assert_array_equal(tables[2].lookup([1, 2]), -np.ones((2, 2)))


def test_a_slot_of_another_dim_is_refused_before_any_table_changes():
    tables = [
        engine.Table(dim=2, name="a"),
        engine.Table(dim=2, slots=[("accumulator", 1, 0.1)], name="b"),
    ]
    group = engine.Group(tables, [[1], [1]], train=True)
    with pytest.raises(
        ValueError,
        match="slots of adagrad: expected column 'accumulator' of table 'b' to have dim 2, found 1",
    ):
        group.apply("adagrad", [np.ones((1, 2))] * 2, hyper={"learning_rate": 1.0})
    assert [len(table) for table in tables] == [0, 0] and len(tables[0].columns) == 1


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(beta1=np.nan), "optimizer adam: beta1: expected"),
        (dict(beta1="much"), "beta1 of adam: expected a number, found 'much'"),
        (dict(global_step=1.5), "global_step: expected an integer, found 1.5"),
        (
            dict(global_step=2**63),
            "global_step: expected an integer from -9223372036854775808 to 9223372036854775807, found 9223372036854775808",
        ),
        (
            dict(slots=["m"]),
            r"slots of adam: expected 2 different names, none 'value', found \['m'\]",
        ),
        (dict(slots=["m", "m"]), "slots of adam: expected 2 different names"),
        (dict(slots=["m", "value"]), "slots of adam: expected 2 different names"),
        (dict(slots=["m", 2]), "slots of adam: expected a list of names"),
        (dict(slots="mv"), "slots of adam: expected a list of names, found 'mv'"),
    ],
)
def test_a_refused_update_makes_no_columns(given, message):
    hyper = dict(
        learning_rate=0.1, beta1=0.9, beta2=0.99, epsilon=1e-8, beta1_power=0.9, beta2_power=0.99
    )
    hyper.update({name: given.pop(name) for name in list(given) if name in hyper})
    tables = [engine.Table(dim=2, name=name) for name in "ab"]
    group = engine.Group(tables, [[1], [1]], train=True)
    for apply in (
        lambda: group.apply("adam", [np.ones((1, 2))] * 2, hyper=hyper, **given),
        lambda: tables[0].apply("adam", [1], np.ones((1, 2)), hyper=hyper, **given),
    ):
        with pytest.raises(ValueError, match=message):
            apply()
    with pytest.raises(ValueError, match="counts: expected at least 0 each, found -1"):
        tables[0].apply("adagrad", [1], np.ones((1, 2)), counts=[-1], hyper={"learning_rate": 0.1})
    assert [(len(table), len(table.columns)) for table in tables] == [(0, 1)] * 2


def test_group_errors_name_the_member():
    tables = [engine.Table(dim=2, name="a"), engine.Table(dim=2, name="b")]
    with pytest.raises(ValueError, match="keys: expected one for each of 2 tables, found 1"):
        engine.Group(tables, [[1]])
    with pytest.raises(ValueError, match=r"member 1 \('b'\): expected row splits from 0 to 1"):
        engine.Group(tables, [[1], [1]], [[0, 1], [0, 2]])
    with pytest.raises(ValueError, match="combiner of member 1: expected .* found 'max'"):
        engine.Group(tables, [[1], [1]], combiners=["sum", "max"])
    with pytest.raises(ValueError, match="weights of member 1"):
        engine.Group(tables, [[1], [1]], weights=[None, [1.0, 2.0]])
    with pytest.raises(ValueError, match="max_norm of member 0: .* found -2"):
        engine.Group(tables, [[1], [1]], max_norms=[-2, None])
    with pytest.raises(ValueError, match="is_sequence: expected one for each of 2 tables, found 1"):
        engine.Group(tables, [[1], [1]], is_sequence=[True])
    with pytest.raises(
        ValueError, match="is_sequence of member 1: expected True or False, found 'yes'"
    ):
        engine.Group(tables, [[1], [1]], is_sequence=[True, "yes"])
    for bad in ([0, 2], [1, 1], [0, 2, 1]):
        with pytest.raises(ValueError, match=r"member 1 \('b'\): expected row splits from 0 to 1"):
            engine.Group(tables, [[1], [1]], [[0, 1], bad], is_sequence=True)
    with pytest.raises(
        ValueError, match="max_norm of member 2: expected None where .* same table, found 1.0"
    ):
        engine.Group([*tables, tables[1]], [[1], [1], [1]], max_norms=[2.0, None, 1.0], train=True)
    with pytest.raises(
        ValueError, match="apply: expected a group looked up with train=True, found one without"
    ):
        engine.Group(tables, [[1], [1]]).apply("sgd", [], hyper={"learning_rate": 1})
    with pytest.raises(
        ValueError, match="weights_gradients: expected a group looked up with train=True"
    ):
        engine.Group(tables, [[1], [1]]).weights_gradients([])
    with pytest.raises(ValueError, match="grads: expected one for each of 2 tables, found 1"):
        engine.Group(tables, [[1], [1]], train=True).weights_gradients([np.zeros((1, 2))])
    sequence = engine.Group(tables, [[1], [1]], train=True, is_sequence=[False, True])
    with pytest.raises(
        ValueError, match=r"grads of member 1: expected shape \[1, 1, 2\], found \[1, 2\]"
    ):
        sequence.weights_gradients([np.zeros((1, 2)), np.zeros((1, 2))])
    group = engine.Group(tables, [[1], [1]], train=True)
    with pytest.raises(ValueError, match="grads of member 0"):
        group.apply("sgd", [np.zeros((2, 2)), np.zeros((1, 2))], hyper={"learning_rate": 1})
