"""What a run under the runner prints beyond the script's own output."""

import os
import subprocess
import sys
import warnings

import forks
import pytest
import tensorflow as tf
from paths import ROOT

from tf_multitier.deeprec import messages

SCRIPT = """
import sys, warnings
import tensorflow as tf
import brought

def build():
    features = {"a": tf.constant([[3], [5]], tf.int64)}
    ids = tf.feature_column.categorical_column_with_embedding("a", tf.int64)
    net = tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(ids, 4), tf.feature_column.numeric_column("a")])
    if "tf_keras" in sys.argv:
        net = tf.layers.batch_normalization(tf.layers.dense(net, 3), training=True)
    tf.metrics.auc([0, 1], tf.sigmoid(net[:, 0]))
    opt = tf.train.AdagradDecayOptimizer(0.1, global_step=tf.train.get_or_create_global_step())
    return opt.minimize(tf.losses.mean_squared_error(tf.ones([2, 1]), net[:, :1]), tf.train.get_global_step())

warnings.warn("mine is deprecated", DeprecationWarning)
step = build()
with tf.train.MonitoredTrainingSession(checkpoint_dir=sys.argv[1], hooks=[tf.train.StopAtStepHook(last_step=3)]) as session:
    while not session.should_stop():
        session.run(step)
print("trained")
brought.fail()
"""

BROUGHT = """
import tensorflow as tf

def fail():
    x = tf.placeholder(tf.float32, [2], name="x")
    product = tf.linalg.cholesky(tf.reshape(x, [1, 2]))
"""


def _run(start, directory, *options):
    """start: of the arguments of `python`, as forks.run."""
    (directory / "train.py").write_text(SCRIPT)
    (directory / "brought.py").write_text(BROUGHT)
    line = [
        "-m",
        "tf_multitier.deeprec",
        *options,
        "train.py",
        str(directory / "saved"),
        "tf_keras",
    ]
    environ = dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    return start(line, env=environ, cwd=str(directory))


def _python(arguments, **more):
    """Imports TensorFlow, which may print too."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **more
    )


def test_a_run_prints_no_deprecations_and_the_frames_of_the_script(tmp_path):
    pytest.importorskip("tf_keras", reason="tf.layers need it")
    done = _run(_python, tmp_path)
    assert (done.returncode, done.stdout) == (1, "trained\n"), done.stderr[-3000:]
    lines = [
        line
        for line in done.stderr.splitlines()
        if "deprecated" in line or "Instructions for updating" in line
    ]
    assert lines == [
        next(line for line in lines if "mine is deprecated" in line),
        '  warnings.warn("mine is deprecated", DeprecationWarning)',
    ]
    trace = done.stderr[done.stderr.index("Traceback") :]
    assert "tf_multitier/deeprec/" not in trace and "runpy" not in trace
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith("File")]
    assert 'train.py", line' in frames[0] and "in fail" in frames[1] and "brought.py" in frames[1]
    assert trace.splitlines()[-1].startswith("ValueError: Dimensions must be equal")


def test_deprecations_are_printed_on_request(tmp_path):
    pytest.importorskip("tf_keras", reason="tf.layers need it")
    done = _run(forks.run, tmp_path, "--deprecations")
    assert (
        "embedding_column (from tensorflow" in done.stderr
        and "`tf.layers.dense` is deprecated" in done.stderr
    )


def _raised_in(file, body):
    """The exception of `body`, run as a function of a file of that name."""
    space = {}
    exec(compile(f"def call(*arguments):\n    {body}\n", file, "exec"), space)
    return space["call"]


def test_errors_that_led_to_an_error_lose_the_frames_too():
    inner = _raised_in("/x/tf_multitier/deeprec/script.py", "raise KeyError('inner')")
    middle = _raised_in("user.py", "arguments[0]()")
    outer = _raised_in(
        "<frozen runpy>",
        "try:\n        arguments[0](arguments[1])\n    except KeyError:\n        raise ValueError('outer')",
    )
    with pytest.raises(ValueError, match="outer") as raised:
        outer(middle, inner)
    error = raised.value
    messages.without_runner(error)
    of = lambda traceback: (
        [] if traceback is None else [traceback.tb_frame.f_code.co_filename, *of(traceback.tb_next)]
    )
    assert "<frozen runpy>" not in of(error.__traceback__)
    assert of(error.__context__.__traceback__) == ["user.py"]


def test_the_place_of_an_op_loses_the_frames_of_the_runner():
    text = (
        'Detected at node defined at (most recent call last):\n  File "<frozen runpy>", line 88, in _run_code\n'
        '  File "/a/tf_multitier/deeprec/script.py", line 9, in run\n  File "train.py", line 3, in <module>\n'
        '  File "/a/tf_multitier/nn.py", line 3, in lookup\n'
    )
    error = tf.errors.InvalidArgumentError(None, None, text)
    messages.without_runner(error)
    assert error.message == (
        'Detected at node defined at (most recent call last):\n  File "train.py", line 3, in <module>\n'
        '  File "/a/tf_multitier/nn.py", line 3, in lookup\n'
    )


def test_warnings_and_deprecations_are_as_ever_afterwards():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with messages.without_deprecations():
            warnings.warn(
                "`tf.layers.dense` is deprecated and will be removed", UserWarning, stacklevel=1
            )
            with pytest.raises(UserWarning, match="the program's own"):
                warnings.warn("the program's own", UserWarning, stacklevel=1)
    with pytest.warns(UserWarning, match="deprecated"):
        warnings.warn(
            "`tf.layers.dense` is deprecated and will be removed", UserWarning, stacklevel=1
        )
