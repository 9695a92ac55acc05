"""Values of bfloat16 and float16: training, lookups, groups, rows in and out, in a Session and eagerly."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import variable_util
from rule_cases import CASES
from rule_cases import reference_of
from worlds import make_world

import tf_multitier
from tf_multitier import engine

v1 = tf.compat.v1
HALVES = ("bfloat16", "float16")
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def rounded(values, dtype):
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(NUMPY[dtype]).astype(np.float32)


def bits(values):
    return np.asarray(values).astype(np.float32)


def make(name="ev", dim=4, dtype="bfloat16", **kwargs):
    return variable_util.make(name, dim, value_dtype=tf.as_dtype(dtype), **kwargs)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_rule_trains_as_numpy_does_with_rounded_values(name):
    case, vocabulary, steps = CASES[name], 24, 8
    kinds = [(dtype, dim) for dtype in HALVES for dim in (1, 17)]
    rng = np.random.default_rng(7)
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        ids = v1.placeholder(tf.int64, [None])
        tables, targets, train = [], [], []
        for i, (dtype, dim) in enumerate(kinds):
            tables.append(make(f"ev{i}", dim, dtype, parts=1 + 2 * (dim > 1)))
            targets.append(v1.placeholder(tf.float32, [None, dim]))
            out = tf.nn.embedding_lookup(tables[-1], ids)
            assert out.dtype == tf.as_dtype(dtype)
            loss = tf.reduce_sum(tf.cast(out, tf.float32) * targets[-1])
            train.append(case.make(step).minimize(loss, var_list=list(tables[-1].parts)))
        with tf.control_dependencies(train):
            train_op = v1.assign_add(step, 1)
        reads = [tf.nn.embedding_lookup(t, np.arange(vocabulary)) for t in tables]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            initial = [bits(values) for values in session.run(reads)]
            references = [reference_of(case, values) for values in initial]
            for _ in range(steps):
                batch = rng.zipf(1.3, 24) % vocabulary
                grads = [rng.standard_normal((24, dim)).astype(np.float32) for _, dim in kinds]
                session.run(train_op, {ids: batch, **dict(zip(targets, grads, strict=True))})
                for reference, grad, (dtype, _) in zip(references, grads, kinds, strict=True):
                    # Gradients go through the lookup's type.
                    reference.train(batch, rounded(grad, dtype))
                    reference.rows = {k: rounded(row, dtype) for k, row in reference.rows.items()}
            for found, reference in zip(session.run(reads), references, strict=True):
                np.testing.assert_array_equal(bits(found), list(reference.rows.values()))
            for table, reference in zip(tables, references, strict=True):
                rows = session.run([part.export_rows() for part in table.parts])
                for part in rows:
                    expected = [
                        np.concatenate(
                            [reference.rows[k], *[s[0] for s in reference.states[k].values()]]
                        )
                        for k in part.keys
                    ]
                    np.testing.assert_array_equal(part.rows, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("world", ["session", "eager", "function"])
def test_lookups_give_the_type_of_the_variable_or_the_one_asked_for(world, dtype):
    with make_world(world) as w:
        ev, exact = make(dtype=dtype), make("ev32", dtype="float32")
        ids = np.array([[3, 1], [3, 7]], np.int64)
        sparse = lambda: tf.sparse.from_dense([[1, 2, 3], [4, 0, 0]])
        values = w.run(lambda: tf.nn.embedding_lookup(ev, ids))
        assert values.dtype == NUMPY[dtype] and ev.dtype == tf.as_dtype(dtype)
        for asked, of_numpy in NUMPY.items():
            lookup = tf_multitier.lookup.embedding_lookup
            found = w.run(lambda asked=asked: lookup(ev, ids, output_dtype=asked))
            assert found.dtype == of_numpy
            np.testing.assert_array_equal(bits(found), rounded(bits(values), asked))
        pooled = tf_multitier.lookup.embedding_lookup_sparse
        sums = w.run(lambda: pooled(ev, sparse(), combiner="sum", output_dtype=tf.float32))
        every = bits(w.run(lambda: tf.nn.embedding_lookup(ev, np.arange(1, 5))))
        np.testing.assert_array_equal(sums, [every[0] + every[1] + every[2], every[3]])
        half = w.run(lambda: tf.nn.embedding_lookup_sparse(ev, sparse(), None, combiner="sum"))
        np.testing.assert_array_equal(bits(half), rounded(sums, dtype))
        group = tf_multitier.nn.group_embedding_lookup_sparse
        mixed = w.run(lambda: group([ev, exact], [sparse(), sparse()], "sum"))
        assert [m.dtype for m in mixed] == [NUMPY[dtype], np.float32]
        np.testing.assert_array_equal(bits(mixed[0]), bits(half))
        joined = w.run(lambda: group([ev, exact], [sparse(), sparse()], "sum", concat=True))
        assert joined.dtype == np.float32
        np.testing.assert_array_equal(joined, np.concatenate([sums, mixed[1]], 1))


@pytest.mark.parametrize("world", ["session", "eager", "function"])
def test_a_mixed_group_trains_as_its_members_alone(world):
    ids = np.array([[5, 2], [5, 9]], np.int64)
    trained = []
    for grouped in (True, False):
        with make_world(world) as w:
            variables = [
                make(f"ev{t}", 8, t, parts=p)
                for t, p in (("bfloat16", 1), ("float16", 3), ("float32", 1))
            ]

            def loss(variables=variables, grouped=grouped):
                sparse = [tf.sparse.from_dense(ids)] * 3
                if grouped:
                    found = tf_multitier.nn.group_embedding_lookup_sparse(variables, sparse, "sum")
                else:
                    found = [
                        tf.nn.embedding_lookup_sparse(v, s, None, combiner="sum")
                        for v, s in zip(variables, sparse, strict=True)
                    ]
                return tf.add_n([tf.reduce_sum(tf.cast(f, tf.float32) ** 2) for f in found])

            step = w.step(loss, variables, "adagrad")
            for _ in range(3):
                step()
            trained.append([w.run(v.export) for v in variables])
    for together, alone in zip(*trained, strict=True):
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("world", ["session", "eager"])
def test_rows_go_in_and_out_in_the_type(world):
    with make_world(world) as w:
        ev = make(parts=2)
        given = np.array([[1.001, 2.002, -3.003, 1e-3]] * 3, np.float32)
        keys = np.array([4, -5, 6], np.int64)
        assert w.run(lambda: ev.upsert(keys, given)) == 3
        half = given.astype(ml_dtypes.bfloat16)
        exported, values, _, _ = w.run(ev.export)
        assert values.dtype == ml_dtypes.bfloat16 and sorted(exported) == [-5, 4, 6]
        np.testing.assert_array_equal(bits(values), bits(half))
        assert w.run(lambda: ev.upsert(keys, tf.constant(half))) == 3
        np.testing.assert_array_equal(bits(w.run(lambda: ev.peek(keys))), bits(half))
        pieces = [w.run(lambda: ev.scan(0))]
        assert pieces[0].columns["value"].dtype == ml_dtypes.bfloat16


def test_gradients_may_be_float32_or_of_the_type():
    ev = make(dim=2, initializer=v1.zeros_initializer())
    optimizer = tf_multitier.optimizers.SGD(1.0)
    for dtype in (tf.float32, tf.bfloat16):
        values = tf.constant([[1.0, 0.5], [2.0, 0.25]], dtype)
        optimizer.apply_gradients([(tf.IndexedSlices(values, tf.constant([7, 7], tf.int64)), ev)])
    np.testing.assert_array_equal(bits(tf.nn.embedding_lookup(ev, [7])), [[-6.0, -1.5]])
    with pytest.raises(TypeError, match="values: expected bfloat16 or float32, found float64"):
        wrong = tf.IndexedSlices(tf.zeros([1, 2], tf.float64), tf.constant([7], tf.int64))
        optimizer.apply_gradients([(wrong, ev)])


@pytest.mark.parametrize("dtype", HALVES)
def test_stochastic_rounding_keeps_small_updates_and_two_runs_are_equal(dtype):
    def run(stochastic, parts):
        ev = make(
            "ev",
            16,
            dtype,
            parts=parts,
            initializer=v1.ones_initializer(),
            ev_option=tf_multitier.EmbeddingVariableOption(stochastic_rounding=stochastic),
        )
        optimizer = tf_multitier.optimizers.SGD(2.0**-12 if dtype == "bfloat16" else 2.0**-15)
        ids = np.arange(50, dtype=np.int64)
        for _ in range(64):
            with tf.GradientTape() as tape:
                loss = -tf.reduce_sum(tf.cast(tf.nn.embedding_lookup(ev, ids), tf.float32))
            optimizer.apply_gradients(zip(tape.gradient(loss, ev.parts), ev.parts, strict=True))
        return bits(tf.nn.embedding_lookup(ev, ids))

    first = run(True, 1)
    np.testing.assert_array_equal(first, run(True, 1))
    np.testing.assert_array_equal(first, run(True, 3))
    np.testing.assert_array_equal(run(False, 1), 1.0)
    expected = 64 * (2.0**-12 if dtype == "bfloat16" else 2.0**-15)
    assert abs((first - 1.0).mean() / expected - 1) < 0.1


def test_what_does_not_fit_is_refused_by_name():
    option = tf_multitier.EmbeddingVariableOption
    with pytest.raises(
        TypeError, match="value_dtype: expected float32, bfloat16, float16; found float64"
    ):
        make(dtype="float64")
    with pytest.raises(
        TypeError, match="EmbeddingVariableOption.value_dtype: expected float32, bfloat16"
    ):
        option(value_dtype="int8")
    with pytest.raises(
        ValueError, match="value_dtype: expected float16, as EmbeddingVariableOption"
    ):
        make(dtype="bfloat16", ev_option=option(value_dtype=tf.float16))
    with pytest.raises(
        ValueError,
        match="stochastic_rounding: expected values of bfloat16 or float16, found float32",
    ):
        make(dtype="float32", ev_option=option(stochastic_rounding=True))
    with pytest.raises(TypeError, match="stochastic_rounding: expected True or False, found 2"):
        option(stochastic_rounding=2)
    ev = make()
    with pytest.raises(
        TypeError, match="output_dtype: expected float32, bfloat16, float16; found int32"
    ):
        tf_multitier.lookup.embedding_lookup(ev, [1], output_dtype=tf.int32)
    with pytest.raises(Exception, match="expected values of at most 65504, the largest of float16"):
        make("large", dtype="float16", initializer=v1.constant_initializer(1e6))


def test_the_option_sets_the_type():
    option = tf_multitier.EmbeddingVariableOption(value_dtype=tf.bfloat16)
    ev = variable_util.make(ev_option=option)
    assert ev.dtype == tf.bfloat16 and tf.nn.embedding_lookup(ev, [1]).dtype == tf.bfloat16


def test_memory_knows_the_type():
    full = tf_multitier.memory(1000, 64, None)
    half = tf_multitier.memory(1000, 64, None, value_dtype=tf.bfloat16)
    assert (full.bytes_per_row, half.bytes_per_row) == (256, 128)
    assert tf_multitier.memory(1000, 64, "adagrad", value_dtype="float16").bytes_per_row == 384


class TestEngine:
    def test_values_have_the_type_of_the_table(self):
        table = engine.Table(3, "uniform", -1.0, 1.0, seed=1, value_dtype="bfloat16")
        exact = engine.Table(3, "uniform", -1.0, 1.0, seed=1).lookup([1, 2])
        found = table.lookup([1, 2])
        assert table.value_dtype == "bfloat16" and found.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(bits(found), rounded(exact, "bfloat16"))
        assert table.lookup([1], output_dtype="float32").dtype == np.float32
        assert table.peek([1], output_dtype=np.float16).dtype == np.float16
        table.upsert([5], {"value": np.ones((1, 3), ml_dtypes.bfloat16)})
        table.apply("sgd", [5], found[:1], hyper={"learning_rate": 1.0})
        rows = table.export()
        assert rows.dtype == "bfloat16" and rows.data.dtype == np.float32
        np.testing.assert_array_equal(rows.data, rounded(1 - bits(found[:1]), "bfloat16"))
        other = engine.Table(3, value_dtype="float16")
        other.import_rows(rows)
        assert bits(other.lookup([5])).tolist() == rounded(rows.data, "float16").tolist()

    def test_a_group_of_mixed_types(self):
        tables = [engine.Table(4, "normal", 0.0, 1.0, value_dtype=t) for t in NUMPY]
        group = engine.Group(tables, [[1, 2]] * 3, [[0, 2]] * 3, train=True)
        assert [v.dtype for v in group.values] == [NUMPY[t] for t in NUMPY]
        for value, table, dtype in zip(group.values, tables, NUMPY, strict=True):
            alone = table.lookup([1, 2], output_dtype="float32")
            np.testing.assert_array_equal(bits(value), rounded(alone[:1] + alone[1:], dtype))
        group.apply("sgd", group.values, {"learning_rate": 0.5})
        assert all(len(table) == 2 for table in tables)
        joined = engine.Group(tables, [[1]] * 3, concat=True)
        assert joined.values.dtype == np.float32 and joined.values.shape == (1, 12)

    def test_bad_arguments(self):
        with pytest.raises(
            ValueError,
            match="value_dtype: expected one of float32, bfloat16, float16; found 'int8'",
        ):
            engine.Table(3, value_dtype="int8")
        with pytest.raises(
            ValueError, match="stochastic_rounding: expected values of bfloat16 or float16"
        ):
            engine.Table(3, stochastic_rounding=True)
        table = engine.Table(3)
        with pytest.raises(ValueError, match="output_dtype: expected one of"):
            table.lookup([1], output_dtype="float64")

    @pytest.mark.parametrize("dtype", HALVES)
    @pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "SSDHASH"])
    def test_a_kept_table_comes_back(self, tmp_path, kind, dtype):
        options = dict(storage_type=kind, storage_path=str(tmp_path), keep=True, value_dtype=dtype)
        sizes = [4 * 48] if kind.startswith("DRAM") else []
        table = engine.Table(4, "uniform", -1.0, 1.0, storage_size=sizes, **options)
        keys = np.arange(20)
        grads = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)
        table.apply("adagrad", keys, grads, hyper={"learning_rate": 0.1})
        before, values = table.export(), bits(table.lookup(keys))
        path = table.path
        table.close()
        again = engine.Table.open(path)
        assert again.value_dtype == dtype
        np.testing.assert_array_equal(bits(again.lookup(keys)), values)
        order, other = np.argsort(before.keys), again.export()
        np.testing.assert_array_equal(before.data[order], other.data[np.argsort(other.keys)])
        again.close()
        if kind.endswith("SSDHASH"):
            salvaged = engine.salvage(path).rows
            assert salvaged.dtype == dtype
            np.testing.assert_array_equal(
                salvaged.data[np.argsort(salvaged.keys)], before.data[order]
            )


@pytest.mark.parametrize("world", ["session", "function"])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_lookup_in_one_branch_of_a_cond_is_trained(world, dtype):
    with make_world(world) as w:
        ev = make(dtype=dtype)

        def loss(flag):
            looked_up = lambda: tf.cast(tf.nn.embedding_lookup(ev, [3, 5]), tf.float32)
            return tf.reduce_sum(tf.cond(flag, looked_up, lambda: tf.ones([2, 4])))

        before = bits(w.run(lambda: tf.nn.embedding_lookup(ev, [3, 5])))
        step = w.step(loss, [ev], "sgd", 0.5)
        step(np.bool_(False))
        np.testing.assert_array_equal(bits(w.run(lambda: ev.peek([3, 5]))), before)
        step(np.bool_(True))
        expected = rounded(before - np.float32(0.5), dtype)
        np.testing.assert_array_equal(bits(w.run(lambda: ev.peek([3, 5]))), expected)


def test_stochastic_rounding_goes_on_where_the_global_step_stands_still():
    # Each update is a sixteenth of what lies between two values.
    runs = []
    for _ in range(2):
        table = engine.Table(64, a=1.0, value_dtype="bfloat16", stochastic_rounding=True)
        for _ in range(160):
            table.apply(
                "sgd", [7], np.full((1, 64), -1.0), hyper={"learning_rate": 2**-11}, global_step=3
            )
        runs.append(table.lookup([7], output_dtype="float32"))
    np.testing.assert_array_equal(*runs)
    assert abs(runs[0].mean() - (1 + 160 * 2**-11)) < 2**-7 and len(np.unique(runs[0])) > 3
