"""Variables with tiers below DRAM: the same values bit for bit, and each row in the tier that the documentation states."""

import numpy as np
import pytest
from pairs import WORLDS
from pairs import pairwise
import tensorflow as tf
from engine_util import TYPES
from storage_util import HBM_TYPES
from storage_util import KEYS
from storage_util import Model
from storage_util import WorldModel
from storage_util import batches
from storage_util import option
from storage_util import started
from rule_cases import CASES

import tf_multitier
import worlds

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("emulated_device")  # which changes types with HBM alone

# ---- the same bits as DRAM


NOT_ON_HBM = ("adadelta", "adagrad_decay", "adagrad_decay_v2")


def train_and_compare(models, steps=20, expire_every=None):
    """Trains models[0] on DRAM and the others with the same batches; everything they hold and read must agree."""
    expire = [model.ev.expire(model.step) for model in models] if expire_every else []
    with started() as session:
        for number, (ids, grads) in enumerate(batches(steps, models[0].dim)):
            for model in models:
                model.run(session, ids, grads, step=model is models[-1])
            probe = np.concatenate([ids[:4], KEYS[number::7]])
            expected, *found = [model.look_up(session, probe) for model in models]
            for values in found:
                np.testing.assert_array_equal(values, expected)
            if expire_every and number % expire_every == 0:
                assert len(set(session.run(expire))) == 1
        expected = models[0].content(session)
        for model in models[1:]:
            assert model.content(session) == expected
        for query in ("frequency", "version"):
            expected_answer, *found = [
                session.run(getattr(model, query), {model.ids: KEYS}) for model in models
            ]
            for answer in found:
                np.testing.assert_array_equal(answer, expected_answer)
        return expected


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_optimizer_trains_on_four_rows_of_dram_as_on_dram(graph, name, tmp_path):
    make = CASES[name].make
    models = [
        Model(None, "dram", optimizer=make),
        Model(option("DRAM_SSDHASH", tmp_path, 48), "tiers", optimizer=make),
        Model(option("DRAM_SSDHASH", tmp_path, 48), "parts", parts=3, optimizer=make),
    ]
    if CASES[name].rule not in NOT_ON_HBM:
        models.append(Model(option("HBM_DRAM_SSDHASH", tmp_path, 48), "hbm", optimizer=make))
    rows, _ = train_and_compare(models)
    assert len(rows) == len(KEYS)


@pytest.mark.parametrize("name", sorted(n for n in CASES if CASES[n].rule in NOT_ON_HBM))
def test_an_optimizer_without_a_kernel_is_refused_on_hbm_and_changes_nothing(graph, name, tmp_path):
    model = Model(option("HBM_DRAM", tmp_path, 48), optimizer=CASES[name].make)
    with started() as session:
        before = model.look_up(session, [1, 2])
        with pytest.raises(
            tf.errors.UnimplementedError, match="does not run on tables in HBM; sgd"
        ):
            model.run(session, [1, 2])
        np.testing.assert_array_equal(model.look_up(session, [1, 2]), before)
        assert model.stats(session)["rows"] == 0


POLICIES = {
    "counter": dict(filter_option=tf_multitier.CounterFilter(3)),
    "bloom": dict(filter_option=tf_multitier.CBFFilter(3, 1000)),
    "probabilistic": dict(filter_option=tf_multitier.ProbabilisticFilter(0.3)),
    "steps": dict(evict_option=tf_multitier.GlobalStepEvict(6)),
    "l2": dict(evict_option=tf_multitier.L2WeightEvict(0.8)),
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("kind", TYPES + HBM_TYPES)
def test_admission_and_expiry_work_over_every_storage_type(graph, kind, policy, tmp_path):
    make = lambda step: v1.train.AdagradOptimizer(0.5)
    models = [
        Model(storage, name, optimizer=make, **POLICIES[policy])
        for name, storage in (("dram", None), ("tiers", option(kind, tmp_path, 32)))
    ]
    expire_every = 4 if "evict_option" in POLICIES[policy] else None
    rows, _ = train_and_compare(models, steps=15, expire_every=expire_every)
    assert 0 < len(rows) < len(KEYS)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("kind", ["DRAM_SSDHASH", "DRAM_PMEM_LEVELDB"])
def test_admission_and_expiry_train_the_same_bits_in_each_world(kind, policy, tmp_path):
    found = []
    for name in worlds.WORLDS if worlds.has_eager() else worlds.WORLDS[:1]:
        with worlds.make_world(name) as world:
            storage = option(kind, tmp_path / name, 32)
            model = WorldModel(world, storage, rule="adagrad", **POLICIES[policy])
            for number, (ids, grads) in enumerate(batches(20, 4)):
                model.run(ids, grads)
                if number % 4 == 0 and "evict_option" in POLICIES[policy]:
                    world.run(model.ev.expire, np.int64(number))
            queries = [model.ask(q, KEYS) for q in ("get_frequency", "get_version")]
            found.append((model.content(), [answer.tolist() for answer in queries]))
    assert all(other == found[0] for other in found)
    assert 0 < len(found[0][0][0]) < len(KEYS)


def test_the_last_tier_drops_its_coldest_rows_where_the_option_says_so(world, tmp_path):
    full = option("DRAM_SSDHASH", tmp_path, cache_strategy="LRU")
    bounded = tf_multitier.StorageOption("DRAM_SSDHASH", str(tmp_path), [64, 64], "LRU")
    dropping = tf_multitier.StorageOption(
        "DRAM_SSDHASH", str(tmp_path), [64, 64], "LRU", drop_coldest=True
    )
    models = [
        WorldModel(world, storage, name)
        for storage, name in ((full, "full"), (bounded, "bounded"), (dropping, "dropping"))
    ]
    for model in models:
        for key in range(8):
            model.run([key])
    models[0].run([8])
    with pytest.raises(tf.errors.ResourceExhaustedError, match="bounded"):
        models[1].run([8])
        models[1].run([9])
    models[2].run([8])
    models[2].ask("drain")
    assert models[2].ask("pop_dropped").tolist() == [0]
    assert models[2].ask("pop_dropped").tolist() == []
    assert models[2].tiers(np.arange(9)) == [-1] + [1] * 4 + [0] * 4
    assert models[2].stats()["dropped"] == 1
    np.testing.assert_array_equal(models[2].look_up([1, 8]), models[0].look_up([1, 8]))


@pytest.mark.parametrize("answer", ["error", "reinit", "drop"])
def test_damaged_rows_are_refused_begin_anew_or_go_as_the_option_says(world, answer, tmp_path):
    model = WorldModel(
        world,
        option("DRAM_PMEM", tmp_path, on_corruption=answer),
        initializer=v1.zeros_initializer(),
    )
    keys = np.arange(300)
    model.run(keys)
    model.ask("drain")
    for file in tmp_path.rglob("*.pmem"):
        content = bytearray(file.read_bytes())
        content[4096 + 40 :: 640] = [
            byte ^ 8 for byte in content[4096 + 40 :: 640]
        ]  # in every tenth row
        with open(file, "r+b") as mapped:
            mapped.write(content)
    if answer == "error":
        with pytest.raises(tf.errors.DataLossError, match=r"'ev'.*key \d+.*offset"):
            model.look_up(keys)
        with pytest.raises(tf.errors.DataLossError, match=r"'ev'.*reading all rows, key \d+"):
            model.ask("export")
        return
    found = model.look_up(keys)
    damaged = np.flatnonzero((found == 0).all(1))
    assert 10 < len(damaged) < 100 and (np.delete(found, damaged, 0) == -0.5).all()
    assert model.stats()["corrupt"] >= len(damaged)
    assert len(model.ask("export")[0]) == 300 - (len(damaged) if answer == "drop" else 0)
    assert sorted(model.ask("pop_dropped")) == (damaged.tolist() if answer == "drop" else [])


# ---- where rows are


class Order:
    """The definition: rows in order of (frequency,) last use; the first few in DRAM, the next ones in the next tier."""

    def __init__(self, strategy):
        self.strategy, self.clock, self.frequency, self.used = strategy, 0, {}, {}

    def use(self, ids, trained):
        for key in ids:
            if trained:
                self.frequency[key] = self.frequency.get(key, 0) + 1
            if key in self.frequency:
                self.clock += 1
                self.used[key] = self.clock

    def tiers(self, keys, sizes):
        rank = lambda k: (self.frequency[k] if self.strategy == "LFU" else 0, self.used[k])
        ordered = sorted(self.frequency, key=rank, reverse=True)
        bounds = np.cumsum(sizes)
        place = {
            key: int(np.searchsorted(bounds, i, side="right")) for i, key in enumerate(ordered)
        }
        return [place.get(key, -1) for key in keys]


def test_lru_of_four_rows_by_hand(world, tmp_path):
    model = WorldModel(world, option("DRAM_SSDHASH", tmp_path, cache_strategy="LRU"))
    model.run([1, 2, 3, 4])
    assert model.tiers([1, 2, 3, 4, 5]) == [0, 0, 0, 0, -1]
    model.run([5])  # 1 was used first
    assert model.tiers([1, 2, 3, 4, 5]) == [1, 0, 0, 0, 0]
    model.look_up([2])
    model.run([6])  # 2 has just been used: 3 is demoted
    assert model.tiers([1, 2, 3, 4, 5, 6]) == [1, 0, 1, 0, 0, 0]
    model.look_up([1])  # 1 is promoted, 4 is demoted
    assert model.tiers([1, 2, 3, 4, 5, 6]) == [0, 0, 1, 1, 0, 0]
    # More than fit: the last four by their last occurrence stay.
    model.run([10, 11, 12, 13, 10, 14])
    assert model.tiers([1, 10, 11, 12, 13, 14]) == [1, 0, 1, 0, 0, 0]


def test_lfu_of_four_rows_by_hand(world, tmp_path):
    model = WorldModel(
        world, option("DRAM_SSDHASH", tmp_path, cache_strategy=tf_multitier.CacheStrategy.LFU)
    )
    model.run([1, 1, 1, 2, 2, 3, 4, 4])
    model.run([5, 5])  # 3 was trained on once
    assert model.tiers([1, 2, 3, 4, 5]) == [0, 0, 1, 0, 0]
    model.run([6])  # once: less than all others
    assert model.tiers([1, 2, 3, 4, 5, 6]) == [0, 0, 1, 0, 0, 1]
    model.run([3, 3])  # three times by now; 2, 4 and 5 twice, of which 2 is oldest
    assert model.tiers([1, 2, 3, 4, 5, 6]) == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("strategy", ["LRU", "LFU"])
@pytest.mark.parametrize(
    "kind, sizes",
    [
        ("DRAM_SSDHASH", [4]),
        ("DRAM_LEVELDB", [4]),
        ("DRAM_PMEM", [4]),
        ("DRAM_PMEM_SSDHASH", [4, 5]),
        ("DRAM_PMEM_LEVELDB", [4, 5]),
    ],
)
def test_tiers_are_those_of_the_definition_over_random_uses(world, kind, sizes, strategy, tmp_path):
    model = WorldModel(
        world, tf_multitier.StorageOption(kind, str(tmp_path), [16 * n for n in sizes], strategy)
    )
    order, rng = Order(strategy), np.random.default_rng(len(kind))
    keys = np.arange(16)
    for number in range(30):
        ids = rng.integers(0, 16, rng.integers(1, 7)).tolist()
        if rng.random() < 0.7:
            model.run(ids)
            order.use(ids, False)
            order.use(ids, True)
        else:
            model.look_up(ids)
            order.use(ids, False)
        assert model.tiers(keys) == order.tiers(keys.tolist(), sizes), (number, ids)


@pytest.mark.parametrize("kind", TYPES)
def test_statistics_say_what_each_tier_holds_and_did(world, kind, tmp_path):
    model = WorldModel(world, option(kind, tmp_path))
    names = kind.lower().split("_")
    for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 9]):
        model.run(ids)
    model.ask("drain")
    stats = model.stats()
    assert [tier["name"] for tier in stats["tiers"]] == names
    assert sum(tier["rows"] for tier in stats["tiers"]) == stats["rows"] == 12
    for tier in stats["tiers"]:
        assert tier["row_bytes"] == 16 * tier["rows"]
    for tier in stats["tiers"][:-1]:
        assert tier["budget_bytes"] == 64 and tier["rows"] == 4
    last = stats["tiers"][-1]
    assert last["budget_bytes"] == 0 and last["resident_bytes"] + last["stored_bytes"] > 0
    if kind == "PMEM":  # its rows are where they are used
        assert last["rows"] == 12 and last["writes"] == last["reads"] == last["demotions"] == 0
    else:
        assert last["writes"] >= last["rows"]
    if len(names) > 1:
        assert (
            last["demotions"] >= last["rows"]
            and last["promotions"] + stats["tiers"][1]["promotions"] >= 2
        )


@pytest.mark.parametrize("kind", HBM_TYPES)
def test_statistics_begin_with_what_hbm_holds_and_did(world, kind, tmp_path):
    model = WorldModel(world, option(kind, tmp_path))
    for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 9]):
        model.run(ids)
    model.ask("drain")
    stats = model.stats()
    assert sorted(model.tiers(np.arange(1, 13)))[:4] == [0] * 4
    hbm = stats["tiers"][0]
    # Rows that were made in HBM and have not left it yet are in no other tier.
    assert [tier["name"] for tier in stats["tiers"]] == kind.lower().split("_")
    assert stats["rows"] == stats["created"] == 12 and stats["updates"] == 15
    assert (hbm["rows"], hbm["row_bytes"], hbm["budget_bytes"]) == (4, 64, 64)
    assert 8 <= sum(tier["rows"] for tier in stats["tiers"][1:]) <= 12
    assert hbm["hits"] >= 1 and hbm["misses"] >= 12 and hbm["resident_bytes"] > 64
    assert stats["tiers"][1]["demotions"] >= 8 and stats["tiers"][1]["promotions"] >= 2


@pairwise(world=WORLDS, kind=["DRAM_SSDHASH", "HBM_DRAM_SSDHASH"], parts=[1, 3])
def test_peek_and_compact_of_a_variable_change_nothing_it_holds(world, kind, parts, tmp_path):
    model = WorldModel(world, option(kind, tmp_path), parts=parts)
    probe = np.array([[1, 2, 9], [12, 99, 1]])
    for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12], [1, 2, 9]):
        model.run(ids)
    model.ask("drain")
    before, values = model.ask("lookup_tier", probe), model.ask("peek", probe)
    assert values.shape == (2, 3, 4)
    model.ask("compact")
    np.testing.assert_array_equal(model.ask("lookup_tier", probe), before)
    np.testing.assert_array_equal(model.look_up(probe), values)


# ---- checkpoints


@pytest.mark.parametrize(
    "saved, restored, parts",
    [
        ("DRAM_SSDHASH", "DRAM", (1, 1)),
        ("DRAM", "DRAM_LEVELDB", (1, 2)),
        ("DRAM_PMEM_SSDHASH", "LEVELDB", (2, 1)),
        ("SSDHASH", "DRAM_PMEM", (2, 3)),
        ("PMEM", "DRAM_PMEM_LEVELDB", (1, 1)),
        ("LEVELDB", "SSDHASH", (1, 1)),
        ("HBM_DRAM_SSDHASH", "DRAM", (2, 1)),
        ("DRAM", "HBM_DRAM", (1, 2)),
    ],
)
def test_a_checkpoint_of_one_storage_type_is_restored_into_another(
    saved, restored, parts, tmp_path
):
    def build(kind, n):
        storage = None if kind == "DRAM" else option(kind, tmp_path, 32)
        return Model(
            storage,
            parts=n,
            optimizer=lambda step: v1.train.AdagradOptimizer(0.5),
            filter_option=tf_multitier.CounterFilter(2),
        )

    with tf.Graph().as_default():
        model, saver = build(saved, parts[0]), v1.train.Saver()
        with started() as session:
            for ids, grads in batches(10, 4):
                model.run(session, ids, grads)
            path = saver.save(session, str(tmp_path / "model"))
            expected = model.content(session)
            model.run(session, KEYS)
            continued = model.content(session)
    assert expected[0] and expected[1]
    with tf.Graph().as_default():
        model, saver = build(restored, parts[1]), v1.train.Saver()
        with v1.Session() as session:
            saver.restore(session, path)
            assert model.content(session) == expected
            model.run(session, KEYS)
            assert model.content(session) == continued


def test_asynchronous_compaction_changes_no_value(world, monkeypatch, tmp_path):
    monkeypatch.setenv("TF_SSDHASH_ASYNC_COMPACTION", "1")
    models = [WorldModel(world, None, "dram"), WorldModel(world, option("DRAM_SSDHASH", tmp_path))]
    for ids, grads in batches(20, 4):
        for model in models:
            model.run(ids, grads, counts=model is models[-1])
        np.testing.assert_array_equal(*[model.look_up(KEYS) for model in models])
    assert models[0].content() == models[1].content()
