"""The options of dynamicemb: fields, defaults, checks, sizes, initial values; KeyedJaggedTensor."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from worlds import needs_eager

import tf_multitier
from tf_multitier import dynamicemb as de
from tf_multitier.dynamicemb import initializers
from tf_multitier.dynamicemb import sizes

pytestmark = needs_eager

Mode = de.DynamicEmbInitializerMode
Args = de.DynamicEmbInitializerArgs
Options = de.DynamicEmbTableOptions
Score = de.DynamicEmbScoreStrategy
ZERO = Args(Mode.CONSTANT, value=0.0)

# The fields in their order, with their defaults.
DEFAULTS = {
    "embedding_dtype": None,
    "dim": None,
    "max_capacity": None,
    "evict_strategy": de.DynamicEmbEvictStrategy.LRU,
    "local_hbm_for_values": 0,
    "device_id": None,
    "training": True,
    "initializer_args": Args(),
    "eval_initializer_args": ZERO,
    "caching": False,
    "init_capacity": None,
    "max_load_factor": 0.5,
    "score_strategy": Score.TIMESTAMP,
    "bucket_capacity": 128,
    "safe_check_mode": de.DynamicEmbCheckMode.IGNORE,
    "global_hbm_for_values": 0,
    "external_storage": None,
    "index_type": None,
    "dist_type": "roundrobin",
    "admit_strategy": None,
    "admission_counter": None,
    "storage_type": None,
    "storage_path": None,
}


def config(num_embeddings=1000, dim=16, data_type=de.DataType.FP32):
    return de.EmbeddingConfig("user", dim, num_embeddings, ["user_id"], data_type)


def test_fields_and_defaults_are_those_of_dynamicemb():
    found = Options()
    assert [(f.name, getattr(found, f.name)) for f in dataclasses.fields(found)] == list(
        DEFAULTS.items()
    )
    assert dataclasses.astuple(Args()) == (Mode.UNIFORM, 0.0, 1.0, None, None, 0.0)
    assert dataclasses.astuple(de.KVCounter(8)) == (8, 1024, tf.int64)
    assert de.FrequencyAdmissionStrategy(3).initializer_args is None
    assert [(s.name, s.value) for s in Score] == [
        ("TIMESTAMP", 0),
        ("STEP", 1),
        ("CUSTOMIZED", 2),
        ("LFU", 3),
        ("NO_EVICTION", 4),
    ]
    assert [(m.name, m.value) for m in de.DynamicEmbCheckMode] == [
        ("ERROR", 0),
        ("WARNING", 1),
        ("IGNORE", 2),
    ]
    bag = de.EmbeddingBagConfig("b", 8, 10, ["f"])
    assert (bag.data_type, bag.pooling) == (de.DataType.FP32, de.PoolingType.SUM)


class MyCounter(de.Counter):
    """A counter of the user."""


class MyStrategy(de.AdmissionStrategy):
    """A strategy of the user."""


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("embedding_dtype", tf.int32, TypeError, "float32"),
        ("dim", 0, ValueError, "at least 1, found 0"),
        ("max_capacity", 1.5, TypeError, "an integer"),
        ("evict_strategy", de.DynamicEmbEvictStrategy.LFU, ValueError, "follows from"),
        ("local_hbm_for_values", -1, ValueError, "at least 0"),
        ("global_hbm_for_values", -1, ValueError, "at least 0"),
        ("global_hbm_for_values", "1", TypeError, "a finite number"),
        ("training", 2, TypeError, "True or False"),
        ("initializer_args", 0.0, TypeError, "DynamicEmbInitializerArgs"),
        ("eval_initializer_args", Args(), ValueError, "mode CONSTANT, found UNIFORM"),
        ("caching", None, TypeError, "True or False"),
        ("init_capacity", 0, ValueError, "at least 1"),
        ("max_load_factor", "half", TypeError, "a finite number"),
        ("score_strategy", 1, TypeError, "DynamicEmbScoreStrategy"),
        ("score_strategy", [Score.LFU], TypeError, "DynamicEmbScoreStrategy"),
        ("score_strategy", (Score.LFU, 1), TypeError, "DynamicEmbScoreStrategy"),
        ("score_strategy", (), NotImplementedError, r"found \(\)"),
        ("score_strategy", (Score.LFU, Score.LFU), NotImplementedError, "LFU, LFU"),
        ("score_strategy", (Score.STEP, Score.LFU), NotImplementedError, "STEP, LFU"),
        ("bucket_capacity", 0, ValueError, "at least 1, found 0"),
        ("bucket_capacity", 24, ValueError, "a multiple of 16"),
        ("safe_check_mode", 0, TypeError, "ERROR, WARNING, IGNORE"),
        (
            "external_storage",
            object,
            TypeError,
            "DynamicEmbTableOptions.external_storage: expected",
        ),
        ("external_storage", de.Storage(), TypeError, "DynamicEmbTableOptions.external_storage"),
        ("storage_type", "DRAM_EXTERNAL", ValueError, "external_storage"),
        ("index_type", tf.int32, TypeError, "int64 or uint64, found int32"),
        ("dist_type", "round_robin", ValueError, "did you mean 'roundrobin'"),
        ("admit_strategy", 3, TypeError, "FrequencyAdmissionStrategy"),
        ("admit_strategy", MyStrategy(), NotImplementedError, "of your own"),
        ("admission_counter", MyCounter(), NotImplementedError, "of your own"),
        ("storage_type", "DRAM_SSD", ValueError, "did you mean 'DRAM_SSDHASH'"),
        ("storage_type", "DRAM_SSDHASH", ValueError, "storage_path: expected a directory"),
    ],
)
def test_a_bad_value_is_refused_when_the_object_is_made_and_when_it_is_set(
    field, value, error, message
):
    with pytest.raises(error, match=message):
        Options(**{field: value})
    made = Options()
    with pytest.raises(error, match=message):
        setattr(made, field, value)
    assert {name: getattr(made, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Options(cachin=True), TypeError, "cachin"),
        (lambda: setattr(Options(), "cachin", True), AttributeError, "did you mean 'caching'"),
        (lambda: de.FrequencyAdmissionStrategy(-1), ValueError, "at least 0, found -1"),
        (lambda: de.KVCounter(0), ValueError, "at least 1"),
        (lambda: de.KVCounter(8, key_type=tf.int32), TypeError, "int64 or uint64"),
        (lambda: Args("uniform"), TypeError, "DynamicEmbInitializerMode"),
        (lambda: Args(lower=1.0, upper=1.0), ValueError, "less than upper"),
        (lambda: Args(value=1.0), ValueError, "mode UNIFORM uses lower and upper"),
        (lambda: Args(Mode.NORMAL, lower=-1.0), ValueError, "mode NORMAL uses mean and std_dev"),
        (lambda: Args(Mode.TRUNCATED_NORMAL, std_dev=0), ValueError, "more than 0"),
        (lambda: config(0), ValueError, "num_embeddings: expected at least 1"),
        (lambda: de.EmbeddingConfig("a/b", 1, 1, ["f"]), ValueError, "a name of letters"),
        (lambda: de.EmbeddingConfig("a", 1, 1, "f"), TypeError, "a list of strings"),
        (lambda: de.EmbeddingConfig("a", 1, 1, ["f", "f"]), ValueError, "different names"),
        (lambda: de.EmbeddingConfig("a", 1, 1, ["f"], "FP32"), TypeError, "a DataType"),
        (
            lambda: de.EmbeddingBagConfig("a", 1, 1, ["f"], pooling=de.PoolingType.NONE),
            ValueError,
            "SUM or MEAN",
        ),
        (lambda: de.QCommsConfig("fp32"), TypeError, "a CommType"),
        (lambda: de.get_qcomm_codecs_registry(None), TypeError, "a QCommsConfig"),
    ],
)
def test_other_objects_check_their_values_too(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_tuple_of_one_strategy_is_that_strategy_and_eviction_follows():
    kind = de.DynamicEmbEvictStrategy
    follows = {
        (Score.TIMESTAMP,): kind.LRU,
        (Score.LFU,): kind.LFU,
        (Score.STEP,): kind.CUSTOMIZED,
        (Score.NO_EVICTION,): kind.CUSTOMIZED,
        (Score.LFU, Score.TIMESTAMP): kind.LFU,
    }
    changed = Options()
    for strategy, evicts in follows.items():
        changed.score_strategy = strategy
        made = Options(score_strategy=strategy)
        assert made.score_strategy == (strategy[0] if len(strategy) == 1 else strategy)
        assert made.evict_strategy == changed.evict_strategy == evicts


def test_equality_and_hash_take_seven_fields():
    # {field: another value}
    taken = {
        "training": False,
        "caching": True,
        "index_type": tf.uint64,
        "dist_type": "continuous",
        "score_strategy": Score.LFU,
        "admit_strategy": de.FrequencyAdmissionStrategy(2),
    }
    others = {"dim": 8, "bucket_capacity": 256, "global_hbm_for_values": 1, "init_capacity": 5}
    assert set(Options().get_grouped_key()) == {*taken, "external_storage"}
    for field, value in taken.items():
        assert Options(**{field: value}) != Options()
        same = Options(**{field: value}), Options(**{field: value})
        assert same[0] == same[1] and hash(same[0]) == hash(same[1])
    for field, value in others.items():
        assert Options(**{field: value}) == Options()
        assert hash(Options(**{field: value})) == hash(Options())
    assert Args(Mode.CONSTANT, value=1.0) != ZERO and Args(Mode.DEBUG) == Args(Mode.DEBUG)


def test_capacity_is_a_power_of_two_of_at_least_a_bucket():
    capacity = de.get_sharded_table_capacity
    assert [capacity(config(n), 1, 128) for n in (1, 128, 129, 1000)] == [128, 128, 256, 1024]
    assert [capacity(config(1000), w, 16) for w in (1, 3, 8, 100)] == [1024, 512, 128, 16]
    assert capacity(config(1000), 3, de.MAX_BUCKET_CAPACITY) == 336
    assert capacity(config(10), 1, 48) == 48
    assert [de.align_to_table_size(n) for n in (-1, 0, 1, 16, 17)] == [16, 16, 16, 16, 32]
    for world, bucket, message in ((0, 128, "world_size"), (1, 24, "a multiple of 16")):
        with pytest.raises(ValueError, match=message):
            capacity(config(), world, bucket)


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("data_type", [de.DataType.FP32, de.DataType.BF16])
@pytest.mark.parametrize("optimizer", list(de.EmbOptimType))
def test_bytes_are_those_of_rows_with_states(optimizer, data_type, dim):
    kinds = de.EmbOptimType
    rule = {
        kinds.ADAM: tf_multitier.optimizers.Adam,
        kinds.EXACT_ADAGRAD: tf_multitier.optimizers.Adagrad,
        kinds.EXACT_ROWWISE_ADAGRAD: tf_multitier.optimizers.RowwiseAdagrad,
    }.get(optimizer, tf_multitier.optimizers.SGD)()
    variable = tf_multitier.get_embedding_variable(
        f"bytes_{optimizer.value}_{data_type.value}_{dim}", dim, value_dtype=data_type.dtype
    )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(tf.nn.embedding_lookup(variable, [1]), tf.float32))
    rule.apply_gradients([(tape.gradient(loss, variable), variable)])
    tier = variable.stats()["tiers"][0]
    found = de.get_table_value_bytes(config(64, dim, data_type), optimizer, 2, 32)
    assert found == 2 * 32 * tier["row_bytes"] / tier["rows"]


def test_what_follows_from_the_config_is_filled_in_a_copy():
    given = Options(global_hbm_for_values=10_001, init_capacity=300, caching=True)
    found = sizes.completed(config(1000, 8, de.DataType.FP16), given, world_size=2)
    filled = ("embedding_dtype", "dim", "max_capacity", "local_hbm_for_values", "index_type")
    assert [getattr(found, f) for f in filled] == [tf.float16, 8, 512, 5001, tf.int64]
    assert found.init_capacity == 384 and given.init_capacity == 300 and given.dim is None
    assert sizes.completed(config(), Options(init_capacity=10**6)).init_capacity == 1024
    with pytest.raises(ValueError, match="dim: expected 16"):
        sizes.completed(config(), Options(dim=8))
    with pytest.raises(ValueError, match="global_hbm_for_values"):
        sizes.completed(config(), Options(caching=True))


def test_a_storage_of_the_user_is_below_the_tiers_that_are_named(tmp_path):
    class Mine(de.Storage):
        find = insert = erase = print

    path, external = str(tmp_path), {"external_storage": Mine}
    for given, expected in {
        "DRAM": "DRAM_EXTERNAL",
        "DRAM_PMEM": "DRAM_PMEM_EXTERNAL",
        "EXTERNAL": "EXTERNAL",
    }.items():
        options = Options(storage_type=given, storage_path=path, **external)
        done = sizes.completed(config(), options)
        assert done.storage_type == sizes.completed(config(), done).storage_type == expected
    with pytest.raises(ValueError, match="with external_storage: expected 'DRAM'"):
        Options(storage_type="DRAM_SSDHASH", storage_path=path, **external)


def test_rows_are_on_a_gpu_where_hbm_has_bytes_for_them(emulated_device, monkeypatch):
    kind = lambda **fields: sizes.completed(config(), Options(**fields)).storage_type
    some = {"local_hbm_for_values": 4096}
    assert kind(**some) == kind(global_hbm_for_values=4096) == "HBM_DRAM"
    assert kind() == "DRAM"
    assert kind(**some, storage_type="DRAM") == "DRAM"
    assert kind(**some, embedding_dtype=tf.bfloat16) == "HBM_DRAM"
    monkeypatch.delenv("TF_MULTITIER_DEVICE")
    assert kind(**some) == "DRAM"  # no GPU


def test_the_bytes_of_the_first_tier_hold_rows_with_states(tmp_path):
    def rows(kind, **fields):
        return sizes.rows_of_first_tier(
            config(), sizes.completed(config(), Options(**fields)), kind
        )

    below = {"storage_type": "DRAM_SSDHASH", "storage_path": str(tmp_path)}
    bytes_ = {"global_hbm_for_values": 64 * 300}
    kinds = de.EmbOptimType
    assert rows(kinds.SGD, **below, **bytes_) == 300 and rows(kinds.ADAM, **below, **bytes_) == 100
    assert rows(kinds.ADAM, training=False, **below, **bytes_) == 300
    assert rows(kinds.ADAM, **bytes_) == 1024 and rows(kinds.ADAM, **below) == 1023
    assert rows(kinds.ADAM, **below, global_hbm_for_values=1) == 1


@pytest.mark.parametrize("mode", [Mode.UNIFORM, Mode.TRUNCATED_NORMAL])
@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, (-0.1, 0.1)),
        ({"lower": 0.0}, (0.0, 0.1)),
        ({"upper": 0.05}, (-0.1, 0.05)),
        ({"lower": -2.0, "upper": 3.0}, (-2.0, 3.0)),
    ],
)
def test_a_bound_that_is_not_given_follows_from_num_embeddings(mode, given, bounds):
    args = Args(mode, **given)
    variable = tf_multitier.get_embedding_variable(
        f"bounds_{mode.value}_{len(given)}_{bounds[0] < 0}",
        64,
        initializer=initializers.of_args(args, 100),
    )
    rows = tf.nn.embedding_lookup(variable, np.arange(2000)).numpy()
    margin = 0.02 * (bounds[1] - bounds[0])
    assert bounds[0] <= rows.min() < bounds[0] + margin
    assert bounds[1] - margin < rows.max() <= bounds[1]
    assert args == Args(mode, **given)
    with pytest.raises(ValueError, match="less than upper"):
        initializers.of_args(Args(mode, lower=0.5), 100)


def test_a_new_row_depends_on_key_and_seed_alone():
    def rows(seed, keys):
        tf.random.set_seed(seed)
        variable = tf_multitier.get_embedding_variable(
            "seeded", 4, initializer=initializers.of_args(Args(Mode.NORMAL), 10)
        )
        return tf.nn.embedding_lookup(variable, keys).numpy()

    there = rows(1, [5, 6, 7])
    np.testing.assert_array_equal(there, rows(1, [7, 6, 5])[::-1])
    assert not np.isclose(there, rows(2, [5, 6, 7])).any()
    constant = initializers.of_args(Args(Mode.CONSTANT, value=0.5), 10)
    debug = initializers.of_args(Args(Mode.DEBUG), 10)
    for initializer, expected in ((constant, 0.5), (debug, 7.0)):
        variable = tf_multitier.get_embedding_variable(f"of_{expected}", 2, initializer=initializer)
        assert tf.nn.embedding_lookup(variable, [100_007]).numpy().tolist() == [[expected] * 2]


def test_a_jagged_tensor_is_the_same_from_lengths_and_offsets_in_eager_and_functions():
    values, weights = [1, 2, 3, 2**40], [0.5, 1.0, 1.5, 2.0]
    expected = {"a": [[1], []], "b": [[2, 3], [2**40]]}
    traced = tf.function(lambda jagged: (jagged.to_dict(), jagged.weights_to_dict()))
    for more in ({"lengths": [1, 0, 2, 1]}, {"offsets": [0, 1, 1, 3, 4]}):
        jagged = de.KeyedJaggedTensor(["a", "b"], values, weights=weights, **more)
        for ids, its in ((jagged.to_dict(), jagged.weights_to_dict()), traced(jagged)):
            assert {name: ragged.to_list() for name, ragged in ids.items()} == expected
            assert its["b"].to_list() == [[1.0, 1.5], [2.0]]
        assert jagged.keys() == ["a", "b"] and jagged["b"].to_list() == expected["b"]
        assert jagged.lengths().numpy().tolist() == [1, 0, 2, 1]
        assert jagged.offsets().numpy().tolist() == [0, 1, 1, 3, 4]
    [element] = tf.data.Dataset.from_tensors(jagged)
    assert element["b"].to_list() == expected["b"]
    for empty, rows in (([], []), ([0, 0], [[]])):
        jagged = de.KeyedJaggedTensor(["a", "b"], [], lengths=empty)
        assert jagged["a"].to_list() == rows and jagged.weights_to_dict() is None
    assert de.KeyedJaggedTensor([], [], lengths=[]).to_dict() == {}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"lengths": [1, 1, 1]}, ValueError, "a multiple of 2"),
        ({"lengths": [1, 2]}, tf.errors.InvalidArgumentError, "the sum of lengths"),
        ({"lengths": [3, -1]}, tf.errors.InvalidArgumentError, "lengths"),
        ({"offsets": [1, 2, 3]}, tf.errors.InvalidArgumentError, "the first of offsets"),
        ({"offsets": [0, 3, 2]}, tf.errors.InvalidArgumentError, "lengths"),
        ({"lengths": [1.0, 1.0]}, TypeError, "lengths: expected integers"),
        ({"lengths": [[1, 1]]}, ValueError, "expected shape"),
        ({"lengths": [1, 1], "weights": [1.0]}, ValueError, "one for each value"),
        ({"lengths": [1, 1], "offsets": [0, 1, 2]}, ValueError, "found both"),
        ({}, ValueError, "found none"),
        ({"lengths": [1, 1], "keys": ["a", "a"]}, ValueError, "each once"),
        ({"lengths": [1, 1], "keys": "ab"}, TypeError, "a list of strings"),
        ({"lengths": [1, 1], "values": [1.0, 2.0]}, TypeError, "values: expected integers"),
    ],
)
def test_a_jagged_tensor_whose_shapes_do_not_match_is_refused(given, error, message):
    given = {"keys": ["a", "b"], "values": [1, 2], **given}
    with pytest.raises(error, match=message):
        de.KeyedJaggedTensor(**given)
    vectors = {k: np.array(v) for k, v in given.items() if k != "keys"}
    unknown = [tf.TensorSpec([None] * v.ndim, v.dtype) for v in vectors.values()]

    @tf.function(input_signature=unknown)
    def traced(*tensors):
        jagged = de.KeyedJaggedTensor(given["keys"], **dict(zip(vectors, tensors)))
        return jagged.lengths(), jagged.weights_or_none() is None

    with pytest.raises(
        (error, tf.errors.InvalidArgumentError),
        match=message.replace("a multiple of 2", "as many lengths").replace(
            "one for each", "a weight for each"
        ),
    ):
        traced(*vectors.values())
