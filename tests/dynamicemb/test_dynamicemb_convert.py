"""python3 -m tf_multitier.checkpoint convert from and to dumps of models."""

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
