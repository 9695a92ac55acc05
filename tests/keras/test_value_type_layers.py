"""The types of rows of Keras layers: from the policy, the option, and archives."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.keras import Embedding
from tf_multitier.keras import GroupEmbedding


def option(value_dtype):
    return tf_multitier.EmbeddingVariableOption(value_dtype=value_dtype)


def of_16_bits(value_dtype):
    """A layer with two tables, of which the second has this type."""
    layer = GroupEmbedding(
        {
            "x": Embedding(4, combiner="sum"),
            "y": Embedding(4, combiner="sum", ev_option=option(value_dtype)),
        },
        optimizer=tf_multitier.optimizers.SGD(0.1),
    )
    model = keras.Sequential([layer])
    model({name: tf.constant([[1, 2]], tf.int64) for name in "xy"})
    return model


@pytest.mark.parametrize(
    "policy, given, rows",
    [
        ("bfloat16", None, tf.bfloat16),
        ("bfloat16", "float32", tf.float32),
        ("float32", "bfloat16", tf.bfloat16),
    ],
)
def test_the_option_decides_and_else_the_policy(policy, given, rows):
    layer = Embedding(
        4, dtype=policy, ev_option=option(given), optimizer=tf_multitier.optimizers.SGD(0.1)
    )
    layer(tf.constant([1]))
    assert [table.dtype for table in layer.tables] == [rows]


def test_a_feature_with_a_dtype_of_its_own_is_refused():
    with pytest.raises(
        ValueError, match="feature 'x': expected no dtype of its own, found bfloat16"
    ):
        GroupEmbedding({"x": Embedding(4, combiner="sum", dtype="bfloat16")})


def test_an_archive_of_another_type_changes_no_table(tmp_path):
    saved, path = of_16_bits("float32"), str(tmp_path / "a.weights.h5")
    with tf.GradientTape() as tape:
        loss = tf.add_n(
            [
                tf.reduce_sum(v)
                for v in saved({n: tf.constant([[1, 2]], tf.int64) for n in "xy"}).values()
            ]
        )
    tables = saved.layers[0].tables
    tf_multitier.optimizers.SGD(0.1).apply_gradients(zip(tape.gradient(loss, tables), tables))
    saved.save_weights(path)
    model = of_16_bits("bfloat16")
    with pytest.raises(
        ValueError, match="expected values of bfloat16, found float32: .*convert_on_restore"
    ):
        model.load_weights(path)
    assert [int(table.total_count()) for table in model.layers[0].tables] == [0, 0]
    with tf_multitier.train.convert_on_restore():
        model.load_weights(path)
    assert [int(table.total_count()) for table in model.layers[0].tables] == [2, 2]
    np.testing.assert_array_equal(model.layers[0].tables[0].export()[1], tables[0].export()[1])


def test_a_layer_that_is_built_after_the_restore_converts_where_it_is_built(tmp_path):
    def model_of(dtype):
        return keras.Sequential(
            [Embedding(4, dtype=dtype, name="a", optimizer=tf_multitier.optimizers.SGD(0.1))]
        )

    ids = tf.constant([[1, 2]], tf.int64)
    saved = model_of("float32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(saved(ids) ** 2)
    tables = saved.layers[0].tables
    tf_multitier.optimizers.SGD(0.1).apply_gradients(zip(tape.gradient(loss, tables), tables))
    prefix = tf.train.Checkpoint(model=saved).save(str(tmp_path / "ckpt"))

    refused = model_of("bfloat16")
    with tf_multitier.train.convert_on_restore():
        tf.train.Checkpoint(model=refused).restore(prefix)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected values of bfloat16"):
        refused(ids)

    model = model_of("bfloat16")
    tf.train.Checkpoint(model=model).restore(prefix)
    with tf_multitier.train.convert_on_restore():
        found = model(ids)
    np.testing.assert_array_equal(found, tf.cast(saved(ids), tf.bfloat16))
