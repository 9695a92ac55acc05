"""Text is no bool: "no" would be true. Whatever takes True or False refuses other values by name."""

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier import checkpoint
from tf_multitier import data
from tf_multitier import engine
from tf_multitier import nn
from tf_multitier import train
from worlds import needs_eager

kt = pytest.importorskip("tf_multitier.keras")
of_rows = tf_multitier.optimizers
pytestmark = needs_eager


def table():
    return engine.Table(2)


def variable():
    return tf_multitier.get_embedding_variable("rows", 2)


@pytest.mark.parametrize(
    "name, call",
    [
        ("amsgrad", lambda no: of_rows.Adam(amsgrad=no)),
        ("amsgrad", lambda no: of_rows.AdamW(amsgrad=no)),
        ("catch_up", lambda no: of_rows.Adam(catch_up=no)),
        ("nesterov", lambda no: of_rows.Momentum(nesterov=no)),
        ("centered", lambda no: of_rows.RMSprop(centered=no)),
        ("catch_up", lambda no: kt.with_rows("adam", catch_up=no)),
        ("mask_zero", lambda no: kt.Embedding(2, mask_zero=no)),
        ("training", lambda no: kt.Embedding(2)(np.array([1]), training=no)),
        ("concat", lambda no: kt.GroupEmbedding({"a": kt.Embedding(2)}, concat=no)),
        ("return_scores", lambda no: kt.Retrieval(kt.Embedding(2), return_scores=no)),
        ("per_table", lambda no: kt.StatisticsCallback("/nowhere", per_table=no)),
        ("trainable", lambda no: tf_multitier.get_embedding_variable("rows", 2, trainable=no)),
        ("rows", lambda no: variable().pop_dropped(rows=no)),
        ("check_finite", lambda no: variable().upsert([1], [[1.0, 2.0]], check_finite=no)),
        ("progress", lambda no: list(variable().rows(progress=no))),
        (
            "is_sequence",
            lambda no: nn.group_embedding_lookup_sparse(
                [variable()], [tf.ragged.constant([[1]])], "sum", is_sequence=no
            ),
        ),
        ("per_variable", lambda no: train.StatisticsHook("/nowhere", per_variable=no)),
        ("apply_sparse_rmsprop", lambda no: train.AdamAsyncOptimizer(apply_sparse_rmsprop=no)),
        ("use_locking", lambda no: train.RowwiseAdagradOptimizer(0.1, use_locking=no)),
        ("all_columns", lambda no: table().export(all_columns=no)),
        ("train", lambda no: engine.Group([table()], [[1]], train=no)),
        ("concat", lambda no: engine.Group([table()], [[1]], concat=no)),
        ("latest", lambda no: checkpoint.Writer("/nowhere/model", latest=no)),
        ("drop_remainder", lambda no: data.ParquetDataset("/nowhere", drop_remainder=no)),
    ],
)
def test_text_is_no_bool(name, call):
    with pytest.raises(
        (TypeError, ValueError), match=f"{name}: expected True or False, found 'no'"
    ):
        call("no")


def test_bools_of_numpy_are_bools():
    assert of_rows.Adam(amsgrad=np.bool_(True)).amsgrad is True
    assert kt.Embedding(2, mask_zero=np.bool_(False)).mask_zero is False


@pytest.mark.parametrize("number", [0, 1])
def test_0_and_1_are_bools(number):
    assert of_rows.Adam(amsgrad=number).amsgrad is bool(number)
    with pytest.raises(TypeError, match="found 2"):
        of_rows.Adam(amsgrad=2)


class Told(kt.Embedding):
    def _values(self, inputs, training):
        self.told = training
        return super()._values(inputs, training)


@pytest.mark.parametrize("kind", [bool, int, np.bool_, tf.constant])
def test_a_layer_takes_what_keras_makes_of_bools(kind):
    layer = Told(2)
    for training in (False, True):
        layer(np.array([1, 2]), training=kind(training))
        assert layer.told is training


def test_several_bools_are_no_bool_of_a_layer():
    for training in ([True, False], np.array([True, False]), tf.constant([], tf.bool)):
        with pytest.raises(
            (TypeError, ValueError), match="training: expected True or False, found"
        ):
            Told(2)(np.array([1, 2]), training=training)
