"""checkpoint.merge: a base and its deltas become the checkpoint that a full save would have written."""

import glob
import json
import os
import shutil

import forks
import pytest
import tensorflow as tf
from chain_util import make_chain
from chain_util import Model
from lives import KILLS
from paths import ROOT

import tf_multitier
from tf_multitier import _engine
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from tf_multitier.checkpoint import __main__ as command
from tf_multitier.checkpoint import chain as chains
from tf_multitier.checkpoint import files

v1 = tf.compat.v1


def content(saved):
    """All rows, counted keys and dense tensors of a checkpoint, by name and key, as bytes."""
    found = {name: saved.tensor(name).tobytes() for name in saved.tensors}
    for name, table in saved.tables.items():
        rows = table.read()
        assert [c[:2] for c in rows.columns] == [c[:2] for c in table.columns]
        for i, key in enumerate(rows.keys):
            facts = rows.frequencies[i], rows.versions[i], rows.data[i].tobytes()
            assert found.setdefault((name, key), facts) is facts
        for i, key in enumerate(rows.counted_keys):
            facts = rows.counted_frequencies[i], rows.counted_versions[i]
            assert found.setdefault((name, key), facts) is facts
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def chain(made, tmp_path):
    """(base, full), in a directory of its own."""
    shutil.copytree(os.path.dirname(made[0]), tmp_path / "chain")
    return tuple(str(tmp_path / "chain" / os.path.basename(prefix)) for prefix in made)


def test_a_merged_chain_is_a_full_save(chain, tmp_path):
    base, full = chain
    expected = content(checkpoint.load(full))
    assert any(len(facts) == 2 for facts in expected.values() if isinstance(facts, tuple))
    assert content(checkpoint.load_chain(base)) == expected
    rows = checkpoint.merge(base, tmp_path / "merged")
    merged = checkpoint.load(tmp_path / "merged")
    assert content(merged) == expected
    assert rows == sum(table.num_rows for table in merged.tables.values())
    assert v1.train.latest_checkpoint(tmp_path) == str(tmp_path / "merged")
    for table, whole in zip(merged.tables.values(), checkpoint.load(full).tables.values()):
        for part, other in zip(table.parts, whole.parts):
            here, there = (json.loads(p.manifest) for p in (part, other))
            # The rows come in another order, so the files differ.
            assert here.pop("save_id") and here.pop("file") != there.pop("file")
            assert here.pop("checksum") > 0 and there.pop("checksum") > 0
            assert here == there


def test_a_delta_gives_the_chain_up_to_it(chain, tmp_path):
    base, _ = chain
    delta = base + ".delta-0002"
    part = checkpoint.load(delta)
    assert part.path == delta and [d.path for d in part.deltas] == chains.delta_prefixes(base)[:2]
    checkpoint.merge(delta, tmp_path / "merged")
    merged = content(checkpoint.load(tmp_path / "merged"))
    assert merged == content(part) != content(checkpoint.load_chain(base))
    arguments = ["--from=checkpoint", delta, "--to=checkpoint", str(tmp_path / "converted")]
    assert convert.main([*arguments, "--partitions=3"]) == 0
    assert content(checkpoint.load(tmp_path / "converted")) == merged
    assert content(checkpoint.load(base)) == content(checkpoint.Chain(base, []))


@pytest.mark.parametrize("keys", [1, 7, 40])
def test_keys_that_do_not_fit_into_memory_are_merged_in_passes(chain, tmp_path, keys, monkeypatch):
    monkeypatch.setattr(chains, "_KEYS_AT_ONCE", keys)
    monkeypatch.setattr(files, "_GROUP_BYTES", 100)
    base, full = chain
    checkpoint.merge(base, tmp_path / "merged")
    assert len(glob.glob(str(tmp_path / "merged.data-0*"))) > 2
    assert content(checkpoint.load(tmp_path / "merged")) == content(checkpoint.load(full))
    assert sorted(os.listdir(tmp_path))[:2] == ["chain", "checkpoint"]
    with tf.Graph().as_default(), v1.Session() as session:
        model = Model(tmp_path, parts=3, counter=2)
        found = []
        for prefix in (full, str(tmp_path / "merged")):
            v1.train.Saver().restore(session, prefix)
            found.append(model.content(session))
        assert found[0] == found[1]


def test_bloom_filters_and_initial_matrices_are_those_of_the_newest_save(tmp_path):
    option = tf_multitier.EmbeddingVariableOption(
        filter_option=tf_multitier.CBFFilter(
            filter_freq=3, max_element_size=64, false_positive_probability=0.1
        ),
        init_option=tf_multitier.InitializerOption(default_value_dim=5),
    )
    with tf.Graph().as_default(), v1.Session() as session:
        ev = tf_multitier.get_embedding_variable("ev", 4, ev_option=option)
        ids = v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(tf.nn.embedding_lookup(ev, ids))
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        saver = tf_multitier.train.IncrementalSaver()
        session.run(v1.global_variables_initializer())
        for step in range(4):
            session.run(train, {ids: [step, step, 7]})
            base = saver.save_incremental(session, str(tmp_path / "model")).split(".delta")[0]
        v1.train.Saver().save(session, str(tmp_path / "full"))
    checkpoint.merge(base, tmp_path / "merged")
    found = []
    for name in ("full", "merged"):
        table = checkpoint.load(tmp_path / name).tables["ev"]
        reader = _engine.PartReader(table.parts[0].path, table.parts[0].manifest)
        with pytest.raises(engine.FailedPreconditionError, match="expected it to be read"):
            reader.filter_counters()
        while reader.next() is not None:
            pass
        found.append((reader.filter_counters().tobytes(), table.matrix().tobytes()))
    assert found[0] == found[1] and len(found[0][0]) > 64


def flip(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)[0] ^ 16
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte]))


def cut(path):
    os.truncate(path, os.path.getsize(path) - 5)


def refused(base, out, message):
    """Asserts that a merge fails with a message that has these words, and writes nothing."""
    os.makedirs(out)
    with pytest.raises((engine.EngineError, OSError)) as caught:
        checkpoint.merge(base, out / "merged")
    assert all(word in str(caught.value) for word in message)
    assert os.listdir(out) == []


@pytest.mark.parametrize("damage", [os.remove, cut, flip])
@pytest.mark.parametrize("of_delta", [False, True])
def test_a_damaged_part_is_an_error_that_names_it(chain, tmp_path, damage, of_delta):
    saved = checkpoint.load_chain(chain[0])
    save = saved.deltas[1] if of_delta else saved.base
    for number, part in enumerate([*save.tables["v0"].parts, save.tables["v1"].parts[1]]):
        shutil.copy(part.path, tmp_path / "whole")
        damage(part.path)
        refused(chain[0], tmp_path / str(number), [os.path.basename(part.path)])
        shutil.copy(tmp_path / "whole", part.path)


@pytest.mark.parametrize("of_delta", [False, True])
def test_parts_that_were_swapped_are_an_error(chain, tmp_path, of_delta):
    saved = checkpoint.load_chain(chain[0])
    paths = [p.path for p in (saved.deltas[1] if of_delta else saved.base).tables["v1"].parts]
    os.rename(paths[0], tmp_path / "first")
    os.rename(paths[1], paths[0])
    os.rename(tmp_path / "first", paths[1])
    refused(chain[0], tmp_path / "out", [".data-"])


def test_a_missing_index_is_an_error_that_names_it(chain, tmp_path):
    base, delta = chain[0], chain[0] + ".delta-0002"
    os.rename(delta + ".index", tmp_path / "kept")
    refused(base, tmp_path / "1", ["expected delta-0002, found", "delta-0003"])
    os.rename(tmp_path / "kept", delta + ".index")
    cut(delta + ".index")
    refused(base, tmp_path / "2", [delta])
    os.remove(base + ".index")
    refused(base, tmp_path / "3", [base])


def test_a_delta_of_another_chain_is_an_error_that_names_it(chain, tmp_path):
    base, delta = chain[0], chain[0] + ".delta-0002"
    other, _ = make_chain(tmp_path / "other", seed=9)
    for path in glob.glob(delta + "*"):
        os.remove(path)
    for path in glob.glob(other + ".delta-0002*"):
        shutil.copy(path, os.path.dirname(base))
    refused(base, tmp_path / "out", [delta, "continues another save"])


def test_the_command_and_what_it_refuses(chain, tmp_path, capsys):
    base, full = chain
    directory = os.path.dirname(base)
    before = sorted(os.listdir(directory))
    state = open(directory + "/checkpoint").read()
    assert command.main(["merge", directory, directory + "/merged"]) == 0
    rows = sum(table.num_rows for table in checkpoint.load(full).tables.values())
    assert capsys.readouterr().out == f"{directory}/merged: {rows} rows\n"
    assert content(checkpoint.load(directory + "/merged")) == content(checkpoint.load(full))
    assert open(directory + "/checkpoint").read() == state
    assert set(before) < set(os.listdir(directory))
    for source, message in (
        (base, "exists"),
        (full, "expected deltas that continue it, found none"),
        (str(tmp_path / "none"), "expected the prefix"),
    ):
        assert command.main(["merge", source, directory + "/merged"]) == 2
        assert message in capsys.readouterr().err


# Merges in child processes, each of which kills itself at the n-th call of a function. Prints the number of calls of a whole merge.
_KILLED = """
import os, random, signal, sys
from tf_multitier import checkpoint
base, out, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])

def merge(target, killed_at):
    calls = 0
    def count(frame, event, argument):
        nonlocal calls
        if "tf_multitier/checkpoint" not in frame.f_code.co_filename: return
        calls += 1
        if calls == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)
    checkpoint.merge(base, target)
    sys.setprofile(None)
    return calls

def in_child(target, killed_at):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, b"%d" % merge(target, killed_at))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.wait()
    return text

whole = int(in_child(os.path.join(out, "whole"), 0))
print(whole, flush=True)
numbers = random.Random(whole)
for i in range(rounds):
    at = whole - i if i < 8 else numbers.randrange(1, whole)
    print(i, at, in_child(os.path.join(out, str(i)), at) or "killed", flush=True)
"""


def test_a_merge_that_is_killed_leaves_the_source_and_no_half_target(chain, tmp_path):
    base, full = chain
    rounds = KILLS
    os.makedirs(tmp_path / "out")
    before = {path: open(path, "rb").read() for path in glob.glob(base + "*")}
    run = forks.run(["-c", _KILLED, base, tmp_path / "out", rounds], cwd=ROOT)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert int(lines[0][0]) > 100 and [line[2] for line in lines[1:]] == ["killed"] * rounds
    assert before == {path: open(path, "rb").read() for path in glob.glob(base + "*")}
    expected, complete = content(checkpoint.load(full)), 0
    for i in range(rounds):
        target = str(tmp_path / "out" / str(i))
        if os.path.exists(target + ".index"):
            assert content(checkpoint.load(target)) == expected
            complete += 1
            continue
        with pytest.raises(engine.NotFoundError):
            checkpoint.load(target)
        checkpoint.merge(base, target)
        assert content(checkpoint.load(target)) == expected
    assert complete < rounds
