"""DynamicEmbDump, DynamicEmbLoad and incremental_dump: the files of dynamicemb, one moment, all checks before any change."""

import collections
import json
import os
import shutil
import threading
import time
import warnings
import zlib

import dynamicemb_util as util
import numpy as np
import pytest

from dynamicemb_dump_util import arguments
from dynamicemb_dump_util import assert_same
from dynamicemb_dump_util import DIMS
from dynamicemb_dump_util import EVICTION
from dynamicemb_dump_util import everything
from dynamicemb_dump_util import hand_made
from dynamicemb_dump_util import make
from dynamicemb_dump_util import PAIR
from dynamicemb_dump_util import read
from dynamicemb_dump_util import STRATEGY
from dynamicemb_dump_util import train
from tf_multitier import dynamicemb as de
from tf_multitier._src.variable import object_checkpoint
from worlds import needs_eager

pytestmark = needs_eager
KIND = de.EmbOptimType
BATCHES = [[1, 2, 2], [2, 3], [-7, 3, 3, 3], [2**40, 1]]


def by_key(path, table, item, dtype, width=1):
    keys = read(path, table, "emb_keys", np.int64)
    return dict(zip(keys.tolist(), read(path, table, item, dtype, width).tolist(), strict=True))


@pytest.mark.parametrize("strategy", EVICTION, ids=str)
def test_a_reader_of_the_format_finds_the_rows(strategy, tmp_path):
    path, model = str(tmp_path), make(strategy, KIND.ADAM)
    counts, last, times = collections.Counter(), {}, [time.time_ns()]
    for i, batch in enumerate(BATCHES):
        if strategy is STRATEGY.CUSTOMIZED:
            de.set_score(model, 10 * i + 10)
        train(model, batch)
        times.append(time.time_ns())
        counts.update(batch)
        last.update(dict.fromkeys(batch, i))
    de.DynamicEmbDump(path, model, optim=True)
    end = time.time_ns()
    for table, dim in DIMS.items():
        variable = model.tables_by_name[table].variable
        keys = read(path, table, "emb_keys", np.int64)
        assert sorted(keys.tolist()) == sorted(counts)
        values = read(path, table, "emb_values", np.float32, dim)
        np.testing.assert_array_equal(values, variable.sparse_read(keys))
        [piece] = variable.rows(columns=[f"{table}/Adam", f"{table}/Adam_1"])
        order = [piece.keys.tolist().index(key) for key in keys.tolist()]
        states = np.concatenate([column[order] for column in piece.columns.values()], 1)
        np.testing.assert_array_equal(
            read(path, table, "emb_opt_values", np.float32, 2 * dim), states
        )
        found = arguments(path, table)
        assert found.pop("lr") == 0.1 and found == {
            "opt_type": "adam",
            "iters": 4,
            "beta1": 0.9,
            "beta2": 0.999,
            "eps": 1e-8,
            "weight_decay": 0.0,
            "evict_strategy": EVICTION[strategy],
            "dist_type": "roundrobin",
            "step_score": 5,
        }
        scores = by_key(
            path, table, "emb_scores", np.int64, 2 if isinstance(strategy, tuple) else 1
        )
        for key, score in scores.items():
            i = last[key]
            for kind, its in zip(strategy if isinstance(strategy, tuple) else [strategy], score):
                if kind is STRATEGY.LFU:
                    assert its == counts[key]
                elif kind is STRATEGY.CUSTOMIZED:
                    assert its == 10 * i + 10
                elif kind is STRATEGY.TIMESTAMP and isinstance(strategy, tuple):
                    assert times[i] - 1000 <= its <= times[i + 1]
                elif kind is STRATEGY.TIMESTAMP:
                    assert times[-1] - times[i + 1] - 1000 <= its <= end - times[i] + 1000
                else:
                    assert its == i + 1


def test_the_manifest_has_the_bytes_of_every_file(tmp_path):
    model = make()
    train(model, [1, 2])
    de.DynamicEmbDump(tmp_path, {"towers": [model]}, {"model.towers.0": ["a"]})
    with open(tmp_path / "manifest.json") as file:
        files = json.load(file)["files"]
    names = {
        os.path.relpath(os.path.join(folder, name), tmp_path)
        for folder, _, names in os.walk(tmp_path)
        for name in names
    }
    assert {n.split("/")[-1][:2] for n in files} == {"a_"} and set(files) == names - {
        "manifest.json"
    }
    for name, entry in files.items():
        data = (tmp_path / name).read_bytes()
        assert entry == {"size": len(data), "crc32": zlib.crc32(data)}


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("strategy", [STRATEGY.STEP, STRATEGY.LFU, PAIR, PAIR[::-1]], ids=str)
def test_a_dump_of_any_ranks_loads_and_goes_on(strategy, world, tmp_path):
    keys, path = np.arange(-50, 50) * 7, str(tmp_path / "dump")
    scores = np.arange(1, 101)
    now = time.time_ns()
    if isinstance(strategy, tuple):
        columns = {STRATEGY.LFU: scores, STRATEGY.TIMESTAMP: now - 1000 * scores}
        scores = np.stack([columns[kind] for kind in strategy], 1)
    its = {"evict_strategy": EVICTION[strategy], "dist_type": "hash_roundrobin", "step_score": 200}
    hand_made(path, keys, scores, world, its)
    model = make(strategy)
    train(model, [99999])
    de.DynamicEmbLoad(path, model)
    for name, table in model.tables_by_name.items():
        assert int(table.variable.total_count()) == 100  # those of before are gone
        values = table.variable.sparse_read(keys).numpy()
        np.testing.assert_array_equal(values, np.repeat(keys[:, None], DIMS[name], 1))
        frequencies = table.variable.get_frequency(keys).numpy()
        versions = table.variable.get_version(keys).numpy()
        if strategy is STRATEGY.STEP:
            assert versions.tolist() == list(range(1, 101))
        else:
            assert frequencies.tolist() == list(range(1, 101))
        if isinstance(strategy, tuple):
            np.testing.assert_array_equal(versions, (now - 1000 * np.arange(1, 101)) // 1000)
        else:
            assert de.get_score(model)["model"][name] == (200 if strategy is STRATEGY.STEP else 1)
    train(model, [keys[0]])
    assert int(model.tables_by_name["a"].variable.get_frequency(keys[:1])[0]) == (
        2  # 1 of the dump, and one more
    )


def test_ages_keep_their_order_and_the_oldest_leaves_first(tmp_path):
    """The peer turned recency around: what was newest left first."""
    path = str(tmp_path / "dump")
    keys = np.random.default_rng(0).permutation(1024)
    ages = (1 + np.arange(1024)) * 10**6  # nanoseconds: key i is older than key i - 1
    hand_made(path, keys, ages, 2, {"evict_strategy": "KLru"})
    model = make(STRATEGY.TIMESTAMP)
    before = time.time_ns()
    de.DynamicEmbLoad(path, model)
    variable = model.tables_by_name["a"].variable
    versions = variable.get_version(keys).numpy()
    np.testing.assert_array_equal(versions[0] - versions, np.arange(1024) * 1000)
    assert before - 10**6 <= (versions[0] + 1) * 1000 <= time.time_ns()
    train(model, np.arange(5000, 5010))  # the table has room for 1,024
    assert sorted(variable.pop_dropped().numpy()) == sorted(keys[-10:])
    de.DynamicEmbDump(tmp_path / "again", model)
    found = by_key(tmp_path / "again", "a", "emb_scores", np.int64)
    kept = keys[:-10].tolist()
    assert sorted(kept, key=lambda key: found[key]) == kept


@pytest.mark.parametrize("data_type", [de.DataType.FP32, de.DataType.BF16], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KIND if kind is not KIND.EXACT_SGD], ids=str)
def test_states_load_into_a_model_that_has_not_trained(kind, data_type, tmp_path):
    model, other = (make(STRATEGY.STEP, kind, data_type) for _ in range(2))
    for batch in BATCHES:
        train(model, batch)
    model.set_learning_rate(0.05)
    de.DynamicEmbDump(tmp_path, model, optim=True)
    de.DynamicEmbLoad(tmp_path, other, optim=True)
    assert_same(everything(other), everything(model))
    for batch in ([3, 4], [4, 2**40]):
        train(model, batch)
        train(other, batch)
    assert_same(everything(other), everything(model))


def test_states_of_some_tables_do_not_change_the_optimizer_of_others(tmp_path):
    model, other = make(optimizer=KIND.ADAM), make(optimizer=KIND.ADAM)
    for _ in range(3):
        train(model, [1, 2])
    de.DynamicEmbDump(tmp_path, model, optim=True)
    train(other, [5])
    before = everything(other)
    with pytest.raises(ValueError, match=r"'a': optim: .*iters 1 .*the tables \['b'\].*found 3"):
        de.DynamicEmbLoad(tmp_path, other, {"model": ["a"]}, optim=True)
    assert_same(everything(other), before)
    de.DynamicEmbLoad(tmp_path, other, {"model": ["a"]})
    fresh = make(optimizer=KIND.ADAM)
    for name in "ab":  # nothing is trained, then both have the same optimizer
        de.DynamicEmbLoad(tmp_path, fresh, {"model": [name]}, optim=True)
    assert_same(everything(fresh), everything(model))


def test_rows_without_states_get_what_an_update_would_find(tmp_path):
    fused = {"initial_accumulator_value": 0.5}
    hand_made(tmp_path / "rows", np.arange(5), np.ones(5, np.int64))
    model = make(optimizer=KIND.EXACT_ADAGRAD, fused=fused)
    de.DynamicEmbLoad(tmp_path / "rows", model)
    de.DynamicEmbDump(tmp_path / "dump", model, optim=True)
    states = read(tmp_path / "dump", "a", "emb_opt_values", np.float32, 4)
    np.testing.assert_array_equal(states, np.full((5, 4), 0.5, np.float32))


def test_a_dump_of_another_optimizer_gives_the_rows_alone_and_says_so_once(tmp_path):
    model, other = make(optimizer=KIND.ADAM), make(optimizer=KIND.EXACT_ADAGRAD)
    train(model, [1, 2])
    de.DynamicEmbDump(tmp_path, model, optim=True)
    with pytest.warns(UserWarning, match="others .'a': adam, 'b': adam.: the rows") as said:
        de.DynamicEmbLoad(tmp_path, other, optim=True)
    assert len(said) == 1
    values = [m.tables_by_name["a"].variable.sparse_read([1, 2]) for m in (model, other)]
    np.testing.assert_array_equal(*values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        de.DynamicEmbLoad(tmp_path, other)


def test_counts_of_keys_that_are_not_admitted_are_dumped_and_loaded(tmp_path):
    counting = dict(
        admit_strategy=de.FrequencyAdmissionStrategy(3), admission_counter=de.KVCounter(100)
    )
    model, other = make(**counting), make(**counting)
    for _ in range(2):
        train(model, [1, 2])
    train(model, [1, 5])
    de.DynamicEmbDump(tmp_path / "dump", model, counter=True)
    keys = read(tmp_path / "dump", "a", "counter_keys", np.int64)
    counts = read(tmp_path / "dump", "a", "counter_frequencies", np.int64)
    assert dict(zip(keys.tolist(), counts.tolist())) == {2: 2, 5: 1}
    de.DynamicEmbLoad(tmp_path / "dump", other, counter=True)
    train(other, [2, 5])
    assert sorted(other.tables_by_name["a"].variable.export()[0].numpy()) == [1, 2]
    # A key of two ranks' counters, and one that has a row.
    hand_made(
        tmp_path / "hand",
        np.array([1]),
        np.array([1]),
        counted=([np.array([1, 8]), np.array([1, 2])]),
    )
    de.DynamicEmbLoad(tmp_path / "hand", other, counter=True)
    train(other, [8])
    assert sorted(other.tables_by_name["a"].variable.export()[0].numpy()) == [1, 8]


def _cut(name):
    with open(name, "r+b") as file:
        file.truncate(os.path.getsize(name) - 4)


def _flip(name):
    with open(name, "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))


def _write(content):
    def write(name):
        with open(name, "w") as file:
            file.write(content)

    return write


RAW = [
    "emb_keys",
    "emb_values",
    "emb_scores",
    "emb_opt_values",
    "counter_keys",
    "counter_frequencies",
]
HARM = {
    **{(f"{item}.rank_0.world_size_1", how): f for item in RAW for how, f in
       {"lost": os.remove, "cut": _cut, "one bit": _flip}.items()},
    ("opt_args.json", "lost"): os.remove,
    ("opt_args.json", "one bit"): _flip,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole_dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("dump")
    options = dict(admit_strategy=de.FrequencyAdmissionStrategy(2))
    model = make(optimizer=KIND.ADAM, **options)
    for _ in range(3):
        train(model, [1, 2])
    train(model, [3])
    de.DynamicEmbDump(path / "dump", model, optim=True, counter=True)
    target = make(optimizer=KIND.ADAM, **options)
    for _ in range(4):
        train(target, [2, 7])
    return path / "dump", target


def _check_refused(path, target, name, message=""):
    before = everything(target)
    with pytest.raises(ValueError) as refused:
        de.DynamicEmbLoad(path, target, optim=True, counter=True)
    assert name in str(refused.value) and message in str(refused.value), refused.value
    assert "expected" in str(refused.value) and "found" in str(refused.value)
    assert_same(everything(target), before)


@pytest.mark.parametrize("table", DIMS)
@pytest.mark.parametrize("file, how", HARM, ids=str)
def test_a_damaged_dump_changes_nothing(whole_dump, file, how, table, tmp_path):
    path, target = whole_dump
    shutil.copytree(path, tmp_path / "dump")
    HARM[file, how](str(tmp_path / "dump" / "model" / f"{table}_{file}"))
    _check_refused(tmp_path / "dump", target, f"{table}_{file}")


@pytest.mark.parametrize(
    "file, how, message",
    [
        ("a_emb_values.rank_0.world_size_1", _cut, "expected rows of 4 float32"),
        (
            "b_emb_scores.rank_0.world_size_1",
            lambda n: np.ones(5, np.int64).tofile(n),
            "expected 2 rows",
        ),
        (
            "a_emb_keys.rank_0.world_size_1",
            lambda n: np.array([1, 1]).tofile(n),
            "found key 1 again",
        ),
        ("a_emb_keys.rank_1.world_size_1", lambda n: np.array([1, 1]).tofile(n), "ranks below 1"),
        ("a_emb_keys.rank_0.world_size_2", lambda n: np.array([1, 1]).tofile(n), "world size 2"),
        (
            "b_counter_frequencies.rank_0.world_size_1",
            lambda n: np.array([0]).tofile(n),
            "at least 1",
        ),
        ("a_opt_args.json", _write("{}x"), "expected JSON"),
        ("a_opt_args.json", _write("[]"), "expected a JSON object"),
        (
            "b_opt_args.json",
            _write('{"opt_type": "adam", "evict_strategy": "KLru"}'),
            "KCustomized",
        ),
        ("b_opt_args.json", _write('{"opt_type": "adam", "lr": 1, "iters": "x"}'), "iters"),
        ("b_opt_args.json", _write('{"opt_type": "adam", "lr": NaN, "iters": 1}'), "lr: expected"),
        ("b_opt_args.json", _write('{"opt_type": "adam", "lr": 1, "iters": -1}'), "iters"),
    ],
)
def test_a_dump_without_a_manifest_is_checked_too(whole_dump, file, how, message, tmp_path):
    path, target = whole_dump
    shutil.copytree(path, tmp_path / "dump")
    os.remove(tmp_path / "dump" / "manifest.json")
    how(str(tmp_path / "dump" / "model" / file))
    _check_refused(tmp_path / "dump", target, "_".join(file.split("_")[:2]), message)


def test_a_rank_or_table_that_is_missing_changes_nothing(tmp_path):
    hand_made(tmp_path / "dump", np.arange(6), np.ones(6, np.int64), world=3)
    target = make()
    train(target, [1])
    os.remove(tmp_path / "dump" / "model" / "b_emb_keys.rank_1.world_size_3")
    with pytest.raises(ValueError, match="b_emb_keys.rank_1.*expected the keys of all 3 ranks"):
        de.DynamicEmbLoad(tmp_path / "dump", target)
    for name in ("b_emb_keys.rank_0.world_size_3", "b_emb_keys.rank_2.world_size_3"):
        os.remove(tmp_path / "dump" / "model" / name)
    with pytest.raises(ValueError, match="b_emb_keys.*expected keys of table 'b'.*found none"):
        de.DynamicEmbLoad(tmp_path / "dump", target)
    assert target.tables_by_name["a"].variable.export()[0].numpy().tolist() == [1]
    de.DynamicEmbLoad(tmp_path / "dump", target, {"model": ["a"]})
    assert target.tables_by_name["a"].variable.total_count() == 6
    assert target.tables_by_name["b"].variable.export()[0].numpy().tolist() == [1]


def test_files_that_are_removed_during_a_load_are_loaded_all_the_same(tmp_path, monkeypatch):
    path, source, target = tmp_path / "dump", make(), make()
    train(source, [1, 2])
    train(target, [3])
    de.DynamicEmbDump(path, source, optim=True)
    replace = object_checkpoint.Reads.replace
    monkeypatch.setattr(
        object_checkpoint.Reads, "replace", lambda reads: (shutil.rmtree(path), replace(reads))
    )
    de.DynamicEmbLoad(path, target, optim=True)
    assert_same(everything(source), everything(target))


def test_what_has_files_is_overwritten_only_if_asked_and_only_its_tables(tmp_path):
    model = make()
    train(model, [1])
    hand_made(tmp_path / "dump", np.arange(6), np.ones(6, np.int64), world=3)
    (tmp_path / "dump" / "model" / "notes").write_text("keep")
    with pytest.raises(FileExistsError, match="allow_overwrite=True"):
        de.DynamicEmbDump(tmp_path / "dump", model)
    de.DynamicEmbDump(tmp_path / "dump", model, {"model": ["a"]}, allow_overwrite=True)
    names = os.listdir(tmp_path / "dump" / "model")
    assert "notes" in names and "a_emb_keys.rank_2.world_size_3" not in names
    de.DynamicEmbLoad(tmp_path / "dump", model)
    counts = {n: int(t.variable.total_count()) for n, t in model.tables_by_name.items()}
    assert counts == {"a": 1, "b": 6}
    with pytest.raises(NotADirectoryError, match="expected a folder, found the file"):
        de.DynamicEmbDump(tmp_path / "dump" / "model" / "notes", model)
    with pytest.raises(ValueError, match="table_names: expected tables of 'a' of 'model', 'b'"):
        de.DynamicEmbDump(tmp_path / "new", model, {"model": ["c"]})
    with pytest.raises(ValueError, match="model: expected one with an EmbeddingCollection"):
        de.DynamicEmbDump(tmp_path / "new", [1])
    assert not (tmp_path / "new").exists()


def test_a_dump_while_a_thread_trains_is_of_one_moment(tmp_path):
    """Each step trains every key of both tables, so all rows of a moment have one score and one number of updates."""
    model, keys = make(optimizer=KIND.EXACT_ADAGRAD), np.arange(900)
    moments, trained, ended = [], threading.Event(), threading.Event()
    train(model, keys)

    def work():
        while not ended.is_set():
            train(model, keys)
            trained.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(4):
            de.DynamicEmbDump(tmp_path / str(i), model, optim=True)
            for _ in range(2):  # of two steps that end now, the second began after the dump
                trained.clear()
                assert trained.wait(60)
    finally:
        ended.set()
        thread.join()
    for i in range(4):
        scores = {s for n in DIMS for s in read(tmp_path / str(i), n, "emb_scores", np.int64)}
        assert len(scores) == 1 and len(read(tmp_path / str(i), "a", "emb_keys", np.int64)) == 900
        assert arguments(tmp_path / str(i), "a")["step_score"] > min(scores)
        moments += scores
    assert moments == sorted(set(moments))


@pytest.mark.parametrize("strategy", [STRATEGY.STEP, STRATEGY.TIMESTAMP, PAIR], ids=str)
def test_windows_have_exactly_the_keys_that_were_touched(strategy):
    model, rng = make(strategy, KIND.ADAM), np.random.default_rng(3)
    train(model, np.arange(50))
    thresholds = de.get_score(model)
    for _ in range(4):
        touched = rng.integers(0, 80, 12)
        train(model, touched)
        before = everything(model)
        only = {"model": {"b": thresholds["model"]["b"]}}
        rows, _ = de.incremental_dump(model, only)
        assert list(rows["model"]) == ["b"]
        rows, thresholds = de.incremental_dump(model, thresholds, optim=True)
        assert_same(everything(model), before)
        for name, (keys, values, states) in rows["model"].items():
            assert sorted(keys.tolist()) == sorted(set(touched.tolist()))
            variable = model.tables_by_name[name].variable
            np.testing.assert_array_equal(values, variable.sparse_read(keys))
            assert states.shape == (len(keys), 2 * DIMS[name])
    assert all(
        len(keys) == 0 for keys, _ in de.incremental_dump(model, thresholds)[0]["model"].values()
    )


def test_an_increment_has_the_keys_that_left_and_a_frequency_of_lfu():
    model = make()
    train(model, np.arange(1024))
    thresholds = de.get_score(model)
    train(model, [1023, 5000, 5001])  # the table has room for 1,024
    rows, _, left = de.incremental_dump(model, thresholds, removed=True)
    assert sorted(rows["model"]["a"][0].tolist()) == [1023, 5000, 5001]
    gone = set(range(1024)) - set(model.tables_by_name["a"].variable.export()[0].numpy().tolist())
    assert len(gone) == 2 and set(left["model"]["a"].tolist()) == gone
    model = make(STRATEGY.LFU)
    train(model, [1, 2, 2, 3, 3, 3])
    assert sorted(de.incremental_dump(model, 2)[0]["model"]["a"][0].tolist()) == [2, 3]
    with pytest.raises(ValueError, match="removed: expected False for table 'a'.*LFU"):
        de.incremental_dump(model, 2, removed=True)
    for bad, error in (
        ("x", TypeError),
        ({"model": 3}, TypeError),
        ({"model": {"c": 1}}, ValueError),
    ):
        with pytest.raises(error, match="score_threshold.*expected"):
            de.incremental_dump(model, bad)


def test_a_switch_is_a_bool(tmp_path):
    made = util.collection([util.config("t")])
    for name in ("optim", "counter", "allow_overwrite"):
        with pytest.raises(TypeError, match=f"DynamicEmbDump: {name}"):
            de.DynamicEmbDump(tmp_path / "dump", made, **{name: "no"})
    assert not (tmp_path / "dump").exists()
    with pytest.raises(TypeError, match="DynamicEmbLoad: optim"):
        de.DynamicEmbLoad(tmp_path / "dump", made, optim="no")
