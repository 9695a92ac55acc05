"""Keys of uint64 and uint32: every value is a key, in a Session, eagerly and in a tf.function."""

import numpy as np
import pytest
import tensorflow as tf
import variable_util
from worlds import make_world
from worlds import needs_eager

import tf_multitier
from tf_multitier import engine

v1 = tf.compat.v1
KEYS = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
KEYS32 = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
OF_TYPE = {"uint64": KEYS, "uint32": KEYS32}
STORAGE = ("DRAM", "LEVELDB", "SSDHASH", "DRAM_SSDHASH", "DRAM_PMEM_LEVELDB")


def make(name="ev", dim=4, key_dtype="uint64", kind="DRAM", path=None, option=None, **kwargs):
    options = dict(option or {})
    if kind != "DRAM":
        sizes = [32] * kind.count("_")
        options["storage_option"] = tf_multitier.StorageOption(kind, str(path), sizes or None)
    return variable_util.make(
        name,
        dim,
        key_dtype=tf.as_dtype(key_dtype),
        ev_option=tf_multitier.EmbeddingVariableOption(**options),
        **kwargs,
    )


def loss_of(ev):
    return lambda ids: tf.reduce_sum(tf.nn.embedding_lookup(ev, ids) ** 2)


@pytest.mark.parametrize("world", ["session", "eager", "function"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", ["uint64", "uint32"])
def test_every_value_is_a_key(world, dtype, parts):
    keys = OF_TYPE[dtype]
    with make_world(world) as w:
        ev = make(key_dtype=dtype, parts=parts)
        assert ev.key_dtype == tf.as_dtype(dtype)
        look_up = lambda ids: tf.nn.embedding_lookup(ev, ids)
        initial = w.run(look_up, keys)
        step = w.step(loss_of(ev), [ev], "sgd", 0.5)
        step(keys[[4, 0, 3, 4]])
        trained = [0, 3, 4]
        found, values, versions, frequencies = w.run(ev.export)
        assert found.dtype == dtype and found.tolist() == keys[trained].tolist()  # increasing
        np.testing.assert_array_equal(values, w.run(look_up, keys[trained]))
        np.testing.assert_array_equal(w.run(look_up, keys)[[1, 2]], initial[[1, 2]])
        assert not (values == initial[trained]).any()
        assert frequencies.tolist() == [1, 1, 2]
        assert w.run(ev.get_frequency, keys).tolist() == [1, 0, 0, 1, 2]
        assert w.run(ev.get_version, keys).tolist() == [
            v if i in trained else -1 for i, v in enumerate([versions[0]] * 5)
        ]
        assert w.run(ev.lookup_tier, keys).tolist() == [0, -1, -1, 0, 0]
        np.testing.assert_array_equal(w.run(ev.peek, keys), w.run(look_up, keys))
        pieces = [w.run(lambda: ev.scan(0, 100))] if parts == 1 else []
        for piece in pieces:
            assert piece.keys.dtype == dtype and set(piece.keys) == set(keys[trained])
        assert w.run(ev.remove, keys[3:]) == 2
        assert set(w.run(lambda: ev.removed_since(0)).tolist()) == set(keys[3:].tolist())
        assert w.run(lambda: ev.removed_since(0)).dtype == dtype
        written = w.run(lambda k, v: ev.upsert(k, v), keys, np.ones((5, 4), np.float32))
        assert written == 5 and w.run(ev.export)[0].tolist() == sorted(keys.tolist())
        assert (w.run(look_up, keys) == 1).all()


def test_rows_gives_unsigned_keys_that_upsert_takes():
    with tf.Graph().as_default():
        ev, other = make(parts=3), make("other")
        write = ev.upsert(KEYS, np.arange(20, dtype=np.float32).reshape(5, 4))
        with variable_util.initialized_session() as session:
            session.run(write)
            pieces = list(ev.rows(session, max_rows=2))
            keys = np.concatenate([piece.keys for piece in pieces])
            values = np.concatenate([piece.columns["value"] for piece in pieces])
            assert keys.dtype == np.uint64 and set(keys) == set(KEYS)
            session.run(other.upsert(keys, values))
            for a, b in zip(session.run(ev.export()), session.run(other.export()), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", STORAGE)
def test_rows_below_dram_have_their_keys(kind, tmp_path):
    with tf.Graph().as_default():
        ev, reference = make(kind=kind, path=tmp_path), make("reference")
        ids = v1.placeholder(tf.uint64, [None])
        train = [
            v1.train.AdagradOptimizer(0.1).minimize(loss_of(table)(ids), var_list=[table])
            for table in (ev, reference)
        ]
        prefetched, expired = ev.prefetch(ids), ev.drain()
        with variable_util.initialized_session() as session:
            for some in (KEYS, KEYS[2:], KEYS[::-1], KEYS[4:]):
                session.run(prefetched, {ids: some})
                session.run(train, {ids: some})
                session.run(expired)
            for a, b in zip(session.run(ev.export()), session.run(reference.export()), strict=True):
                np.testing.assert_array_equal(a, b)
            pieces = list(ev.rows(session, max_rows=2))
            assert set(np.concatenate([p.keys for p in pieces])) == set(KEYS)


@pytest.mark.parametrize("world", ["session", "eager", "function"])
def test_a_group_of_all_types_of_keys_trains_as_its_members_alone(world):
    types = {
        "int64": np.array([-1, 0, 7, -(2**63)]),
        "int32": np.array([-1, 0, 7, 2**31 - 1], np.int32),
        "uint64": np.array([2**64 - 1, 0, 2**63, 2**64 - 1], np.uint64),
        "uint32": np.array([2**32 - 1, 0, 2**31, 7], np.uint32),
    }
    results = []
    for grouped in (True, False):
        with make_world(world) as w:
            tables = [make(f"ev_{t}", key_dtype=t, parts=1 + 2 * (t == "uint64")) for t in types]

            def loss(*ids, tables=tables, grouped=grouped):
                ragged = [tf.RaggedTensor.from_row_splits(i, [0, 1, 4]) for i in ids]
                if grouped:
                    found = tf_multitier.nn.group_embedding_lookup_sparse(tables, ragged, "mean")
                else:
                    found = [
                        tf.nn.embedding_lookup_sparse(t, r, None, combiner="mean")
                        for t, r in zip(tables, ragged, strict=True)
                    ]
                return tf.add_n([tf.reduce_sum(f**2) for f in found])

            step = w.step(loss, tables, "adagrad")
            for _ in range(3):
                step(*types.values())
            exports = [w.run(table.export) for table in tables]
        for (dtype, ids), (keys, *_) in zip(types.items(), exports, strict=True):
            assert keys.dtype == (dtype if dtype != "int32" else "int64")
            assert keys.tolist() == sorted(set(ids.tolist()))
        results.append(exports)
    for one, other in zip(*results, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("world", ["session", "eager", "function"])
def test_padding_and_default_keys_do_not_take_the_greatest_key(world):
    greatest = 2**64 - 1
    with make_world(world) as w:
        ev = make()

        def values(flat):
            ids = tf.RaggedTensor.from_row_splits(flat, [0, 1, 1, 3])
            sparse = tf.SparseTensor([[0, 0], [2, 0], [2, 1]], flat, [3, 2])
            safe = tf_multitier.lookup.safe_embedding_lookup_sparse
            return (
                tf.nn.embedding_lookup_sparse(ev, ids, None, combiner="sum"),
                safe(ev, sparse, combiner="sum"),
                safe(ev, sparse, combiner="sum", default_id=[greatest][0]),
                tf_multitier.nn.group_embedding_lookup_sparse([ev], [ids], "sum")[0],
                tf.nn.embedding_lookup(ev, flat),
            )

        flat = np.array([greatest, greatest, 0], np.uint64)
        ragged, safe, filled, grouped, own = w.run(values, flat)
        expected = np.stack([own[0], np.zeros(4), own[1] + own[2]]).astype(np.float32)
        for found in (ragged, safe, grouped):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(filled, [own[0], own[0], own[1] + own[2]])
        assert own[0].any() and (own[0] != own[2]).any()


def test_filters_count_unsigned_keys():
    filters = [
        tf_multitier.CounterFilter(2),
        tf_multitier.CBFFilter(2, max_element_size=100, false_positive_probability=0.001),
    ]
    for number, given in enumerate(filters):
        with tf.Graph().as_default():
            ev = make(f"ev{number}", option={"filter_option": given})
            ids = v1.placeholder(tf.uint64, [None])
            train = v1.train.GradientDescentOptimizer(1.0).minimize(loss_of(ev)(ids))
            with variable_util.initialized_session() as session:
                session.run(train, {ids: KEYS})
                assert session.run(ev.total_count()) == 0
                session.run(train, {ids: KEYS[3:]})
                assert session.run(ev.export())[0].tolist() == KEYS[3:].tolist()
                counts = session.run(ev.get_frequency(KEYS)).tolist()
                assert counts == ([1, 1, 1, 2, 2] if number == 0 else [0, 0, 0, 2, 2])


def test_ids_of_another_sign_are_refused_by_name():
    with tf.Graph().as_default():
        ev, narrow, signed = (
            make("ev"),
            make("narrow", key_dtype="uint32"),
            make("signed", key_dtype="int64"),
        )
        for ids in (
            np.array([1]),
            np.array([1], np.int32),
            [-1],
            [[3], [-1]],
            tf.constant([2], tf.int8),
        ):
            with pytest.raises(
                TypeError, match="'ev': ids: expected uint64, the key_dtype, found int"
            ):
                tf.nn.embedding_lookup(ev, ids)
        with pytest.raises(
            TypeError, match="'narrow': ids: expected uint32, the key_dtype, found uint64"
        ):
            tf.nn.embedding_lookup(narrow, KEYS)
        with pytest.raises(TypeError, match="found uint64: create it with key_dtype=tf.uint64"):
            tf.nn.embedding_lookup(signed, KEYS)
        with pytest.raises(TypeError, match="expected uint64, found float32"):
            tf.nn.embedding_lookup(ev, [1.0])
        with pytest.raises(
            TypeError, match="key_dtype: expected int64, int32, uint64 or uint32, found"
        ):
            make("other", key_dtype="int16")
        for ids in ([], [0, 2**64 - 1], 5, tf.constant([3], tf.uint8), KEYS32):
            assert tf.nn.embedding_lookup(ev, ids).dtype == tf.float32
        with pytest.raises(
            ValueError, match="key_dtype: expected int64, as specified, found uint64"
        ):
            with v1.variable_scope("", reuse=True):
                tf_multitier.get_embedding_variable("ev", 4)


def test_reuse_with_another_type_of_values_is_refused_by_name():
    with tf.Graph().as_default(), v1.variable_scope("scope", reuse=v1.AUTO_REUSE):
        for parts in (1, 2):
            variable_util.make(f"ev{parts}", value_dtype=tf.bfloat16, parts=parts)
            expected = f"'scope/ev{parts}' exists: value_dtype: expected float32, as specified, found bfloat16"
            with pytest.raises(ValueError, match=expected):
                variable_util.make(f"ev{parts}", parts=parts)
            variable_util.make(f"ev{parts}", value_dtype=tf.bfloat16, parts=parts)


def test_counts_survive_a_cast_of_distinct_ids():
    with tf.Graph().as_default():
        ev = make()
        distinct, index = tf.unique(tf.constant(KEYS[[4, 0, 4, 4]]))
        values = tf.gather(tf.nn.embedding_lookup(ev, distinct), index)
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(values))
        with variable_util.initialized_session() as session:
            session.run(train)
            assert session.run(ev.get_frequency(KEYS)).tolist() == [1, 0, 0, 0, 3]


@needs_eager
def test_keras_layers_take_unsigned_ids():
    import keras

    layer = tf_multitier.keras.Embedding(
        4,
        key_dtype="uint64",
        combiner="sum",
        mask_zero=True,
        optimizer=tf_multitier.optimizers.SGD(0.1),
    )
    inputs = keras.Input([None], dtype="uint64")
    model = keras.Model(inputs, layer(inputs))
    ids = tf.constant([[0, 2**64 - 1], [2**63, 5]], tf.uint64)
    assert model(ids).shape == (2, 4)
    model.compile(optimizer="sgd", loss="mse")
    model.fit(ids, np.zeros((2, 4), np.float32), verbose=0)
    keys, *_ = layer.tables[0].export()
    assert keys.numpy().tolist() == [5, 2**63, 2**64 - 1]  # 0 is masked


@pytest.mark.parametrize("given", ["uint64", "int64"])
def test_a_feature_column_of_uint64_has_uint64_keys(given):
    columns = tf_multitier.feature_column
    with tf.Graph().as_default():
        # Without ignore_value=None, -1 of an int64 feature is padding.
        column = columns.categorical_column_with_embedding("id", dtype=tf.uint64, ignore_value=None)
        feature = tf.constant(KEYS[[3, 4]].view(given)[:, None])
        out = columns.input_layer({"id": feature}, [columns.embedding_column(column, 4)])
        ev = v1.global_variables()[0]
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
        with variable_util.initialized_session() as session:
            session.run(train)
            assert session.run(ev.export())[0].tolist() == [2**63, 2**64 - 1]


@pytest.mark.parametrize("given", ["int64", "int32"])
def test_a_feature_column_of_uint64_drops_the_padding_of_a_signed_feature(given):
    columns = tf_multitier.feature_column
    with tf.Graph().as_default():
        column = columns.categorical_column_with_embedding("id", dtype=tf.uint64)
        feature = tf.constant([[3, -1], [-1, 4]], given)
        out = columns.input_layer({"id": feature}, [columns.embedding_column(column, 4)])
        ev = v1.global_variables()[0]
        train = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(out))
        with variable_util.initialized_session() as session:
            session.run(train)
            assert session.run(ev.export())[0].tolist() == [3, 4]


@pytest.mark.parametrize(
    "key_dtype, ids", [(tf.uint32, [7, 2**32]), (tf.uint64, [[7], [2**64]]), (tf.uint32, 2**40)]
)
def test_an_integer_that_is_too_large_is_refused(key_dtype, ids):
    ev = tf_multitier.get_embedding_variable("ev", 4, key_dtype=key_dtype)
    largest = np.max(np.array(ids, object))
    with pytest.raises(ValueError, match=f"'ev': .*expected {key_dtype.name}, found {largest}"):
        tf.nn.embedding_lookup(ev, ids)
    with pytest.raises(ValueError, match=f"'ev': .*expected {key_dtype.name}, found {largest}"):
        ev.remove(ids)


@pytest.mark.parametrize("key", [-1, 2**32])
def test_a_gradient_of_a_key_that_is_no_uint32_changes_nothing(key):
    ev = tf_multitier.get_embedding_variable("ev", 4, key_dtype=tf.uint32)
    gradient = tf.IndexedSlices(tf.ones([2, 4]), tf.constant([7, key], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"expected keys of uint32.*= {key}"):
        tf_multitier.optimizers.SGD(0.1).apply_gradients([(gradient, ev)])
    assert int(ev.total_count()) == 0


# ---- the engine


@pytest.mark.parametrize("kind", ["DRAM", "LEVELDB", "SSDHASH", "DRAM_SSDHASH"])
def test_a_table_of_the_engine_has_unsigned_keys(kind, tmp_path):
    table = engine.Table(
        4,
        "uniform",
        -1.0,
        1.0,
        key_dtype=np.uint64,
        storage_type=kind,
        storage_path=str(tmp_path),
        storage_size=[32] * kind.count("_"),
    )
    assert table.key_dtype == "uint64"
    before = table.lookup(KEYS)
    hyper = {"learning_rate": 1.0}
    table.apply("sgd", [0, 2**63, 2**64 - 1], np.ones((3, 4)), hyper=hyper, global_step=1)
    assert set(table.export().keys) == {0, 2**63, 2**64 - 1}
    rows, following = table.scan()
    assert rows.keys.dtype == np.uint64 and len(rows) == 3 and following == 0
    np.testing.assert_array_equal(table.lookup(KEYS)[[0, 3, 4]], before[[0, 3, 4]] - 1)
    assert table.frequency(KEYS).tolist() == [1, 0, 0, 1, 1]
    assert table.remove(KEYS[4:]) == 1 and table.removed_since(1).tolist() == [2**64 - 1]
    assert table.upsert(KEYS[4:], {"value": np.zeros((1, 4))}) == 1
    group = engine.Group([table], [KEYS[[4, 4, 0]]], train=True)
    assert group.keys[0].dtype == np.uint64 and set(group.keys[0]) == {0, 2**64 - 1}
    other = engine.Table(4, key_dtype="uint64")
    other.import_rows(table.export())
    np.testing.assert_array_equal(other.lookup(KEYS[[0, 3, 4]]), table.lookup(KEYS[[0, 3, 4]]))
    with pytest.raises(ValueError, match="rows: expected keys of int64, found uint64"):
        engine.Table(4).import_rows(table.export())
    with pytest.raises(ValueError, match="keys: expected integers that fit uint64, found -1"):
        table.lookup([-1])
    narrow = engine.Table(4, key_dtype="uint32")
    with pytest.raises(ValueError, match=f"keys: expected integers that fit uint32, found {2**32}"):
        narrow.lookup([2**32])
    narrow.upsert(KEYS32, {"value": np.zeros((5, 4))})
    assert narrow.export().keys.dtype == np.uint32 and set(narrow.export().keys) == set(KEYS32)
    with pytest.raises(
        ValueError, match="key_dtype: expected one of int64, uint64, uint32; found 'int8'"
    ):
        engine.Table(4, key_dtype="int8")


def test_a_kept_table_opens_with_its_type_of_keys(tmp_path):
    given = dict(storage_type="SSDHASH", storage_path=str(tmp_path), keep=True, name="t")
    with engine.Table(4, key_dtype="uint64", **given) as table:
        table.upsert(KEYS, {"value": np.zeros((5, 4))})
    with engine.Table.open(tmp_path, "t") as table:
        assert table.key_dtype == "uint64" and set(table.export().keys) == set(KEYS)


def test_dropped_keys_are_unsigned():
    table = engine.Table(
        4, key_dtype="uint64", storage_size=32, drop_coldest=True, cache_strategy="LRU"
    )
    for key in KEYS:
        table.upsert([key], {"value": np.zeros((1, 4))})
    dropped = table.pop_dropped()
    assert dropped.dtype == np.uint64 and dropped.tolist() == KEYS[:3].tolist()
