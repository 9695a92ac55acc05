"""The examples as a user runs them, and their parts: rows read and generated. Metrics: test_example_metrics.py."""

import glob
import gzip
import os
import re
import subprocess
import sys

import forks
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from paths import ROOT

_EXAMPLES = os.path.join(ROOT, "examples")
sys.path.insert(0, _EXAMPLES)

import criteo  # noqa: E402
import metrics  # noqa: E402
import movielens  # noqa: E402

# Programs whose first run imports TensorFlow itself, so that what it prints then is seen. All others are forks.
_IMPORTING = {"train_dcnv2.py", "train_keras.py", "README.md"}


def run_python(program, path, *flags, **variables):
    """Standard output of `python path flags...` with environment variables; it must print nothing else if it succeeds."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_ENABLE_ONEDNN_OPTS",
    }  # the examples set these for themselves
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    environment.update(variables)
    environment["PYTHONPATH"] = os.pathsep.join(
        [ROOT] + [p for p in [environment.get("PYTHONPATH")] if p]
    )
    if program not in _IMPORTING:
        done = forks.run([path, *flags], environment)
    else:
        _IMPORTING.remove(program)
        done = subprocess.run(
            [sys.executable, path, *flags],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def run_example(name, *flags, **variables):
    return run_python(name, os.path.join(_EXAMPLES, name), "--noprogress", *flags, **variables)


def number_after(label, text):
    return float(re.search(re.escape(label) + r" ([0-9.]+)", text).group(1))


def rows_of(dataset):
    """All batches of a dataset of (features, labels): list of (dict of arrays, array)."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(dataset())
        following = iterator.get_next()
        session.run(iterator.initializer)
        found = []
        while True:
            try:
                found.append(session.run(following))
            except tf.errors.OutOfRangeError:
                return found


def line(label="1", ints=(), cats=()):
    ints = list(ints) + [""] * (13 - len(ints))
    cats = list(cats) + [""] * (26 - len(cats))
    return "\t".join([label] + ints + cats)


@pytest.fixture
def write(tmp_path):
    def write_file(name, *lines):
        path = str(tmp_path / name)
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wt") as stream:
            stream.write("".join(text + "\n" for text in lines))
        return path

    return write_file


def test_each_example_hides_messages_before_it_imports_anything_else_of_others():
    for name in glob.glob(os.path.join(_EXAMPLES, "train_*.py")):
        with open(name, encoding="utf-8") as file:
            imports = re.findall(r"^(?:import|from) (\w+)", file.read(), re.M)
        first = next(each for each in imports if each not in sys.stdlib_module_names)
        assert first == "quiet", name


# --- train_dcnv2.py ------------------------------------------------------------------------------


CLICK_FLAGS = ["--steps=200", "--eval_every=100", "--batch_size=512", "--embedding_dim=4"]
CLICK_FLAGS += ["--eval_rows=16384"]


@pytest.fixture(scope="module")
def dcnv2(tmp_path_factory):
    """The output of train_dcnv2.py with a tenth of its rows in DRAM."""
    folder = tmp_path_factory.mktemp("dcnv2")
    plot = str(folder / "history.png")
    out = run_example(
        "train_dcnv2.py", *CLICK_FLAGS, "--tables", f"--storage_path={folder}/ssd", f"--plot={plot}"
    )
    assert f"picture: {plot}\n" in out and is_picture(plot)
    assert os.listdir(folder / "ssd") == []
    return out


def is_picture(path):
    with open(path, "rb") as stream:
        return stream.read(8) == b"\x89PNG\r\n\x1a\n"


def test_dcnv2_on_a_tenth_of_dram_finds_the_planted_signal(dcnv2):
    assert 0.74 < number_after("held-out AUC", dcnv2) < number_after("hidden model", dcnv2)
    assert re.search(r"^C26_embedding +dram +[0-9,]+ ", dcnv2, re.M), dcnv2
    rows = {
        tier: [
            int(n.replace(",", ""))
            for n in re.findall(rf"^ +{tier} +([0-9,]+) rows .*hit rate", dcnv2, re.M)
        ]
        for tier in ("dram", "ssdhash")
    }
    assert len(rows["dram"]) == len(rows["ssdhash"]) == 2
    assert 10_000 < sum(found[-1] for found in rows.values()) < 20 * rows["dram"][-1]


def test_dcnv2_on_files_continues_from_its_checkpoint_with_partitions(tmp_path, write):
    model = criteo.ClickModel(seed=3)
    for day, name in enumerate(("day_0.tsv", "day_1.tsv.gz")):
        criteo.write_tsv(str(tmp_path / name), *model.draw(1500, np.random.default_rng(day)))
    flags = [
        f"--data={tmp_path}/day_*",
        f"--model_dir={tmp_path}/model",
        "--batch_size=256",
        "--embedding_dim=2",
        "--partitions=2",
        "--optimizer=adagrad",
    ]
    first = run_example(
        "train_dcnv2.py", *flags, "--steps=5", f"--eval_data={tmp_path}/day_1.tsv.gz"
    )
    second = run_example("train_dcnv2.py", *flags, "--steps=0")  # to the end of the data
    assert "\n5 steps of 256 rows" in first and re.search(r"^step +5 ", first, re.M)
    assert "\n11 steps of 256 rows" in second and re.search(r"^step +16 ", second, re.M)


def test_dcnv2_on_a_bad_line_names_file_and_line(write):
    path = write("bad.tsv", *[line()] * 30, line(ints=["many"]))
    with pytest.raises(
        AssertionError, match=re.escape(f"{path}:31: field 2 (I1) is not a number: 'many'")
    ):
        run_example("train_dcnv2.py", f"--data={path}", "--steps=0", "--batch_size=8")


# --- train_mf_movielens.py -----------------------------------------------------------------------


def test_matrix_factorization_beats_popularity_on_generated_clusters():
    out = run_example("train_mf_movielens.py", "--epochs=10")
    assert number_after("factorization", out) > 2 * number_after("popularity", out)
    assert re.search(r"^users +dram +1,500 ", out, re.M), out


def test_matrix_factorization_reads_pairs_and_names_a_bad_line(tmp_path, write):
    pairs = [f"{user},{item}" for user in range(40) for item in range(user % 7, 30, 3)]
    write("train.csv.gz", "uid,iid", *pairs)
    flags = [f"--data={tmp_path}", "--epochs=1", "--k=5", "--embedding_dim=4", "--negatives=8"]
    out = run_example("train_mf_movielens.py", *flags)
    assert f"{len(pairs) - 40:,} pairs of 40 users and 30 items; 40 held out" in out
    tiers = run_example(
        "train_mf_movielens.py",
        *flags,
        TF_MULTITIER_STORAGE_TYPE="DRAM_LEVELDB",
        TF_MULTITIER_STORAGE_PATH=str(tmp_path),
        TF_MULTITIER_STORAGE_SIZE="128",
    )
    assert re.search(r"^users +leveldb +36 ", tiers, re.M), tiers
    recall = lambda text: re.findall("^held-out.*", text, re.M)
    assert recall(tiers) == recall(out) and len(recall(out)) == 1
    path = write("train.csv.gz", "uid,iid", "1,2", "3;4")
    with pytest.raises(AssertionError, match=re.escape(f"{path}:3: expected two integers")):
        run_example("train_mf_movielens.py", f"--data={tmp_path}")


@pytest.mark.parametrize(
    "bad", ["3", "3,", "1_0,2", "٣,4", "1e3,2", "9223372036854775808,1", "1,2,3"]
)
def test_pairs_that_are_no_ids_are_named(tmp_path, write, bad):
    path = write("train.csv.gz", "uid,iid", "1,-9223372036854775808", bad)
    with pytest.raises(ValueError, match=re.escape(f"{path}:3: expected two integers of 64 bits")):
        movielens.read_pairs(str(tmp_path))


# --- train_keras.py ------------------------------------------------------------------------------


def test_the_keras_click_model_on_disk_has_the_quality_of_the_v1_program(tmp_path, dcnv2):
    out = run_example(
        "train_keras.py",
        *CLICK_FLAGS,
        f"--plot={tmp_path}/history.png",
        TF_MULTITIER_STORAGE_TYPE="DRAM_SSDHASH",
        TF_MULTITIER_STORAGE_PATH=f"{tmp_path}/ssd",
        TF_MULTITIER_STORAGE_SIZE="8192",
    )
    assert re.search(r"^ssdhash +[0-9,]+ ", out, re.M), out
    assert is_picture(f"{tmp_path}/history.png")
    # The rows are the same, the initial weights are not. Four seeds of both gave differences of 0.0012 to 0.0036.
    auc = [number_after("held-out AUC", each) for each in (out, dcnv2)]
    assert abs(auc[0] - auc[1]) < 0.01 and min(auc) > 0.74
    loss = [number_after("log loss", each) for each in (out, dcnv2)]
    assert abs(loss[0] - loss[1]) < 0.01


def test_a_keras_factorization_beats_popularity_and_is_saved(tmp_path):
    model = f"{tmp_path}/model.keras"
    out = run_example("train_keras.py", "--model=factorization", "--epochs=3", f"--save={model}")
    assert number_after("factorization", out) > 2 * number_after("popularity", out)
    assert os.path.getsize(model) > 2 * 1500 * 64 * 4  # rows and accumulators of the users alone


@pytest.mark.parametrize("loss", ["all", "sampled", "in_batch"])
def test_each_softmax_retrieves_more_than_popularity(loss):
    out = run_example("train_retrieval.py", f"--loss={loss}", "--epochs=1", "--batch_size=512")
    [found] = re.findall(r"recall@20 ([0-9.]+)$", out, re.M)[:-1]
    assert float(found) > 2 * number_after("popularity recall@20", out)


# --- train_dlrm_one_embedding.py, train_deepfm_one_embedding.py -----------------------------------


def run_one_embedding(name, folder, *flags):
    """(steps, output) of a click model of one_embedding."""
    flags = [*flags, "--steps=60", "--eval_every=30", "--batch_size=512", "--embedding_dim=4"]
    flags += ["--eval_rows=4096", f"--persistent_path={folder}/{name}"]
    out = run_example(f"train_{name}_one_embedding.py", *flags)
    assert number_after("held-out AUC", out) > 0.6
    return re.findall("^step .*", out, re.M), out


def test_click_models_of_one_embedding_learn_with_the_same_values_in_every_store(tmp_path):
    ssd = ["--store=cached_ssd", "--cache_budget_mb=0.1", "--snapshot=last"]
    steps, out = run_one_embedding("dlrm", tmp_path, *ssd)
    assert "snapshots: last" in out and re.search(r"^ssdhash +[0-9,]+ ", out, re.M), out
    assert len(steps) == 2
    assert run_one_embedding("dlrm", tmp_path, "--store=device_mem", "--snapshot=dram")[0] == steps
    _, out = run_one_embedding("deepfm", tmp_path, *ssd)
    assert re.search(r"^ssdhash +[0-9,]+ ", out, re.M), out


# --- train_dynamicemb.py -------------------------------------------------------------------------


def test_ratings_with_dynamicemb_are_the_same_on_an_ssd_and_in_a_dictionary():
    flags = ["--epochs=2", "--num_embeddings=1000"]
    dram = run_example("train_dynamicemb.py", *flags, "--incremental")
    epochs = lambda text: re.findall("^epoch .*", text, re.M)
    errors = [float(line.split()[-1]) for line in epochs(dram)]
    assert errors[1] < errors[0] and errors[1] < number_after("mean of each movie", dram)
    changed = re.findall(r"^rows that changed: user_id ([0-9,]+), .* gender 2,", dram, re.M)
    assert changed == [re.search("^user_id: ([0-9,]+) rows", dram, re.M)[1]] * 2
    for flag in ("--caching", "--external"):
        below = run_example("train_dynamicemb.py", *flags, flag)
        assert epochs(below) == epochs(dram) and "512 rows" in below


RATINGS = {
    "users.dat": ["1::F::1::10::48067", "2::M::56::16::70072"],
    "movies.dat": ["7::Heat (1995)::Action|Crime", "9::Alien: 3 (again) (1992)::Horror"],
    "ratings.dat": ["2::9::4::200", "1::7::5::100"],
}


def test_ratings_are_read_oldest_first(tmp_path, write):
    for name, lines in RATINGS.items():
        write(name, *lines)
    ids, ratings = movielens.read_ratings(str(tmp_path))
    assert ratings.tolist() == [5.0, 4.0]
    assert {name: column.tolist() for name, column in ids.items()} == {
        "user_id": [1, 2],
        "movie_id": [7, 9],
        "gender": [0, 1],
        "age": [1, 56],
        "occupation": [10, 16],
        "year": [1995, 1992],
    }


@pytest.mark.parametrize(
    "name, bad, message",
    [
        ("ratings.dat", "1::7::x::100", "3: expected 4 fields"),
        ("ratings.dat", "3::7::1::100", "3: there is no user 3 or no movie 7"),
        ("users.dat", "3::X::1::10::1", "3: expected 5 fields"),
        ("movies.dat", "3::Heat::Action", "3: expected 3 fields"),
    ],
)
def test_a_bad_line_of_ratings_is_named(tmp_path, write, name, bad, message):
    for each, lines in RATINGS.items():
        write(each, *lines, *([bad] if each == name else []))
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/{name}:{message}")):
        movielens.read_ratings(str(tmp_path))


# --- README.md -----------------------------------------------------------------------------------


def snippets(document):
    """The Python programs in a document."""
    with open(os.path.join(ROOT, document), encoding="utf-8") as stream:
        return re.findall(r"```python\n(.*?)```", stream.read(), re.S)


@pytest.mark.parametrize("document", ["README.md", "docs/tensorflow2.md"])
def test_programs_of_a_document_print_what_they_say(document, tmp_path):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as stream:
        [hint] = re.findall(r"^`export (TF_CPP_MIN_LOG_LEVEL[^`]*)`", stream.read(), re.M)
    silent = dict(re.findall(r"\b(TF_[A-Z_]+)=(\d)", hint))
    codes = snippets(document)
    assert len(codes) >= 2
    for code in codes:
        script = tmp_path / "snippet.py"
        script.write_text(code.replace('"/ssd/', f'"{tmp_path}/'))
        said = re.findall(r"^ *print\(.*\)  # ([^:\n]*)", code, re.M)
        assert len(said) == code.count("print(")
        assert run_python(document, str(script), **silent).splitlines() == said


def test_the_quick_start_has_ten_lines():
    assert len([line for line in snippets("README.md")[0].splitlines() if line]) == 10


# --- Criteo rows ---------------------------------------------------------------------------------


def test_reader_gives_missing_fields_as_zero_and_empty(write):
    path = write("a.tsv", line("1", ["3", "", "-2", "7.0"], ["68fd1e64", "", "0"]), line("0"))
    [(features, labels)] = rows_of(lambda: criteo.read([path], batch_size=8))
    np.testing.assert_array_equal(labels, [1, 0])
    assert [features[f"I{i}"].tolist() for i in (1, 2, 3, 4)] == [[3, 0], [0, 0], [-2, 0], [7, 0]]
    assert [features[f"C{i}"].tolist() for i in (1, 2, 3)] == [
        [b"68fd1e64", b""],
        [b"", b""],
        [b"", b""],
    ]
    assert set(features) == set(criteo.INT_NAMES + criteo.CAT_NAMES)
    assert features["I13"].dtype == np.float32


def test_reader_of_several_files_plain_and_gzip_keeps_order_and_batches_across_files(write):
    names = [
        write("a.tsv", *[line(ints=[str(i)]) for i in range(3)]),
        write("b.tsv.gz", *[line(ints=[str(i)]) for i in range(3, 5)]),
    ]
    batches = rows_of(lambda: criteo.read(names, batch_size=4))
    assert [features["I1"].tolist() for features, _ in batches] == [[0, 1, 2, 3], [4]]


def test_reader_with_keep_splits_rows_by_number(write):
    path = write("a.tsv", *[line(ints=[str(i)]) for i in range(10)])

    def kept(keep):
        return np.concatenate(
            [
                features["I1"]
                for features, _ in rows_of(
                    lambda: criteo.read([path], batch_size=4, keep=keep, shuffle_rows=5)
                )
            ]
        )

    held_out = kept(lambda row: tf.equal(row % 5, 4))
    trained = kept(lambda row: tf.not_equal(row % 5, 4))
    assert sorted(held_out) == [4, 9] and sorted(trained) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "bad, message",
    [
        ("\t".join(["1"] * 39), "expected 40 tab-separated fields, found 39"),
        ("\t".join(["1"] * 41), "expected 40 tab-separated fields, found 41"),
        ("", "expected 40 tab-separated fields, found 1"),
        (line(ints=["1", "2", "x"]), "field 4 (I3) is not a number: 'x'"),
        (line(label="2"), "label: expected 0 or 1, found '2'"),
        (line(label=""), "label: expected 0 or 1, found ''"),
        (line(label="nan"), "label: expected 0 or 1, found 'nan'"),
        (line(ints=["nan"]), "field 2 (I1) is not a number: 'nan'"),
        (line(ints=["", "-inf"]), "field 3 (I2) is not a number: '-inf'"),
        (line(ints=["1e39"]), "field 2 (I1) does not fit float32: '1e39'"),
        (line(ints=["1_0"]), "field 2 (I1) is not a number: '1_0'"),
    ],
)
@pytest.mark.parametrize("ending", ["tsv", "tsv.gz"])
def test_reader_on_a_bad_line_names_file_and_line(write, bad, message, ending):
    good = write("good.tsv", line(), line())
    path = write(f"bad.{ending}", line(), bad, line())
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: {message}")):
        with criteo.naming_bad_line([good, path]):
            rows_of(lambda: criteo.read([good, path], batch_size=2))


def test_naming_bad_line_passes_other_errors_through(write):
    path = write("good.tsv", line())
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else"):
        with criteo.naming_bad_line([path]):
            raise tf.errors.InvalidArgumentError(None, None, "something else")


def test_find_files_takes_files_folders_and_globs(tmp_path, write):
    a, b = write("a.tsv", line()), write("b.tsv.gz", line())
    write(".hidden", "")
    assert criteo.find_files([str(tmp_path)]) == [a, b]
    assert criteo.find_files([str(tmp_path / "*.gz"), a]) == [b, a]
    with pytest.raises(ValueError, match="no files at .*nothing"):
        criteo.find_files([str(tmp_path / "nothing")])


def test_generated_rows_repeat_with_their_seeds_and_survive_a_file(tmp_path):
    model = criteo.ClickModel(seed=5)
    direct = rows_of(lambda: model.dataset(64, stream_seed=7, rows=160))
    assert [labels.size for _, labels in direct] == [64, 64, 32]
    again = rows_of(lambda: criteo.ClickModel(seed=5).dataset(64, stream_seed=7, rows=160))
    other = rows_of(lambda: model.dataset(64, stream_seed=8, rows=64))
    path = str(tmp_path / "rows.tsv.gz")
    rng = np.random.default_rng(7)
    drawn = [model.draw(size, rng) for size in (64, 64, 32)]
    criteo.write_tsv(path, *(np.concatenate(part) for part in zip(*drawn)))
    from_file = rows_of(lambda: criteo.read([path], batch_size=64))
    for expected, *found in zip(direct, again, from_file):
        for features, labels in found:
            np.testing.assert_array_equal(labels, expected[1])
            for name in criteo.INT_NAMES + criteo.CAT_NAMES:
                np.testing.assert_array_equal(features[name], expected[0][name])
    assert (other[0][0]["C1"] != direct[0][0]["C1"]).any()


# --- Metrics -------------------------------------------------------------------------------------


def test_log_odds_of_the_hidden_model_belong_to_the_rows_of_the_dataset():
    model = criteo.ClickModel(seed=5)
    arguments = dict(batch_size=64, stream_seed=7, rows=160)
    labels, odds = model.labels_and_log_odds(**arguments)
    read = np.concatenate([labels for _, labels in rows_of(lambda: model.dataset(**arguments))])
    np.testing.assert_array_equal(read, labels)
    assert metrics.auc(labels, odds) > 0.75
