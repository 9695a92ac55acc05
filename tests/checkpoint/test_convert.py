"""python3 -m tf_multitier.checkpoint convert: rows of each kind of files become those of each other."""

import itertools
import os

import numpy as np
import pytest

from tf_multitier import checkpoint
from tf_multitier import engine
from tf_multitier._src.variable import working_folders
from tf_multitier.checkpoint import __main__ as command

_INT64_MIN = -(2**63)
_HOLDS = {
    "checkpoint": {"slots", "frequencies", "versions"},
    "one_embedding": {"slots", "frequencies", "versions"},
    "parquet": {"slots", "frequencies", "versions"},
    "npz": {"slots", "frequencies", "versions"},
    "dynamicemb": {"slots", "versions"},
    "tfra": {"slots", "frequencies"},
    "raw": set(),
}


def convert(*arguments):
    return command.main(["convert", *map(str, arguments)])


def path_of(kind, folder):
    return folder / "0-1/snapshots/day" if kind == "one_embedding" else folder / "files"


def rows_of(keys, dim, slots=("Adagrad",)):
    keys = np.asarray(keys, np.int64)
    initial = lambda slot: 0.1 if slot == "Adagrad" else 0.0
    columns = [("value", dim, 0.0)] + [(f"user/{slot}", dim, initial(slot)) for slot in slots]
    data = np.arange(len(keys) * dim * len(columns), dtype=np.float32)
    facts = (np.arange(len(keys)) + 3, np.arange(len(keys)) + 10)
    return engine.Rows(columns, keys, *facts, data.reshape(len(keys), dim * len(columns)) - 4)


def write(prefix, **tables):
    with checkpoint.Writer(prefix) as writer:
        for name, rows in tables.items():
            writer.add_table(name, rows)
        writer.add_tensor("dense", np.ones(2))
    return prefix


def in_order(rows):
    order = np.argsort(rows.keys)
    return rows.keys[order], rows.data[order], rows.frequencies[order], rows.versions[order]


@pytest.mark.parametrize("first, second", list(itertools.combinations(_HOLDS, 2)))
def test_what_both_kinds_hold_comes_back(first, second, tmp_path, capsys):
    cases = {
        "wide": rows_of([5, -5, _INT64_MIN, 2**63 - 1], 7),
        "narrow": rows_of([0, -1], 1, ["Adam", "Adam_1"]),
        "empty": rows_of([], 2),
    }
    both = _HOLDS[first] & _HOLDS[second]
    for name, rows in cases.items():
        (folder := tmp_path / name).mkdir()
        own = [f"--dim={rows.columns[0][1]}"]
        kinds = ["checkpoint", first, second, first, "checkpoint"]
        paths = [write(folder / "model", user=rows)]
        paths += [path_of(kind, folder / str(i)) for i, kind in enumerate(kinds[1:])]
        for path in paths[1:]:
            os.makedirs(path.parent, exist_ok=True)
        for (kind, path), (to, target) in itertools.pairwise(zip(kinds, paths)):
            its_names = ["--tables=user"] if kind == "one_embedding" else []
            done = convert(f"--from={kind}", path, f"--to={to}", target, *own, *its_names)
            assert done == 0, capsys.readouterr().err
        found = checkpoint.load(paths[-1]).tables["user"].read()
        expected = in_order(rows)
        keys, data, frequencies, versions = in_order(found)
        width = rows.data.shape[1] if "slots" in both else rows.columns[0][1]
        np.testing.assert_array_equal(keys, expected[0])
        np.testing.assert_array_equal(data, expected[1][:, :width])
        if "slots" in both:
            assert [(*c[:2], pytest.approx(c[2])) for c in rows.columns] == found.columns
        if "frequencies" in both:
            np.testing.assert_array_equal(frequencies, expected[2])
        if "versions" in both:
            np.testing.assert_array_equal(versions, expected[3])


@pytest.mark.parametrize(
    "kind, left_out",
    [
        ("raw", "dense variables, frequencies, slot user/Ftrl, slot user/Mine, versions"),
        ("tfra", "dense variables, slot user/Mine, versions"),
        ("dynamicemb", "dense variables, frequencies, slot user/Ftrl, slot user/Mine"),
        ("npz", "dense variables"),
    ],
)
def test_what_the_target_lacks_is_said_once(kind, left_out, tmp_path, capsys):
    tables = {"user": rows_of([1, 2], 3, ["Ftrl", "Mine"]), "other": rows_of([1], 3, [])}
    source, target = write(tmp_path / "model", **tables), tmp_path / "out"
    assert convert("--from=checkpoint", source, f"--to={kind}", target) == 0
    assert capsys.readouterr().err == f"'{target}': left out, as {kind} has no place: {left_out}\n"
    assert not any("Mine" in name for name in os.listdir(target))


def test_what_a_source_has_and_nothing_takes_is_said(tmp_path, capsys):
    folder = tfra_files(tmp_path / "tfra")
    for shard in (1, 2):
        tfra_shard(folder, "status_users_timestamp", shard, [8], np.array([6], np.int32))
    assert convert("--from=tfra", folder, "--dim=3", "--to=raw", tmp_path / "raw") == 0
    path = folder / "status_users_timestamp_mht_1of2_rank0_size1-values"
    assert f"{path}: left out: timestamps\n" in capsys.readouterr().err
    (slot := tmp_path / "raw" / "users" / "slot_id").touch()
    assert convert("--from=raw", tmp_path / "raw", "--to=npz", tmp_path / "npz") == 0
    assert capsys.readouterr().err == f"{slot}: left out: the slots of keys\n"


def test_a_source_without_tables_is_no_success(tmp_path, capsys):
    with checkpoint.Writer(tmp_path / "model") as writer:
        writer.add_tensor("w", np.float32(1))
    assert convert("--from=checkpoint", tmp_path / "model", "--to=npz", tmp_path / "out") == 2
    assert "expected embedding variables, found none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other", ["user_Adam_m", "status_user_frequency", "x_status_user_timestamp"]
)
def test_names_that_tfra_gives_to_slots_are_refused(other, tmp_path, capsys):
    rows, target = rows_of([1], 3, []), tmp_path / "out"
    source = write(tmp_path / "model", **{other: rows, "user": rows})
    assert convert("--from=checkpoint", source, "--to=tfra", target) == 2
    assert f"table '{other}': expected another name" in capsys.readouterr().err
    assert not target.exists()


def test_tables_of_tfra_need_their_dims(tmp_path, capsys):
    """Those of float32, because half values have files of the same sizes."""
    source = write(tmp_path / "model", user=rows_of([1], 3, []), item=rows_of([1, 2], 4, []))
    folder, target = tmp_path / "tfra", tmp_path / "out"
    assert convert("--from=checkpoint", source, "--to=tfra", folder) == 0
    for dims, expected in (
        ("item=4", "--dim=user=3"),
        ("2", "expected 2 of float32"),
        ("user=x", "TABLE=N"),
    ):
        capsys.readouterr()
        assert convert("--from=tfra", folder, f"--dim={dims}", "--to=npz", target) == 2
        assert expected in capsys.readouterr().err
    assert convert("--from=tfra", folder, "--dim=item=4,3", "--to=npz", target) == 0


@pytest.mark.parametrize(
    "kinds, option, message",
    [
        (["--from=npz", "--to=raw"], "--partitions=2", "--partitions: expected --to=checkpoint"),
        (["--from=npz", "--to=raw"], "--scores=step", "--scores: expected --to=dynamicemb"),
        (["--from=npz", "--to=raw"], "--initial_value=A=1", "value: expected --from=deeprec"),
        (["--from=checkpoint", "--to=npz"], "--dim=usr=3", "did you mean 'user'"),
    ],
)
def test_an_option_that_does_nothing_is_refused(kinds, option, message, tmp_path, capsys):
    source, target = write(tmp_path / "model", user=rows_of([1], 3)), tmp_path / "out"
    status = []
    try:
        status.append(convert(*kinds, source, target, option))
    except SystemExit as ended:
        status.append(ended.code)
    assert status == [2] and message in capsys.readouterr().err and not target.exists()


def test_a_target_is_new_and_whole_or_absent(tmp_path, capsys):
    rows = rows_of([1, 2], 3)
    source, target = write(tmp_path / "model", user=rows, other=rows), tmp_path / "out"
    target.mkdir()
    assert convert("--from=checkpoint", source, "--to=npz", target) == 2
    assert f"'{target}': expected a new folder, found one" in capsys.readouterr().err
    target.rmdir()
    part = checkpoint.load(source).tables["user"].parts[0].path
    with open(part, "r+b") as file:
        file.truncate(os.path.getsize(part) - 1)
    before = sorted(os.listdir(tmp_path))
    assert convert("--from=checkpoint", source, "--to=npz", target) == 2
    assert sorted(os.listdir(tmp_path)) == before and part in capsys.readouterr().err


def tfra_shard(folder, name, shard, keys, values):
    for item, array in (("keys", np.array(keys, np.int64)), ("values", values)):
        array.tofile(folder / f"{name}_mht_{shard}of2_rank0_size1-{item}")


def tfra_files(folder):
    """Files as TFRA 0.8.1 writes them: tables of slots and of frequencies have their rows in another order, or lack some."""
    of = lambda *numbers: np.repeat(np.array(numbers, np.float32)[:, None], 3, 1)
    folder.mkdir()
    tfra_shard(folder, "users", 1, [_INT64_MIN, 8], of(1, 2))
    tfra_shard(folder, "users", 2, [7, -7, 9], of(3, 4, 5))
    tfra_shard(folder, "users_Adagrad_accumulator", 1, [8], of(20))
    tfra_shard(folder, "users_Adagrad_accumulator", 2, [9, 7, -7], of(50, 30, 40))
    tfra_shard(folder, "status_users_frequency", 1, [8, 1], np.array([6, 7], np.int32))
    tfra_shard(folder, "status_users_frequency", 2, [-7], np.array([2], np.int32))
    return folder


def test_slots_of_tfra_are_joined_by_key(tmp_path):
    folder, target = tfra_files(tmp_path / "tfra"), tmp_path / "model"
    assert convert("--from=tfra", folder, "--dim=3", "--to=checkpoint", target) == 0
    [table] = checkpoint.load(target).tables.values()
    keys, data, frequencies, _ = in_order(table.read())
    assert table.name == "users" and table.columns[1] == ("users/Adagrad", 3, pytest.approx(0.1))
    assert keys.tolist() == [_INT64_MIN, -7, 7, 8, 9]
    assert data[:, 0].tolist() == [1, 4, 3, 2, 5]
    np.testing.assert_array_equal(data[:, 3], np.array([0.1, 40, 30, 20, 50], np.float32))
    assert frequencies.tolist() == [0, 2, 0, 6, 0]


@pytest.mark.parametrize(
    "damage, message",
    [
        (
            lambda f: os.remove(f / "users_mht_2of2_rank0_size1-keys"),
            "2 shards of 1 processes, found 1",
        ),
        (
            lambda f: os.remove(f / "users_mht_2of2_rank0_size1-values"),
            "expected a file of the dump",
        ),
        (lambda f: os.truncate(f / "users_mht_2of2_rank0_size1-values", 34), "found 2.9"),
        (
            lambda f: os.truncate(f / "users_Adagrad_accumulator_mht_1of2_rank0_size1-values", 8),
            "found 2.75",
        ),
        (
            lambda f: [os.remove(f / name) for name in os.listdir(f)],
            "<table>-keys and <table>-values, found none",
        ),
    ],
)
def test_files_of_tfra_that_do_not_fit_are_refused(damage, message, tmp_path, capsys):
    damage(folder := tfra_files(tmp_path / "tfra"))
    assert convert("--from=tfra", folder, "--dim=3", "--to=checkpoint", tmp_path / "model") == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["checkpoint", "raw", "npz"])
@pytest.mark.parametrize("item, key", [("users", -7), ("users_Adagrad_accumulator", 8)])
def test_a_key_that_a_source_has_twice_is_refused(item, key, kind, tmp_path, capsys):
    folder = tfra_files(tmp_path / "tfra")
    shard = {"users": [8, -7, 9], "users_Adagrad_accumulator": [9, 8, -7]}[item]
    tfra_shard(folder, item, 2, shard, np.zeros([3, 3], np.float32))
    if item == "users":
        tfra_shard(folder, item, 1, [_INT64_MIN, -7], np.zeros([2, 3], np.float32))
    assert convert("--from=tfra", folder, "--dim=3", f"--to={kind}", tmp_path / "target") == 2
    assert f"expected each key once, found key {key} again" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_the_folder_of_a_target_keeps_what_is_not_ours(tmp_path, monkeypatch):
    source = write(tmp_path / "model", user=rows_of([1, 2], 3))
    foreign = tmp_path / ".d41d8cd98f00b204e9800998ecf8427e/precious"
    left, guarded = (tmp_path / f".tf_multitier-{digit * 32}" for digit in "0a")
    for folder in (foreign, left, guarded):
        folder.mkdir(parents=True)
    really_open = os.open

    def refuse(path, *args, **kwargs):  # permissions do not bind root
        if path == str(guarded):
            raise PermissionError(path)
        return really_open(path, *args, **kwargs)

    monkeypatch.setattr(working_folders.os, "open", refuse)
    assert convert("--from=checkpoint", source, "--to=npz", tmp_path / "out") == 0
    assert foreign.is_dir() and guarded.is_dir() and not left.exists()
