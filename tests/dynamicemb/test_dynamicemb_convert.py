"""python3 -m tf_multitier.checkpoint convert from and to dumps of models."""

import os

import dynamicemb_dump_util as dumps
import numpy as np
import pytest
import tensorflow as tf

from tf_multitier import checkpoint
from tf_multitier import dynamicemb as de
from tf_multitier.checkpoint import __main__ as command
from worlds import needs_eager

pytestmark = needs_eager


def convert(*arguments):
    return command.main(["convert", *map(str, arguments)])


@pytest.mark.parametrize(
    "strategy, scores", [("STEP", "step"), ("LFU", "frequency"), ("TIMESTAMP", "time")]
)
def test_a_dump_of_a_model_goes_out_and_comes_back(strategy, scores, tmp_path):
    strategy = getattr(de.DynamicEmbScoreStrategy, strategy)
    make = lambda: dumps.make(strategy, de.EmbOptimType.EXACT_ADAGRAD)
    model, other = make(), make()
    dumps.train(model, [1, 2, -2])
    dumps.train(model, [2, 3])
    de.DynamicEmbDump(str(tmp_path / "dump"), model, optim=True)
    out, back = tmp_path / "model", tmp_path / "back"
    assert convert("--from=dynamicemb", tmp_path / "dump", "--to=checkpoint", out) == 0
    assert convert("--from=checkpoint", out, "--to=dynamicemb", back, f"--scores={scores}") == 0
    de.DynamicEmbLoad(str(back), other, optim=True)
    for name in dumps.DIMS:
        found, expected = (m.tables_by_name[name].variable.export_rows() for m in (other, model))
        np.testing.assert_array_equal(found.keys, expected.keys)
        np.testing.assert_array_equal(found.rows, expected.rows)
        slots = [f"{name}/Adagrad"]
        assert [c[0] for c in checkpoint.load(out).tables[name].columns[1:]] == slots
        if scores == "frequency":
            np.testing.assert_array_equal(found.frequencies, expected.frequencies)
        if scores == "step":
            np.testing.assert_array_equal(found.versions, expected.versions)
        if scores == "time":  # ages stay, so all times move alike
            assert np.unique(expected.versions).size == 2
            assert np.unique(found.versions - expected.versions).size == 1


def test_a_checkpoint_of_adam_goes_on_in_a_model(tmp_path):
    make = lambda: dumps.make(de.DynamicEmbScoreStrategy.STEP, de.EmbOptimType.ADAM)
    model, other = make(), make()
    for _ in range(3):
        dumps.train(model, [1, 2])
    tf.train.Checkpoint(model=model).write(str(tmp_path / "model"))
    assert (
        convert("--from=checkpoint", tmp_path / "model", "--to=dynamicemb", tmp_path / "dump") == 0
    )
    de.DynamicEmbLoad(str(tmp_path / "dump"), other, optim=True)
    for each in (model, other):
        dumps.train(each, [2])
    dumps.assert_same(dumps.everything(other), dumps.everything(model))


def test_what_nothing_takes_is_said(tmp_path, capsys):
    keys = np.arange(4)
    states = {name: np.ones([4, dim], np.float32) for name, dim in dumps.DIMS.items()}
    dumps.hand_made(
        tmp_path / "dump",
        keys,
        np.ones(4, np.int64),
        arguments={"opt_type": "lamb", "evict_strategy": "KNew"},
        states=states,
        counted=(keys + 9, keys + 1),
    )
    dumps.hand_made(tmp_path / "other", keys, np.ones(4, np.int64), world=2)
    os.remove(tmp_path / "other/model/a_emb_scores.rank_1.world_size_2")
    for name in ("dump", "other"):
        assert (
            convert("--from=dynamicemb", tmp_path / name, "--to=npz", tmp_path / f"{name}.out") == 0
        )
    said = capsys.readouterr().err
    at = lambda folder, item: tmp_path / folder / "model" / item
    for path, what in (
        (at("dump", "b_emb_opt_values.rank_0.world_size_1"), "states of opt_type lamb"),
        (at("dump", "b_emb_scores.rank_0.world_size_1"), "scores of evict_strategy KNew"),
        (at("dump", "b_counter_keys.rank_0.world_size_1"), "counted keys"),
        (at("other", "a_emb_scores.rank_0.world_size_2"), "scores of 1 ranks of 2"),
    ):
        assert f"{path}: left out: {what}\n" in said


@pytest.mark.parametrize("name", ["initial_accumulator_value", "step_score"])
def test_an_argument_that_is_no_number_is_an_error(name, tmp_path, capsys):
    keys, states = np.arange(4), {n: np.ones([4, d], np.float32) for n, d in dumps.DIMS.items()}
    arguments = {"opt_type": "exact_adagrad", name: None}
    dumps.hand_made(tmp_path / "dump", keys, keys, arguments=arguments, states=states)
    assert convert("--from=dynamicemb", tmp_path / "dump", "--to=npz", tmp_path / "out") == 2
    assert f"a_opt_args.json: {name}: expected a number, found None\n" in capsys.readouterr().err
