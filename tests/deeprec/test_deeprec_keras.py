"""`tf.layers` of scripts under `python3 -m tf_multitier.deeprec`: Keras 2, or an error; and which modules get Keras 2."""

import os
import subprocess
import sys

import forks
import pytest
from paths import ROOT

from tf_multitier._src.tensorflow import start

DENSE = """
import tensorflow as tf
with tf.variable_scope("tower", partitioner=tf.fixed_size_partitioner(2)) as scope:
  y = tf.layers.dense(tf.ones([2, 3]), units=4, activation=tf.nn.relu, kernel_initializer=tf.ones_initializer(), name=scope)
y = tf.layers.batch_normalization(tf.layers.dropout(y, 0.5, training=False), training=True)
with tf.Session() as session:
  session.run(tf.global_variables_initializer())
  print([v.name for v in tf.trainable_variables()], session.run(y).shape)
"""


def run(script, directory, command=("-m", "tf_multitier.deeprec"), **environ):
    """Keras is chosen while TensorFlow is imported: a process of its own."""
    (directory / "script.py").write_text(script)
    environ = {**os.environ, "PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    return subprocess.run(
        [sys.executable, *command, str(directory / "script.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_script_has_tf_layers(tmp_path):
    (tmp_path / "script.py").write_text(DENSE)
    line = ["-m", "tf_multitier.deeprec", tmp_path / "script.py"]
    done = forks.run(line, env={**os.environ, "PYTHONPATH": ROOT})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'tower/kernel/part_0:0'" in done.stdout and "(2, 4)" in done.stdout


def test_a_script_can_import_keras_2_by_name(tmp_path):
    done = run(
        "from tensorflow.keras import layers\nimport tensorflow as tf\nprint(layers.Dense.__module__, tf.keras.Model.__module__)",
        tmp_path,
    )
    assert done.stdout.count("tf_keras") == 2, done.stderr[-3000:]


@pytest.mark.parametrize(
    "hidden, expected",
    [
        (("tf_keras",), "ImportError: tf.layers needs the package tf_keras: run `pip install "),
        (
            (),
            "ImportError: tf.layers needs Keras 2: run the program with TF_USE_LEGACY_KERAS=1, found TF_USE_LEGACY_KERAS=0",
        ),
    ],
)
def test_without_keras_2_one_sentence_says_what_to_do(tmp_path, hidden, expected):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name in {hidden!r} else find(name, *rest)\n"
    )
    done = run(
        DENSE,
        tmp_path,
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        **({} if hidden else {start.LEGACY_KERAS: "0"}),
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(expected)


def test_only_the_runner_gets_keras_2(tmp_path):
    script = "import os, tf_multitier\nprint(os.environ.get('TF_USE_LEGACY_KERAS'))"
    assert run(script, tmp_path, command=()).stdout == "None\n"


@pytest.mark.parametrize(
    "line, expected",
    [
        ("python3 -m tf_multitier.deeprec train.py", True),
        ("python3 -u -W ignore -m tf_multitier.deeprec train.py", True),
        ("python3 -um tf_multitier.deeprec train.py", True),
        ("python3 -BWignore -mtf_multitier.deeprec train.py", True),
        ("python3 train.py -m tf_multitier.deeprec", False),
        ("python3 - -m tf_multitier.deeprec", False),
        ("python3 -m pytest -m tf_multitier.deeprec", False),
        ("python3 -c 1 -m tf_multitier.deeprec", False),
        ("python3", False),
    ],
)
def test_the_runner_is_known_by_its_command_line(line, expected):
    assert (start.module_run(line.split()) == "tf_multitier.deeprec") is expected
