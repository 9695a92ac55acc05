"""python3 -m tf_multitier.inspect: what it says of checkpoints and storage directories, and its exit status."""

import json
import os
import subprocess
import sys

import forks
import numpy as np
import pytest
import tensorflow as tf
from chain_util import make_chain
from paths import ROOT

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier.checkpoint import convert
from tf_multitier import engine
from tf_multitier.inspect import __main__ as inspect


def rows(keys, dim=2, slots=1, change=0.0):
    keys = np.asarray(keys, np.int64)
    columns = [("value", dim, 0.0)] + [(f"slot{i}", dim, 0.5) for i in range(slots)]
    data = np.repeat(keys[:, None] / 4 + change, dim * (1 + slots), axis=1).astype(np.float32)
    return engine.Rows(columns, keys, np.abs(keys), keys * 10, data)


def write(prefix, tables, parts=1):
    with checkpoint.Writer(prefix) as writer:
        for name, found in tables.items():
            writer.add_table(name, found, parts)
        writer.add_tensor("dense", np.zeros((3, 4), np.float32))
    return str(prefix)


@pytest.fixture
def prefix(tmp_path):
    return write(tmp_path / "model", {"user": rows(range(-5, 20)), "a/item": rows([1, 2], 3, 0)}, 2)


def show(capsys, *arguments, status=0):
    assert inspect.main([str(argument) for argument in arguments]) == status
    return capsys.readouterr().out


def test_a_checkpoint_is_listed(prefix, capsys):
    out = show(capsys, prefix)
    [user] = [line.split() for line in out.splitlines() if line.startswith("user")]
    assert user[:5] == ["user", "2", "25", "1", "2"]
    assert "1 dense tensors, 48 B" in out
    found = json.loads(show(capsys, prefix, "--json"))
    assert found["tables"]["a/item"]["rows"] == 2 and found["tables"]["a/item"]["dim"] == 3
    assert sum(part["rows"] for part in found["tables"]["user"]["parts"]) == 25
    assert found["dense"]["dense"] == {"dtype": "float32", "shape": [3, 4], "bytes": 48}


@pytest.fixture
def tf2_prefix(tmp_path):
    """A checkpoint of TensorFlow 2, whose table has two names."""
    if not tf.executing_eagerly():
        pytest.skip("needs eager execution")
    holder = tf.Module()
    holder.ev = tf_multitier.get_embedding_variable("user", 2)
    holder.ev.upsert([1, 2], np.ones([2, 2], np.float32))
    return tf.train.Checkpoint(m=holder).write(str(tmp_path / "tf2"))


@pytest.mark.parametrize("selected", [None, "user", "m/ev"])
def test_a_table_of_two_names_is_shown_and_written_once(tf2_prefix, tmp_path, capsys, selected):
    chosen = [] if selected is None else [f"--variable={selected}"]
    out = show(capsys, tf2_prefix, "--histograms", "--verify", *chosen)
    assert out.count("\nuser (m/ev) ") == 1 and out.count("keys: int64") == 1
    found = json.loads(show(capsys, tf2_prefix, "--json", *chosen))
    assert found["tables"]["user"]["names"] == ["user", "m/ev"] and len(found["tables"]) == 1
    tables = checkpoint.load(tf2_prefix).tables
    assert list(tables) == ["user"] and len(tables) == 1 and tables["m/ev"] is tables["user"]

    chosen = [] if selected is None else [f"--tables={selected}"]
    copy, folder = str(tmp_path / "copy"), str(tmp_path / "folder")
    for kind, target in (("checkpoint", copy), ("parquet", folder)):
        assert convert.main(["--from=checkpoint", tf2_prefix, f"--to={kind}", target, *chosen]) == 0
        assert capsys.readouterr().out == "user: 2 rows, columns value\n"
    assert os.listdir(folder) == ["user.parquet"]
    copied = tf.Module()
    for name in ("another", "user"):  # by its key, and by its name
        copied.ev = tf_multitier.get_embedding_variable(name, 2)
        tf.train.Checkpoint(m=copied).restore(copy)
        assert copied.ev.total_count() == 2
    copied.ev.restore_from(copy)


def test_tables_are_compared_by_each_of_their_names(tf2_prefix, tmp_path, capsys):
    holder = tf.Module()
    holder.ev = tf_multitier.get_embedding_variable("client", 2)
    tf.train.Checkpoint(m=holder).restore(tf2_prefix)
    other = tf.train.Checkpoint(m=holder).write(str(tmp_path / "other"))
    assert "other value" in show(capsys, tf2_prefix, f"--diff={other}")
    by_name = write(tmp_path / "by_name", {"user": rows([1, 2, 3], 2, 0)})
    out = show(capsys, tf2_prefix, f"--diff={by_name}", status=1)
    assert "only here" in out and "damaged" not in out


def test_rows_by_key_and_the_hottest(prefix, capsys):
    found = json.loads(
        show(capsys, prefix, "--variable=user", "--keys=-3,99", "--top=3", "--json")
    )["tables"]["user"]
    assert found["keys"] == [
        {"key": -3, "frequency": 3, "version": -30, "value": [-0.75] * 2, "slot0": [-0.75] * 2},
        {"key": 99},
    ]
    assert [row["key"] for row in found["top"]] == [19, 18, 17]
    assert "99: no row" in show(capsys, prefix, "--variable=user", "--keys=99")


def test_histograms_count_every_row(prefix, capsys):
    found = json.loads(show(capsys, prefix, "--histograms", "--json"))["tables"]
    for name, count in (("user", 25), ("a/item", 2)):
        for histogram in found[name]["histograms"].values():
            assert sum(histogram["rows"]) == count
            assert len(histogram["edges"]) == len(histogram["rows"]) + 1
    assert found["user"]["histograms"]["frequency"]["rows"][:4] == [
        1,
        2,
        4,
        6,
    ]  # 0; 1; 2, 3; 4 to 7
    assert "4 to 8" in show(capsys, prefix, "--histograms")


def test_a_picture_is_drawn(prefix, tmp_path, capsys):
    show(capsys, prefix, "--plot", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[1:4] == b"PNG"


def test_damage_is_an_exit_status(prefix, capsys):
    assert "verified" in show(capsys, prefix, "--verify")
    [path] = [part.path for part in checkpoint.load(prefix).tables["user"].parts][:1]
    content = bytearray(open(path, "rb").read())
    content[60] ^= 1
    with open(path, "wb") as file:
        file.write(content)
    assert "damaged at offset 8" in show(capsys, prefix, "--verify", status=1)
    os.remove(path)
    assert "missing: " + os.path.basename(path) in show(capsys, prefix, status=1)


def test_differences_are_counted(prefix, tmp_path, capsys):
    changed = rows(range(30))
    changed.data[7] += 1  # key 7: value and slot
    changed.data[9, 2:] += 1  # key 9: slot
    changed.frequencies[11] += 1
    changed.versions[12] += 2**40
    other = write(tmp_path / "other", {"user": changed, "new": rows([1])})
    found = json.loads(show(capsys, prefix, "--diff", other, "--json", status=1))["difference"]
    assert found == {
        "user": {
            "rows": [25, 30],
            "only_here": 5,
            "only_there": 10,
            "other_value": 1,
            "other_row": 3,
        },
        "a/item": "only here",
        "new": "only there",
    }
    text = show(capsys, prefix, "--diff", other, status=1)
    assert "only there" in text and "other value" in text
    show(capsys, prefix, "--diff", prefix)  # no difference: 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["/no/such/path"], "expected the prefix of a checkpoint"),
        (["{prefix}", "--variable=x"], "expected one of the tables a/item, user; found 'x'\n"),
        (["{prefix}", "--variable=users"], "found 'users': did you mean 'user'?"),
        (["{prefix}", "--diff=/no/such"], "'/no/such': expected the prefix"),
        (["{prefix}", "--initial_value=Adagrad=1"], "initial_value: expected a checkpoint of Deep"),
    ],
)
def test_what_cannot_be_shown_is_said(prefix, capsys, arguments, message):
    assert inspect.main([argument.format(prefix=prefix) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


def kept_table(path):
    table = engine.Table(
        2, name="ads/user", storage_type="DRAM_SSDHASH", storage_path=str(path), keep=True
    )
    table.import_rows(rows(range(100), slots=0))
    table.flush()
    return table


def test_a_storage_directory_is_listed(tmp_path, capsys):
    table = kept_table(tmp_path)
    out = show(capsys, tmp_path, "--verify")
    assert f"kept, in use by process {os.getpid()}" in out and "not verified" in out
    assert "storage_type DRAM_SSDHASH" in out and "ads%2Fuser" in out
    instance = table.path
    table.close()
    found = json.loads(show(capsys, tmp_path, "--verify", "--json"))["instances"]
    assert [i["path"] for i in found] == [instance]
    assert found[0]["in_use_by"] is None and found[0]["ssdhash"]["rows"] == 100
    for path in (os.path.dirname(instance), instance):
        assert "verified: 100 rows" in show(capsys, path, "--verify")
    [segment] = [n for n in os.listdir(instance + "/ssdhash") if n.endswith(".seg")][:1]
    os.remove(f"{instance}/ssdhash/{segment}")
    assert "damaged: " in show(capsys, tmp_path, "--verify", status=1)


def test_rows_are_counted_where_the_options_of_the_table_are_lost(tmp_path, capsys):
    table = kept_table(tmp_path)
    table.close()
    os.remove(os.path.join(table.path, "instance.table"))
    out = show(capsys, tmp_path, "--verify", status=1)
    assert "verified: 100 rows in 100 whole records" in out
    assert "not known: the type of the keys" in out and "found: no file instance.table" in out
    found = json.loads(show(capsys, tmp_path, "--verify", "--json", status=1))["instances"][0]
    assert found["ssdhash"]["rows"] == 100 and len(found["ssdhash"]["damage"]) == 1


def test_looking_does_not_take_the_lock(tmp_path, capsys):
    """A table in this process stays locked when its directory is shown: another process cannot open it."""
    table = kept_table(tmp_path)
    show(capsys, tmp_path, "--verify")
    program = f"from tf_multitier import engine; engine.Table.open({table.path!r}, recover=True)"
    done = forks.run(["-c", program], cwd=ROOT)
    assert done.returncode and f"in use by process {os.getpid()}" in done.stderr
    table.close()


def test_the_command_prints_nothing_of_tensorflow(prefix):
    done = subprocess.run(
        [sys.executable, "-m", "tf_multitier.inspect", prefix],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("TF_")},
        check=False,
    )
    assert done.returncode == 0 and done.stdout.startswith("checkpoint ")
    assert done.stderr == ""


def test_json_has_no_numbers_that_json_lacks(tmp_path, capsys):
    odd = rows([1, 2, 3], 2, 0)
    odd.data[0, 0], odd.data[1, 0], odd.data[2, 0] = np.nan, np.inf, -np.inf
    prefix = write(tmp_path / "odd", {"user": odd})

    def refuse(text):
        raise AssertionError(text)

    out = show(capsys, prefix, "--keys=1,2,3", "--histograms", "--json")
    found = json.loads(out, parse_constant=refuse)["tables"]["user"]
    assert [row["value"][0] for row in found["keys"]] == ["NaN", "Infinity", "-Infinity"]
    assert found["histograms"].get("norm") is None
    assert sum(found["histograms"]["version"]["rows"]) == 3


def test_histograms_of_extremes_count_every_row(tmp_path, capsys):
    odd = rows([1, 2, 3], 2, 0)
    odd.data[:] = [[np.nan, 0], [3e38, 3e38], [1e-30, 0]]
    odd.versions[:] = -(2**63), 2**63 - 1, 0
    odd.frequencies[:] = 2**32 - 1, 0, 1
    prefix = write(tmp_path / "odd", {"user": odd})
    found = json.loads(show(capsys, prefix, "--histograms", "--json"))["tables"]["user"]
    found = found["histograms"]
    assert sum(found["version"]["rows"]) == sum(found["frequency"]["rows"]) == 3
    assert found["version"]["edges"][0] == -(2**63) and found["version"]["rows"][0] == 1
    assert sum(found["norm"]["rows"]) == 2 and found["norm"]["not_finite"] == 1
    assert "NaN or infinite  1" in show(capsys, prefix, "--histograms")


def test_diff_of_one_variable_compares_nothing_else(prefix, tmp_path, capsys):
    show(capsys, prefix, "--variable=user", f"--diff={prefix}")
    [path] = [part.path for part in checkpoint.load(prefix).tables["user"].parts][:1]
    os.truncate(path, 40)
    found = json.loads(show(capsys, prefix, "--verify", f"--diff={prefix}", "--json", status=1))
    assert found["difference"]["user"] == "damaged" and found["difference"]["a/item"]["rows"]


@pytest.mark.parametrize("option", ["--keys=18446744073709551616", "--top=-1", "--keys=x"])
def test_options_out_of_range_are_refused(prefix, capsys, option):
    with pytest.raises(SystemExit, match="2"):
        inspect.main([prefix, option])
    assert "expected" in capsys.readouterr().err


def test_options_of_checkpoints_are_refused_for_storage(tmp_path, capsys):
    kept_table(tmp_path).close()
    assert inspect.main([str(tmp_path), "--keys=1"]) == 2
    assert "expected --verify or --json for a storage directory, found --keys" in (
        capsys.readouterr().err
    )


@pytest.fixture
def chain(tmp_path):
    return make_chain(tmp_path / "chain", deltas=2)


def test_the_deltas_of_a_checkpoint_are_listed_and_verified(chain, capsys):
    base, _ = chain
    for path in (base, os.path.dirname(base)):
        found = json.loads(show(capsys, path, "--verify", "--json"))
        assert found["kind"] == "checkpoint" and found["damage"] == []
        names = [os.path.basename(delta["path"]) for delta in found["deltas"]]
        assert names == ["model.delta-0001", "model.delta-0002"]
    for delta in checkpoint.load_chain(base).deltas:
        entry = found["deltas"].pop(0)["tables"]
        for name, table in delta.tables.items():
            assert entry[name]["rows"] == table.num_rows > 0 and entry[name]["verified"]
            assert entry[name]["removed"] == table.num_removed
            assert entry[name]["bytes"] == sum(part.bytes for part in table.parts)
        part = table.parts[1].path
    out = show(capsys, base)
    expected = ["model.delta-0002", "v1", f"{table.num_rows:,}", f"{table.num_removed:,}"]
    assert expected in [line.split()[:4] for line in out.splitlines()]
    os.truncate(part, os.path.getsize(part) - 1)
    show(capsys, base)
    assert os.path.basename(part) in show(capsys, base, "--verify", status=1)
    os.remove(part)
    assert f"missing: {os.path.basename(part)}" in show(capsys, base, status=1)


def test_the_prefix_of_a_delta_shows_the_rows_after_it(chain, capsys):
    base, full = chain
    newest = base + ".delta-0002"
    whole = checkpoint.load(full).tables["v1"].read()
    show(capsys, newest, f"--diff={full}", "--verify")
    found = json.loads(
        show(capsys, newest, "--verify", "--json", "--keys=7,999", "--top=3", "--histograms")
    )
    assert found["kind"] == "base and deltas" and len(found["deltas"]) == 2
    table = found["tables"]["v1"]
    assert table["rows"] == len(whole) and table["partitions"] == 2 and len(table["parts"]) == 6
    assert sum(table["histograms"]["frequency"]["rows"]) == len(whole)
    assert [row["frequency"] for row in table["top"]] == sorted(whole.frequencies)[:-4:-1]
    assert table["keys"][1] == {"key": 999}
    differs = json.loads(show(capsys, newest, f"--diff={base}", "--json", status=1))["difference"]
    assert differs["v1"]["other_value"] > 0
    [line] = [line for line in show(capsys, newest).splitlines() if line.startswith("v1")]
    assert line.split()[:5] == ["v1", "4", "?", "1", "2"]  # its rows were not read


def test_a_gap_between_deltas_is_damage(chain, capsys):
    base, _ = chain
    os.remove(base + ".delta-0001.index")
    assert "expected delta-0001, found" in show(capsys, base, status=1)
    assert inspect.main([base + ".delta-0002"]) == 2
    assert "expected delta-0001, found" in capsys.readouterr().err
