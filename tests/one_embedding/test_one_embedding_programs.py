"""`python3 -m tf_multitier.one_embedding`: programs as OneEmbedding's documents print them."""

import os
import re
import runpy
import sys

import forks
import numpy as np
import pytest
import tensorflow as tf
from one_embedding_util import F
from paths import ROOT
from worlds import needs_eager

from tf_multitier import one_embedding
from tf_multitier.one_embedding import oneflow

pytestmark = needs_eager
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quick_start.py")


@pytest.fixture
def flow(monkeypatch):
    """The names of the runner, taken out of the process after the test."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    oneflow.install()
    yield sys.modules["oneflow"]
    for name in set(sys.modules) - set(before):
        if name.split(".")[0] == "oneflow":
            del sys.modules[name]


def run(*arguments):
    environ = dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3")
    return forks.run(["-m", "tf_multitier.one_embedding", *arguments], environ)


def test_the_program_runs_as_printed(tmp_path):
    done = run(PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    shape, loss = done.stdout.strip().splitlines()
    assert shape == "(2, 4, 3)"
    assert np.isfinite(float(re.fullmatch(r"tensor\((.*), dtype=oneflow.float32\)", loss)[1]))
    assert done.stderr.count("this build or machine has no GPU for rows") == 1


def test_rows_after_its_step_are_those_of_numpy(flow, tmp_path, monkeypatch):
    kind, call = flow.one_embedding.MultiTableEmbedding, oneflow.Graph.__call__
    first, steps = [], []

    def to(self, device):
        """Keeps the initial values of the program's ids: of each table [1000, 128]."""
        del device
        first.extend(self(np.arange(1000), np.full(1000, t)).numpy() for t in range(3))

    def called(self, ids):
        steps.append((ids.numpy(), [weight.numpy() for weight in self.mlp.parameters()]))
        return call(self, ids)

    monkeypatch.setattr(kind, "to", to)
    monkeypatch.setattr(oneflow.Graph, "__call__", called)
    monkeypatch.setattr(sys, "argv", [PROGRAM, str(tmp_path)])
    scope = runpy.run_path(PROGRAM, run_name="__main__")
    [(ids, weights)] = steps
    # A repeated id is one row, with the initial value of the table that asks it first.
    rows: dict = {}
    for key, table in zip(ids.ravel().tolist(), [0, 1, 2] * len(ids)):
        rows.setdefault(key, first[table][key])
    inputs = np.array([rows[key] for key in ids.ravel().tolist()]).reshape(len(ids), -1)
    summed: dict = {}
    for key, gradient in zip(ids.ravel().tolist(), _gradients(inputs, weights).reshape(-1, 128)):
        summed[key] = summed.get(key, 0) + gradient
    keys = np.array(sorted(summed))
    found = scope["embedding"](keys, np.zeros(len(keys), np.int64)).numpy()
    expected = np.array([rows[key] - F(0.1) * summed[key] for key in keys.tolist()])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    by_column, by_table = scope["by_column"].numpy(), scope["by_table"].numpy()
    np.testing.assert_array_equal(by_column.reshape(6, -1), by_table)
    for table, bound in enumerate((0.1, 0.05, 0.15)):
        fresh = scope["embedding"](np.arange(5000, 6000), np.full(1000, table)).numpy()
        assert 0.99 * bound < np.abs(fresh).max() <= bound


def _gradients(rows, weights):
    """The gradients of the sum of the outputs of a perceptron, by its inputs [n, d]."""
    activations = [rows]
    for kernel, bias in zip(weights[::2], weights[1::2]):
        activations.append(np.maximum(activations[-1] @ kernel + bias, 0))
    gradient = np.ones((len(rows), 1), F)
    for number in range(len(weights) // 2 - 1, -1, -1):
        if number < len(weights) // 2 - 1:
            gradient = gradient * (activations[number + 1] > 0)
        gradient = gradient @ weights[2 * number].T
    return gradient


def test_a_mean_at_a_lower_rate_falls(flow, tmp_path):
    tables = [
        one_embedding.make_table_options(one_embedding.make_uniform_initializer(-s, s))
        for s in (0.1, 0.05, 0.15)
    ]
    store = one_embedding.make_device_mem_store_options(str(tmp_path), 10_000)
    embedding = flow.one_embedding.MultiTableEmbedding(
        "mean", 16, flow.float, flow.int64, tables, store
    )
    mlp = flow.nn.FusedMLP(48, [32], 1, skip_final_activation=True)

    class Mean(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.add_optimizer(flow.optim.SGD(embedding.parameters(), lr=0.01))
            self.add_optimizer(flow.optim.SGD(mlp.parameters(), lr=0.01))

        def build(self, ids):
            outputs = mlp(flow.reshape(embedding(ids), (-1, 48)))
            loss = oneflow.Tensor(tf.reduce_mean(outputs.value**2 + outputs.value))
            loss.backward()
            return loss

    graph = Mean()
    ids = flow.tensor(np.random.default_rng(1).integers(0, 1000, (100, 3)))
    losses = [float(graph(ids).numpy()) for _ in range(50)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("use", "listed"),
    [
        ("flow.zeros(3)", "tensor, reshape, int, int64, float, nn, optim, one_embedding"),
        ("flow.nn.Linear(1, 2)", "Embedding, FusedMLP, Graph"),
        ("flow.tensor([1]).mean()", "shape, to, sum, numpy, backward"),
        ("exec('import oneflow.utils')", "oneflow.nn, oneflow.optim, oneflow.one_embedding"),
        ("exec('from oneflow import zeros')", "tensor, reshape"),
    ],
)
def test_another_name_is_an_error_that_lists_those_there_are(use, listed, flow):
    with pytest.raises((NotImplementedError, ImportError), match=listed):
        eval(use, {"flow": flow})
    assert hasattr(flow, "tensor") and not hasattr(flow, "zeros")
    assert hasattr(flow.tensor([1]), "sum") and not hasattr(flow.tensor([1]), "mean")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("no_such_program.py",)])
def test_a_bad_command_line_prints_the_usage(arguments):
    done = run(*arguments)
    assert done.returncode == 2 and "usage: python3 -m tf_multitier.one_embedding" in done.stderr
