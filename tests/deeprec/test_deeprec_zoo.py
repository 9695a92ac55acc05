"""Programs as DeepRec's model zoo has them, run by `python3 -m tf_multitier.deeprec`: they learn, and go on from their checkpoints.

By default a model of each kind and the samples that differ run once, with embedding variables over DRAM and SSDHASH, and one model
in all ways. TF_MULTITIER_STRESS=1 runs all models and all samples in all ways, with all categories.
TF_MULTITIER_CRITEO_ROWS=FILE, tab-separated rows of the Criteo log, runs the click models on these rows too.
"""

import concurrent.futures
import os
import re
import runpy

import forks
import numpy as np
import pytest
from paths import ROOT

_PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zoo")
_STRESS = os.environ.get("TF_MULTITIER_STRESS") == "1"
_ROWS = os.environ.get("TF_MULTITIER_CRITEO_ROWS")

MODELS = {
    "criteo": ["wide_and_deep", "dlrm", "deepfm", "dcn", "dcnv2", "masknet", "mlperf", "dffm"],
    "taobao": ["dssm", "esmm", "bst", "mmoe", "dbmtl", "ple", "simple_multitask"],
    "amazon": ["din", "dien"],
}
ALL_MODELS = [model for models in MODELS.values() for model in models]
# Of the click models, of several tasks, of sequences, of histories, and of cells of a recurrent network.
CHOSEN_MODELS = ALL_MODELS if _STRESS else ["wide_and_deep", "esmm", "bst", "din", "dien"]
IN_ALL_WAYS = ALL_MODELS if _STRESS else ["din"]

# {sample: (kind of data, flags)}
SAMPLES = {
    "adagraddecay_optimizer": ("criteo", []),
    "adamasync_optimizer": ("amazon", []),
    "dynamic_dimension_embedding_variable": ("amazon", []),
    "embedding_variable_deepfm": ("criteo", []),
    "embedding_variable_dien": ("amazon", []),
    "embedding_variable_wide_and_deep": (
        "criteo",
        ["--no_saver", "--ev_storage", "dram_pmem", "--ev_storage_path", "pmem"],
    ),
    "estimator_wide_and_deep": ("criteo", []),
    "gpu_fused_embedding_deepfm": ("criteo", []),
    "gpu_fused_embedding_dlrm": ("criteo", []),
    "gpu_fused_embedding_wide_and_deep": ("criteo", []),
    "grouped_embedding_dcnv2": ("criteo", []),
    "grouped_embedding_deepfm": ("criteo", []),
    "kaggle_categorical_int64_deepfm": ("kaggle", ["--ev", "--group_embedding"]),
    "multihash_variable": ("amazon", []),
    "runtime_deepfm": ("criteo", ["--use_cost_model_executor", "True"]),
    "work_queue": ("criteo", []),
}
# The others do the same with another model.
CHOSEN_SAMPLES = [
    sample
    for sample in SAMPLES
    if _STRESS
    or sample
    not in ["embedding_variable_deepfm", "gpu_fused_embedding_deepfm", "gpu_fused_embedding_dlrm"]
]
OTHER_WAYS = {
    "estimator_wide_and_deep": ["--bf16", "True"],
    "grouped_embedding_dcnv2": ["--use_feature_columns"],
    "kaggle_categorical_int64_deepfm": ["--ev", "--ev_filter", "cbf"],
    "runtime_deepfm": ["--use_thread_local_executor", "True", "--timeline", "30"],
    "work_queue": ["--tf_config"],
}

# Of a click row. A graph grows with them, and a program costs what its graph costs.
_CATEGORIES = "26" if _STRESS or _ROWS else "6"

# Ten batches of a model: its first ten steps and its last ten train on the same rows.
_COUNT = 1280

# DRAM budget of a variable in bytes: room for a few dozen rows; the columns have up to 200 ids.
_DRAM_BYTES = 4096


class Programs:
    """Runs programs in separate processes, two at a time. Writes their data at its first use."""

    def __init__(self, folder):
        self._folder, self._started = folder, {}
        self._two = concurrent.futures.ThreadPoolExecutor(2)

    def data(self, kind):
        target = self._folder / "data" / kind
        if not target.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ZOO_CATEGORIES", _CATEGORIES)
                write = runpy.run_path(os.path.join(_PROGRAMS, "data.py"))
            target.mkdir(parents=True)
            write["criteo" if kind == "rows" else kind](
                str(target), _COUNT, _ROWS if kind == "rows" else None
            )
        return str(target)

    def start(self, program, kind, *flags, storage="DRAM_SSDHASH", after=None, steps=60):
        """A future of (exit status, standard output, standard error). after: a run whose checkpoint this one continues."""
        key = (program, kind, flags, storage, after, steps)
        if key not in self._started:
            folder = self._folder / f"{program}_{len(self._started)}"
            folder.mkdir(parents=True)
            results = str(folder) if after is None else self._started[after][1]
            command = [
                "-m",
                "tf_multitier.deeprec",
                os.path.join(_PROGRAMS, program + ".py"),
                "--data_location",
                self.data(kind),
                "--output_dir",
                results,
                "--steps",
                str(steps),
                *flags,
            ]
            environ = dict(
                os.environ,
                PYTHONPATH=ROOT,
                TF_CPP_MIN_LOG_LEVEL="3",
                TF_ENABLE_ONEDNN_OPTS="0",
                CUDA_VISIBLE_DEVICES="",
                ZOO_CATEGORIES=_CATEGORIES,
                TF_MULTITIER_STORAGE_TYPE=storage,
            )
            if storage != "DRAM":
                environ.update(
                    TF_MULTITIER_STORAGE_PATH=str(folder / "ssd"),
                    TF_MULTITIER_STORAGE_SIZE=str(_DRAM_BYTES),
                )
            self._started[key] = (
                self._two.submit(self._run, command, environ, str(folder), after),
                results,
            )
        return key

    def _run(self, command, environ, folder, after):
        if after is not None:
            self._started[after][0].result()
        done = forks.run(command, environ, folder, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def output(self, key):
        """The output of a run that succeeded."""
        status, printed, errors = self._started[key][0].result()
        # TensorFlow's message comes before the long list of where its node was built.
        sentences = [line for line in errors.splitlines() if "Error" in line]
        assert status == 0, "\n".join(sentences[:10]) + "\n...\n" + errors[-2000:]
        return printed

    def losses(self, key):
        """[(step, loss)]. A program with several threads may read the same step twice."""
        found = re.findall(r"^step (\d+) loss (\S+)$", self.output(key), re.MULTILINE)
        return [(int(step), float(loss)) for step, loss in found]

    def failure(self, key):
        """The standard error of a run that failed."""
        status, printed, errors = self._started[key][0].result()
        assert status != 0, printed[-3000:]
        return errors


def kind_of(model):
    return next(kind for kind, models in MODELS.items() if model in models)


def start_model(programs, model, *flags, **more):
    """A model, trained in one thread without stages: the same losses in every run."""
    kind = more.pop("kind", None) or kind_of(model)
    return programs.start(
        model, kind, "--smartstaged", "False", "--inter", "1", "--intra", "1", *flags, **more
    )


def start_sample(programs, sample, flags=None):
    kind, own = SAMPLES[sample]
    return programs.start(
        "sample_" + sample, kind, *(own if flags is None else flags), storage="DRAM_SSDHASH"
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return Programs(tmp_path_factory.mktemp("zoo"))


EV = ("--ev", "True")


def start_all(programs, model):
    """{way: run} of a model in all ways."""
    tiers, dram = (
        start_model(programs, model, *EV),
        start_model(programs, model, *EV, storage="DRAM"),
    )
    return {
        "tiers": tiers,
        "DRAM": dram,
        "static": start_model(programs, model, "--no_eval", "--save_steps", "60", storage="DRAM"),
        "second": start_model(programs, model, *EV, "--no_eval", after=tiers, steps=70),
    }


@pytest.fixture(scope="module", autouse=True)
def ahead(request, programs):
    """Starts the runs of the chosen tests, so that two of them are always at work."""
    for item in request.session.items:
        skipped = any(mark.args[0] for mark in item.iter_markers("skipif"))
        if item.path == request.path and "starts" in item.fixturenames and not skipped:
            item.callspec.params["starts"](programs)


@pytest.fixture
def starts(request, programs):
    """The runs of a test, which the function in the test's parameter has started."""
    return request.param(programs)


def of_models(start, models):
    """Parametrizes a test by `start(programs, model)`."""
    return pytest.mark.parametrize(
        "starts",
        [pytest.param(lambda programs, m=m: start(programs, m), id=m) for m in models],
        indirect=True,
    )


def assert_falls(losses, steps=60):
    values = [loss for _, loss in losses]
    assert len(values) == steps and np.isfinite(values).all()
    assert np.mean(values[-10:]) < np.mean(values[:10])


@of_models(lambda programs, model: start_model(programs, model, *EV), CHOSEN_MODELS)
def test_model_learns_with_embedding_variables_over_two_tiers_and_evaluates(programs, starts):
    assert_falls(programs.losses(starts))
    assert re.search(r"^AUC = [01]\.\d+", programs.output(starts), re.MULTILINE)


@of_models(start_all, IN_ALL_WAYS)
def test_model_prints_the_same_losses_over_dram_and_over_two_tiers(programs, starts):
    tiers, dram = programs.losses(starts["tiers"]), programs.losses(starts["DRAM"])
    assert len(dram) == 60 and tiers == dram


@of_models(start_all, IN_ALL_WAYS)
def test_model_learns_on_static_variables(programs, starts):
    assert_falls(programs.losses(starts["static"]))


@of_models(start_all, IN_ALL_WAYS)
def test_model_continues_from_its_checkpoint_in_a_second_process(programs, starts):
    first, second = programs.losses(starts["tiers"]), programs.losses(starts["second"])
    assert len(second) == 10 and second[0][0] >= first[-1][0]
    # Both begin with the same batches, which the second knows already.
    again, before, after = (
        np.mean([loss for _, loss in losses]) for losses in (second, first[:10], first[-10:])
    )
    assert again < (before + after) / 2


@of_models(start_sample, CHOSEN_SAMPLES)
def test_sample_learns(programs, starts):
    assert_falls(programs.losses(starts))


@pytest.mark.skipif(not _STRESS, reason="other ways of the samples: TF_MULTITIER_STRESS=1")
@of_models(lambda programs, sample: start_sample(programs, sample, OTHER_WAYS[sample]), OTHER_WAYS)
def test_sample_learns_in_another_way(programs, starts):
    assert_falls(programs.losses(starts))


def start_exports(programs, _):
    sample = "sample_embedding_variable_wide_and_deep"
    return programs.start(sample, "criteo", "--saved_model_path", "exported"), programs.start(
        sample, "criteo", "--save_steps", "20", "--incr_save_steps", "7"
    )


@of_models(start_exports, ["embedding_variable_wide_and_deep"])
def test_sample_exports_and_its_incremental_saver_saves_what_changed(programs, starts):
    exported, incremental = starts
    assert "saved_model.pb" in programs.output(exported)
    saved = re.findall(r"Save incremental checkpoint to (\S+)", programs.output(incremental))
    # The first, of step 0, has all rows. The others continue it, then the checkpoints of steps 19 and 39.
    bases = [re.search(r"checkpoint-(\d+)\.delta-\d{4}$", path) for path in saved]
    assert bases[0] is None
    assert [base[1] for base in bases[1:]] == ["0"] * 2 + ["19"] * 3 + ["39"] * 3


@pytest.mark.skipif(
    not _ROWS, reason="TF_MULTITIER_CRITEO_ROWS names no file with rows of the Criteo log"
)
@of_models(lambda programs, model: start_model(programs, model, *EV, kind="rows"), MODELS["criteo"])
def test_click_model_learns_from_real_rows(programs, starts):
    assert_falls(programs.losses(starts))
