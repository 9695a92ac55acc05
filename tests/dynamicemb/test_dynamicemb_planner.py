"""From constraints to tables: planner, sharder and DistributedModelParallel of dynamicemb."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from worlds import needs_eager

from tf_multitier import dynamicemb as de
from tf_multitier.dynamicemb import parallel as refused

pytestmark = needs_eager

ADAM = {"optimizer": de.EmbOptimType.ADAM, "learning_rate": 0.01}


def tables(*names, dim=4, kind=de.EmbeddingConfig, rows=1000):
    return [kind(name, dim, rows, [name]) for name in names]


def dynamic(**options):
    return de.DynamicEmbParameterConstraints(
        use_dynamicemb=True, dynamicemb_options=de.DynamicEmbTableOptions(**options)
    )


def planner_of(configs, constraints=None, **kwargs):
    constraints = constraints or {config.name: dynamic() for config in configs}
    return de.DynamicEmbeddingShardingPlanner(configs, constraints=constraints, **kwargs)


def sharder(**params):
    return de.DynamicEmbeddingCollectionSharder({**ADAM, **params})


def parallel_of(module, configs, constraints=None, **kwargs):
    one = sharder()
    plan = planner_of(configs, constraints, **kwargs).collective_plan(module, [one])
    return de.DistributedModelParallel(module, sharders=[one], plan=plan)


class Towers(tf.Module):
    """Collections in a dict, in a list and in a module of a module."""

    def __init__(self, names):
        super().__init__()
        self.towers = {"one": [de.EmbeddingCollection(tables(names[0]))]}
        self.layers = keras.Sequential([keras.layers.Dense(1)])  # a name that Keras has, too
        self.inner = tf.Module()
        self.inner.bags = de.EmbeddingBagCollection(tables(names[1], kind=de.EmbeddingBagConfig))

    def __call__(self, ids):
        rows = self.towers["one"][0]({"a": ids})["a"]
        return tf.reduce_sum(rows.flat_values**2) + tf.reduce_sum(self.inner.bags({"b": ids})["b"])


def test_a_plan_fills_in_options_and_prints_rows_and_bytes(capsys):
    configs = [*tables("user", dim=64), *tables("item", rows=10)]
    constraints = {
        "user": dynamic(global_hbm_for_values=10_001, init_capacity=200),
        "item": de.DynamicEmbParameterConstraints(["row_wise"]),
    }
    topology = de.Topology(8, "cuda", 80 << 30, 512 << 30, 8, 450e9, 25e9)
    enumerator = de.DynamicEmbeddingEnumerator(topology, constraints=constraints)
    planner = planner_of(
        configs,
        constraints,
        enumerator=enumerator,
        topology=topology,
        batch_size=64,
        storage_reservation=de.HeuristicalStorageReservation(percentage=0.05),
    )
    collection = de.EmbeddingCollection(configs, device="meta")
    plan = planner.collective_plan(collection, [sharder()], object())
    found = plan["user"]
    assert (found.dim, found.max_capacity, found.init_capacity) == (64, 128, 128)
    assert (found.local_hbm_for_values, found.embedding_dtype) == (1251, tf.float32)
    assert plan["item"] is None and constraints["user"].dynamicemb_options.dim is None
    text = capsys.readouterr().out
    total = de.get_table_value_bytes(configs[0], de.EmbOptimType.ADAM, 8) // 8
    assert f"user: at most 128 rows of 768 bytes, {total:,} bytes" in text
    assert "item: a static variable of 10 rows, 160 bytes" in text and "world of 8" in text
    quiet = planner_of(configs, constraints, topology=topology, debug=False)
    assert quiet.collective_plan(collection, [sharder()]).keys() == plan.keys()
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="expected one for a world of 1, found one for 8"):
        de.DistributedModelParallel(collection, sharders=[sharder()], plan=plan)
    assert not collection.tables_by_name


def test_collections_at_any_depth_train_by_one_call():
    model = Towers(["a", "b"])
    configs = [*tables("a"), *tables("b", kind=de.EmbeddingBagConfig)]
    made = parallel_of(model, configs, {"a": dynamic(), "b": de.DynamicEmbParameterConstraints()})
    ids = tf.ragged.constant([[1, 2], [], [2]], dtype=tf.int64)
    first, second = made.parameters()
    assert isinstance(second, tf.Variable) and second.shape == (1000, 4)
    before, static = tf.nn.embedding_lookup(first, [1, 2, 3]).numpy(), second.numpy()
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = made(ids)
        made.apply_gradients(tape.gradient(loss, made.parameters()))
    after = tf.nn.embedding_lookup(first, [1, 2, 3]).numpy()
    assert (after[:2] != before[:2]).all() and (after[2] == before[2]).all()
    changed = (second.numpy() != static).any(1)
    assert np.flatnonzero(changed).tolist() == [1, 2]
    assert int(first.total_count()) == 2
    with pytest.raises(ValueError, match=r"expected 2, one for each of parameters\(\), found 1"):
        made.apply_gradients([None])
    made.apply_gradients([None, tf.IndexedSlices(tf.ones([1, 4]), [5], [1000, 4])])
    assert (second.numpy()[5] != static[5]).all() and int(first.total_count()) == 2


def test_a_table_grows_beyond_what_it_reserved():
    configs = tables("a")
    made = parallel_of(
        de.EmbeddingCollection(configs),
        configs,
        {"a": dynamic(init_capacity=256, bucket_capacity=256)},
    )
    keys = tf.range(300, dtype=tf.int64)
    with tf.GradientTape() as tape:
        rows = made({"a": keys})["a"]
    made.apply_gradients(tape.gradient(rows, made.parameters()))
    [variable] = made.parameters()
    assert int(variable.total_count()) == 300
    np.testing.assert_allclose(made({"a": keys})["a"], rows - 0.01, rtol=1e-4, atol=1e-6)


def test_one_jagged_tensor_is_for_all_collections_each_with_the_optimizer_of_its_sharder():
    rows, bags = tables("a"), tables("b", kind=de.EmbeddingBagConfig)
    module = {
        "rows": de.EmbeddingCollection(rows),
        "bags": de.EmbeddingBagCollection(bags, is_weighted=True),
    }
    sharders = [
        sharder(),
        de.DynamicEmbeddingBagCollectionSharder({"optimizer": de.EmbOptimType.SGD}),
    ]
    plan = planner_of([*rows, *bags]).collective_plan(module, sharders)
    made = de.DistributedModelParallel(module, None, sharders, plan)
    kinds = {name: each.fused_params["optimizer"].name for name, each in module.items()}
    assert kinds == {"rows": "ADAM", "bags": "SGD"}
    jagged = de.KeyedJaggedTensor.from_lengths_sync(["a", "b"], [1, 2, 3], [1, 2], [1.0, 2.0, 4.0])
    with tf.GradientTape() as tape:
        of_rows, of_bags = (each(jagged) for each in module.values())
        loss = tf.reduce_sum(of_rows["a"].flat_values) + tf.reduce_sum(of_bags["b"])
    made.apply_gradients(tape.gradient(loss, made.parameters()))
    assert list(of_rows) == ["a"] and list(of_bags) == ["b"]
    assert [int(variable.total_count()) for variable in made.parameters()] == [1, 2]
    unweighted = {"rows": de.EmbeddingCollection(rows), "more": de.EmbeddingCollection(tables("b"))}
    parallel_of(unweighted, [*rows, *tables("b")])
    with pytest.raises(ValueError, match="weights: expected none"):
        unweighted["rows"](jagged)
    other = de.KeyedJaggedTensor.from_offsets_sync(["a", "x"], [1], [0, 1, 1])
    with pytest.raises(ValueError, match="features: expected .*'a'.*found 'x'"):
        module["rows"](other)
    with pytest.raises(ValueError, match="for table 'a' of an EmbeddingCollection, found none"):
        planner_of([*rows, *bags]).collective_plan(module, sharders[1:])


def test_train_and_eval_are_of_all_collections():
    made = parallel_of(Towers(["a", "b"]), [*tables("a"), *tables("b", kind=de.EmbeddingBagConfig)])
    ids = tf.ragged.constant([[1]], dtype=tf.int64)
    assert float(made.eval()(ids)) == 0.0 and float(made.train()(ids)) != 0.0
    assert float(made.train(False)(ids)) == 0.0
    assert made.stands_for is made.module


def test_a_plan_for_other_tables_is_refused_before_anything_is_made():
    configs = tables("a", "b")
    collection = de.EmbeddingCollection(configs)
    plan = planner_of(configs).collective_plan(collection, [sharder()])
    others = {
        "found \\['a', 'b'\\]": tables("a"),
        "expected the tables \\['a', 'c'\\]": tables("a", "c"),
        "num_embeddings=1000": tables("a", "b", rows=2000),
        "embedding_dim=4": tables("a", "b", dim=8),
    }
    for message, given in others.items():
        other = de.EmbeddingCollection(given)
        with pytest.raises(ValueError, match=message):
            de.DistributedModelParallel(other, sharders=[sharder()], plan=plan)
        with pytest.raises(ValueError, match="DynamicEmbeddingShardingPlanner: module"):
            planner_of(configs).collective_plan(other, [sharder()])
        assert not other.tables_by_name
    twice = {"x": collection, "y": de.EmbeddingCollection(tables("a"))}
    with pytest.raises(ValueError, match=r"'a' twice, also in model.y"):
        planner_of(configs).collective_plan(twice, [sharder()])
    with pytest.raises(ValueError, match="expected a model with an EmbeddingCollection"):
        planner_of(configs).collective_plan(tf.Module(), [sharder()])
    de.DistributedModelParallel(collection, None, [sharder()], plan)
    with pytest.raises(RuntimeError, match="create"):
        de.DistributedModelParallel(collection, None, [sharder()], plan)


def test_a_table_that_cannot_be_made_leaves_every_collection_without_tables(tmp_path):
    (tmp_path / "file").touch()  # no folder
    bad = dynamic(storage_type="SSDHASH", storage_path=str(tmp_path / "file"))
    module = Towers(["a", "b"])
    configs = [*tables("a"), *tables("b", kind=de.EmbeddingBagConfig)]
    with pytest.raises(tf.errors.OpError, match="file"):
        parallel_of(module, configs, {"a": dynamic(), "b": bad})
    assert not module.towers["one"][0].tables_by_name and not module.inner.bags.tables_by_name
    parallel_of(module, configs)


CONFIGS = tables("a")
Constraints = de.DynamicEmbParameterConstraints
TOPOLOGY = de.Topology(2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sharder(momentums=1), ValueError, "momentums"),
        (lambda: sharder(learning_rate="fast"), TypeError, "learning_rate"),
        (
            lambda: de.DynamicEmbeddingCollectionSharder({}, qcomm_codecs_registry=3),
            TypeError,
            "qcomm_codecs_registry",
        ),
        (
            lambda: de.DynamicEmbeddingCollectionSharder({}, use_index_dedup="yes"),
            TypeError,
            "use_index_dedup",
        ),
        (lambda: de.Topology(0), ValueError, "world_size: expected at least 1"),
        (lambda: de.Topology(2, local_world_size=3), ValueError, "at most 2"),
        (lambda: de.Topology(compute_device="tpu"), ValueError, "'cpu' or 'cuda'"),
        (lambda: de.Topology(hbm_cap=-1), ValueError, "hbm_cap: expected at least 0"),
        (lambda: de.HeuristicalStorageReservation(5), ValueError, "expected 0 to 1"),
        (
            lambda: Constraints(["column_wise"], use_dynamicemb=True),
            ValueError,
            "expected row_wise; found 'column_wise'",
        ),
        (lambda: Constraints(pooling_factors=3), TypeError, "pooling_factors: expected a list"),
        (
            lambda: Constraints(compute_kernels="fused"),
            TypeError,
            "compute_kernels: expected a list",
        ),
        (lambda: Constraints(min_partition=0), ValueError, "min_partition: expected at least 1"),
        (lambda: Constraints(device_group="tpu"), ValueError, "device_group: expected 'cpu'"),
        (
            lambda: Constraints(cache_params=1),
            NotImplementedError,
            "cache_params: expected None, found 1: global_hbm_for_values",
        ),
        (
            lambda: Constraints(bounds_check_mode=de.BoundsCheckMode.IGNORE),
            NotImplementedError,
            "bounds_check_mode: expected None, NONE or FATAL",
        ),
        (
            lambda: planner_of(CONFIGS, {"a": Constraints(feature_names=["b"])}).collective_plan(
                de.EmbeddingCollection(CONFIGS), [sharder()]
            ),
            ValueError,
            r"feature_names: expected \['a'\]",
        ),
        (
            lambda: de.DynamicEmbParameterConstraints(dynamicemb_options={}),
            TypeError,
            "expected DynamicEmbTableOptions",
        ),
        (
            lambda: de.DynamicEmbeddingEnumerator(TOPOLOGY, estimator=print),
            NotImplementedError,
            "estimator: expected None",
        ),
        (lambda: de.DynamicEmbeddingEnumerator("cpu"), TypeError, "expected a Topology"),
        (lambda: planner_of(CONFIGS, stats=[]), NotImplementedError, "stats: expected None"),
        (lambda: planner_of([*CONFIGS, *CONFIGS]), ValueError, "different names"),
        (lambda: planner_of(CONFIGS[0], {"a": dynamic()}), TypeError, "a list of EmbeddingConfig"),
        (lambda: de.DynamicEmbeddingShardingPlanner(CONFIGS), ValueError, "constraints"),
        (lambda: planner_of(CONFIGS, {"b": dynamic()}), ValueError, r"expected the tables \['a'\]"),
        (lambda: planner_of(CONFIGS, {"a": None}), TypeError, "DynamicEmbParameterConstraints"),
        (
            lambda: planner_of(
                CONFIGS,
                topology=de.Topology(),
                enumerator=de.DynamicEmbeddingEnumerator(TOPOLOGY),
            ),
            ValueError,
            "expected the topology of the planner",
        ),
        (
            lambda: planner_of(CONFIGS).collective_plan(de.EmbeddingCollection(CONFIGS), []),
            ValueError,
            "expected a DynamicEmbeddingCollectionSharder, ",
        ),
        (
            lambda: parallel_of(
                de.EmbeddingCollection(CONFIGS), CONFIGS, {"a": dynamic(caching=True)}
            ),
            ValueError,
            "global_hbm_for_values",
        ),
        (
            lambda: de.DistributedModelParallel(
                de.EmbeddingCollection(CONFIGS), sharders=[sharder()], plan={}
            ),
            TypeError,
            "what collective_plan returned",
        ),
        (
            lambda: refused.BatchedDynamicEmbeddingTablesV2([], ["a"]),
            NotImplementedError,
            "BatchedDynamicEmbeddingTablesV2.*EmbeddingCollection.create",
        ),
        (
            lambda: refused.InferenceEmbeddingTable(),
            NotImplementedError,
            "InferenceEmbeddingTable.*tf_multitier.serving",
        ),
    ],
)
def test_a_bad_value_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_constraints_of_torchrec_that_one_process_needs_not_are_taken():
    taken = Constraints(
        ["row_wise"],
        ["fused"],
        pooling_factors=[10],
        num_poolings=[1],
        batch_sizes=[64],
        enforce_hbm=True,
        bounds_check_mode=de.BoundsCheckMode.NONE,
        feature_names=["a"],
        device_group="cuda",
        use_dynamicemb=True,
    )
    made = parallel_of(de.EmbeddingCollection(CONFIGS), CONFIGS, {"a": taken})
    assert not made.module.tables_by_name["a"].is_static


def test_options_that_programs_give_to_all_tables_alike_are_taken():
    """A counter where nothing is admitted, and no score of a static table."""
    configs = tables("a", "b")
    kinds = [de.ShardingType.DATA_PARALLEL.value]
    static = Constraints(kinds, dynamicemb_options=de.DynamicEmbTableOptions(score_strategy=None))
    counting = dynamic(admission_counter=de.KVCounter(8))
    module = de.EmbeddingCollection(configs)
    made = parallel_of(module, configs, {"a": counting, "b": static})
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(made({"a": [5], "b": [6]})["a"])
    made.apply_gradients(tape.gradient(loss, made.parameters()))
    assert module.tables_by_name["b"].is_static
    assert int(module.tables_by_name["a"].variable.total_count()) == 1
    with pytest.raises(ValueError, match="table 'a': score_strategy: expected .*found None"):
        planner_of(CONFIGS, {"a": dynamic(score_strategy=None)}).collective_plan(
            de.EmbeddingCollection(CONFIGS), [sharder()]
        )


def test_the_planner_takes_the_topology_of_its_enumerator():
    collection = de.EmbeddingCollection(CONFIGS)
    planner = planner_of(CONFIGS, enumerator=de.DynamicEmbeddingEnumerator(TOPOLOGY))
    plan = planner.collective_plan(collection, [sharder()])
    assert plan.world_size == 2 and plan["a"].max_capacity == 512
