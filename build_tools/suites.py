"""What `configure.py test` runs, by tier, and the jobs of tier 3. CONTRIBUTING.md says which job belongs to which change.

0  check: texts and names, without TensorFlow
1  unit: C++, and the files of tests/ that are in no other tier
2  system: programs in processes of their own
3  matrix: named jobs, which take up to 80 minutes each on two cores
"""

import glob
import os

from build_tools import bazel, environment, steps, wheels
from build_tools.steps import ROOT, Failure, step

# Tier 0. They import neither TensorFlow nor tf_multitier.
CHECK = ["test_documents.py", "test_layers.py", "test_messages.py"]

# Tier 2.
SYSTEM = [
    "test_bad_input.py",
    "test_checkpoint_faults.py",
    "test_cuda_build.py",
    "test_deeprec.py",
    "test_deeprec_incremental.py",
    "test_deeprec_keras.py",
    "test_deeprec_memory.py",
    "test_deeprec_messages.py",
    "test_deeprec_names.py",
    "test_deeprec_numpy_names.py",
    "test_deeprec_programs.py",
    "test_deeprec_script_modules.py",
    "test_deeprec_zoo.py",
    "test_distribute_document.py",
    "test_distribute_servers.py",
    "test_distribute_tf2_servers.py",
    "test_document_programs.py",
    "test_examples.py",
    "test_external_programs.py",
    "test_full_disks.py",
    "test_gpu_check.py",
    "test_gpu_kernels.py",
    "test_import_purity.py",
    "test_kept_readers.py",
    "test_kept_variable_faults.py",
    "test_killed_tables.py",
    "test_killed_transfers.py",
    "test_launch.py",
    "test_linked_save_faults.py",
    "test_linked_saves.py",
    "test_one_embedding_programs.py",
    "test_one_embedding_snapshots.py",
    "test_over_hbm.py",
    "test_serving_command.py",
    "test_serving_http.py",
    "test_storage_sharing.py",
    "test_table_processes.py",
    "test_tf2_frozen_models.py",
    "test_tf2_serving.py",
    "test_type_checkers.py",
    "test_v1_entry_points.py",
    "test_world.py",
    "test_world_checkpoints.py",
    "test_world_deeprec.py",
    "test_world_dynamicemb.py",
    "test_world_failures.py",
    "test_world_keras.py",
    "test_world_one_embedding.py",
    "test_world_sessions.py",
]

_ATTACKS = os.path.join("tests", "attacks")

# {file: the cases of it that a job runs, as pytest's -k; "" for all}.
_V1 = {
    "test_training_equality.py": "",
    "test_embedding_variable.py": "",
    "test_lookups.py": "",
    "test_training.py": "",
    "test_gradients.py": "",
    "test_control_flow.py": "group",
    "test_admission.py": "",
    "test_saver.py": "",
    "test_errors.py": "",
    "test_feature_column.py": "",
    "test_linear_model.py": "",
    "test_column_variables.py": "",
    "test_group_columns.py": "",
    "test_group_errors.py": "loops",
    "test_group_stock.py": "planned",
    "test_deeprec_defects.py": "",
    "test_group_concat.py": "branch or refused or devices or dense or copies",
    "test_data.py": "",
    "test_prefetch.py": "",
    "test_storage.py": "by_hand or checkpoint",
    "test_storage_path.py": "share",
}

# Left out: optimizers without a kernel for HBM, which are refused there by name, and tests that say in which tier each row is
# without HBM. test_storage.py has both for HBM.
_OVER_HBM = {
    "test_saver.py": "",
    "test_engine_group.py": "not (joined_keys and 9000)",  # keys of more than 256 entries are summed in another order
    "test_group_lookup.py": "",
    "test_group_updates.py": "not adadelta",
    "test_group_columns.py": "",
    "test_group_concat.py": "not one_op_each_way",  # variables with HBM have an op of their own
    "test_group_errors.py": "",
    "test_group_graph.py": "",
    "test_group_stock.py": "",
    "test_group_sequence_columns.py": "",
    "test_restore.py": "not a_bar_on_a_terminal",  # over a tier below it reads rows three times
    "test_save_moment.py": "",
    "test_incremental_saver.py": "",
    "test_storage_path.py": "",
    "test_storage_sharing.py": "",
}

# The front ends: tables of dynamicemb and embeddings of one_embedding, which are in HBM there (hbm_plugin.py). Left out: weight
# decay, which HBM refuses, and a test of other tiers.
_FRONT_ENDS_OVER_HBM = {
    "test_dynamicemb_collections.py": "",
    "test_dynamicemb_dumps.py": "",
    "test_dynamicemb_training.py": "not every_storage",
    "test_one_embedding_tables.py": "",
    "test_one_embedding_training.py": "not settings4",
}

# The same of tests whose variables have types of their own: HBM is put above those with DRAM (storage_util.option).
_OVER_HBM_WITH_OPTIONS = {
    "test_prefetch.py": "",
    "test_storage.py": "not adadelta and not adagrad_decay and not drops and not by_hand and not definition and not statistics",
}

_ON_A_GPU = {
    "test_group_lookup.py": "",
    # Left out: an op of the CPU.
    "test_group_updates.py": "not adadelta and not hyperparameters_are_once",
    "test_group_columns.py": "",
    "test_group_concat.py": "not one_op_each_way and not of_another_size",  # which call the op of the CPU
    "test_group_errors.py": "",
    "test_group_stock.py": "",
    "test_saver.py": "",
}

# Files with cases that run only with TF_MULTITIER_STRESS, or run longer with it.
_STRESS = [
    "test_engine.py",
    "test_deeprec_zoo.py",
    "test_incremental_saver.py",
    "test_kept_variable_faults.py",
    "test_killed_tables.py",
    "test_linked_save_faults.py",
    "test_linked_saves.py",
    "test_merge.py",
    "test_save_moment.py",
    "test_serving_deltas.py",
    "test_table_processes.py",
    "test_tf2_checkpoints.py",
    "test_tf2_variable.py",
]


def path(file):
    """Where a file of tests/ is. Its name is unique."""
    [found] = glob.glob(os.path.join(ROOT, "tests", "*", file))
    return os.path.relpath(found, ROOT)


def unit_files():
    """The files of tier 1."""
    found = glob.glob(os.path.join(ROOT, "tests", "*", "test_*.py"))
    names = {os.path.basename(file) for file in found if _ATTACKS not in file}
    return sorted(names - set(CHECK + SYSTEM))


def pytest(files, *options):
    """The command that runs files of tests/."""
    return [environment.VENV_PYTHON, "-m", "pytest"] + list(options) + [path(f) for f in files]


def workers():
    """pytest's options for a process per core and one for times of waiting. Each takes a file at a time, in the order given."""
    number = str(min(8, os.cpu_count() or 1) + 1)
    return ["-n", number, "--dist", "loadfile", "--no-loadscope-reorder"]


def selected(cases):
    """The files of `cases` and the one -k expression that selects theirs."""
    wanted = []
    for file, selection in sorted(cases.items()):
        if selection:
            # The name of a file is a keyword of its cases.
            wanted.append("(not %s or (%s))" % (file, selection))
    return sorted(cases), ["-k", " and ".join(wanted)] if wanted else []


def over_hbm(kind, sizes, cases, folder):
    """A run of `cases` in which variables without a storage_option are over HBM, on the emulated device.

    HBM holds a few rows, so that rows come and go in every step. A file that makes nothing with HBM fails (hbm_plugin.py).
    """
    files, options = selected(cases)
    variables = dict(
        PYTHONPATH=os.pathsep.join(
            [os.path.join(ROOT, "tests", "util")] + [p for p in [os.environ.get("PYTHONPATH")] if p]
        ),
        TF_MULTITIER_DEVICE="emulated",
        TF_MULTITIER_STORAGE_TYPE=kind,
        TF_MULTITIER_STORAGE_PATH=folder,
        TF_MULTITIER_STORAGE_SIZE=sizes,
    )
    command = pytest(files, "-q", "-p", "no:cacheprovider", "-p", "hbm_plugin", *options)
    return "over %s" % kind, command, variables


def job_hbm():
    """The suites of savers, prefetch and grouped lookups over HBM, on the emulated device."""
    with steps.temporary_folder() as folder:
        both = dict(_OVER_HBM, **_OVER_HBM_WITH_OPTIONS)
        programs = pytest(["test_deeprec_programs.py"], "-q", "-k", "gpu")
        runs = [
            over_hbm("HBM_DRAM", "4096", _OVER_HBM, os.path.join(folder, "a")),
            over_hbm("HBM_DRAM_SSDHASH", "4096,8192", both, os.path.join(folder, "b")),
            over_hbm("HBM", "65536", _FRONT_ENDS_OVER_HBM, os.path.join(folder, "c")),
        ]
        # Its programs run in processes of their own, in which the plugin counts nothing.
        runs += [("programs " + title, programs, variables) for title, _, variables in runs[:2]]
        steps.side_by_side(runs)


def job_v1():
    """The suites of embedding variables after tf.compat.v1.disable_v2_behavior()."""
    files, options = selected(_V1)
    command = pytest(files, "-q", *(workers() + options))
    steps.side_by_side([("v1 behaviour", command, {"TF_MULTITIER_TEST_BEHAVIOR": "v1"})])


def job_gpu():
    """What TensorFlow does where it has a GPU: a plugin gives it one whose memory is the host's. HBM is on the emulated device.

    And the check of a GPU, with an emulated one.
    """
    facts = environment.probe_environment()
    with steps.temporary_folder() as folder:
        library = os.path.join(folder, "libhost_memory_gpu.so")
        with step("the plugin of a GPU"):
            compiler = ["g++", "-O1", "-fPIC", "-shared", "-o", library]
            folder_of_sources = os.path.join(ROOT, "tests", "hbm", "host_memory_gpu")
            source = [os.path.join(folder_of_sources, name) for name in ("plugin.cc", "kernels.cc")]
            link = ["-L" + facts["TF_MULTITIER_TF_LIBRARY_DIR"]]
            link.append("-l:" + facts["TF_MULTITIER_TF_LIBRARY"])
            flags = facts["TF_MULTITIER_TF_CXXFLAGS"].split(" ")
            steps.logged(compiler + flags + source + link, "the plugin does not compile")
        checks = os.path.join(folder, "check")
        bazel.build_gpu_check(checks)
        script = os.path.join(ROOT, "cc", "hbm", "check", "gpu_check.sh")
        check = ["bash", script, checks, "--emulated"]
        variables = dict(TF_MULTITIER_TEST_GPU=library, TF_MULTITIER_DEVICE="emulated")
        hbm = dict(TF_MULTITIER_STORAGE_TYPE="HBM_DRAM", TF_MULTITIER_STORAGE_SIZE="4096")
        files, options = selected(_ON_A_GPU)
        cases = pytest(["gpu_cases.py", "gpu_pooling_cases.py"], "-q")
        suites = pytest(files, "-q", *options)
        steps.side_by_side(
            [
                ("cases on a GPU", cases, variables),
                ("suites on a GPU", suites, dict(variables, **hbm)),
                ("the check of a GPU", check, {}),
            ]
        )


def job_attacks():
    """tests/attacks: storage, threads and memory that fail."""
    steps.side_by_side([("attacks", pytest([], "-q", _ATTACKS), {})])


def job_stress():
    """C++ and Python tests with TF_MULTITIER_STRESS=1."""
    with step("C++ tests"):
        cpp_tests(["--test_env=TF_MULTITIER_STRESS=1", "--test_timeout=900,3600,7200,14400"])
    command = pytest(_STRESS, "-q", "-o", "faulthandler_timeout=4000", *workers())
    steps.side_by_side([("Python tests", command, {"TF_MULTITIER_STRESS": "1"})])


def job_wheels():
    """A wheel for each TensorFlow and Python that is found, and the source distribution, each tried in a new environment."""
    wheels.try_sources(wheels.make_wheels([], [])[-1])


def job_units():
    """Each source of the libraries compiled by itself: see `units` in cc/build_defs.bzl."""
    with step("each source by itself"):
        options = ["--define=multitier_units=no", "//:libraries"]
        bazel.bazel("build", options, "a source does not compile by itself")


def job_asan():
    """The engine's tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    sanitized("asan", [])


def job_tsan():
    """The engine's tests under ThreadSanitizer."""
    sanitized("tsan", bazel.tsan_options())


JOBS = {
    "asan": job_asan,
    "attacks": job_attacks,
    "gpu": job_gpu,
    "hbm": job_hbm,
    "stress": job_stress,
    "tsan": job_tsan,
    "units": job_units,
    "v1": job_v1,
    "wheels": job_wheels,
}


def run_jobs(names):
    """Runs jobs of tier 3 in turn; without names, all. Each runs, whether or not those before it passed."""
    unknown = [name for name in names if name not in JOBS]
    if unknown:
        raise Failure(
            "jobs of tier 3: expected %s, found %s" % (", ".join(sorted(JOBS)), ", ".join(unknown))
        )
    failures = []
    for name in names or sorted(JOBS):
        steps.say("%s: %s" % (name, JOBS[name].__doc__.strip().splitlines()[0]))
        try:
            JOBS[name]()
        except Failure as failure:
            failures.append("%s: %s" % (name, failure))
    if failures:
        raise Failure("\n\n".join(failures))


def cpp_tests(options=()):
    """Runs the C++ tests. The timeouts, by the size of a test, end those that hang, also on a machine that is busy."""
    arguments = ["--test_timeout=300,900,1800,3600"] + list(options) + ["//cc/..."]
    bazel.bazel("test", arguments, "C++ tests FAILED", shown=steps.failed_tests)


def sanitized(config, options):
    """Runs the C++ tests of the engine, or the targets that `options` name, under a sanitizer."""
    arguments = ["--config=" + config] + options
    if not [option for option in options if not option.startswith("-")]:
        arguments.append("//cc/...")
    with step("tests under " + config):
        bazel.bazel("test", arguments, "tests FAILED under " + config, shown=steps.failed_tests)
