"""CollectiveStrategy in a world of one."""

import os

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import estimator as estimator_lib
from tf_multitier.deeprec.collective import CollectiveStrategy
from variable_util import make

v1 = tf.compat.v1
estimator = estimator_lib.module()


@pytest.mark.parametrize("strategy", [None, "sok", "hb"])
def test_a_program_alone_is_rank_0_of_1(graph, strategy, monkeypatch):
    monkeypatch.delenv("COLLECTIVE_STRATEGY", raising=False)
    if strategy:
        monkeypatch.setenv("COLLECTIVE_STRATEGY", strategy)
    strategy = CollectiveStrategy()
    assert (strategy.world_size(), strategy.rank(), strategy.world_size, strategy.rank) == (
        1,
        0,
        1,
        0,
    )
    with strategy.scope(), strategy.embedding_scope():
        table = v1.get_variable(
            "t", [4, 2], partitioner=v1.fixed_size_partitioner(strategy.world_size)
        )
    assert len(list(table)) == 1


@pytest.mark.parametrize(
    "variable", ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"]
)
def test_several_processes_are_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    with pytest.raises(ValueError, match=f"{variable}=2 says .* python3 -m tf_multitier.launch"):
        CollectiveStrategy()


def test_an_unknown_strategy_is_refused(monkeypatch):
    monkeypatch.setenv("COLLECTIVE_STRATEGY", "nccl")
    with pytest.raises(ValueError, match="expected sok or hb, found 'nccl'"):
        CollectiveStrategy()


def test_an_exported_model_has_the_rows_of_the_checkpoint(tmp_path):
    strategy = CollectiveStrategy()

    def signature():
        ids = v1.placeholder(tf.int64, [None], name="ids")
        return v1.saved_model.predict_signature_def(
            {"ids": ids}, {"rows": tf.nn.embedding_lookup(make(dim=2), ids)}
        )

    with tf.Graph().as_default():
        rows = tf.nn.embedding_lookup(make(dim=2), tf.constant([3, 5], tf.int64))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(rows))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step)
            expected = session.run(rows)
            checkpoint = v1.train.Saver().save(session, str(tmp_path / "model"))
    (tmp_path / "vocabulary").write_text("words")
    for given in (checkpoint, str(tmp_path)):
        target = strategy.export_saved_model(
            str(tmp_path / "exported"),
            given,
            signature,
            {"extra/words": str(tmp_path / "vocabulary")},
        )
        assert os.path.isfile(os.path.join(target, "assets.extra/extra/words"))
        with tf.Graph().as_default(), v1.Session() as session:
            v1.saved_model.load(session, ["serve"], target)
            found = session.run(_output(session), {"ids:0": [3, 5]})
        np.testing.assert_array_equal(found, expected)


def _output(session):
    [op] = [o for o in session.graph.get_operations() if o.type == "MultitierLookup"]
    return op.outputs[0]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("x", None, lambda: None), "expected a checkpoint, found None"),
        (("x", "/no/such", lambda: None), "expected a checkpoint"),
        (("x", "/no/such"), "signature_def_fn: expected a function"),
    ],
)
def test_what_cannot_be_exported_is_refused(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        CollectiveStrategy().export_saved_model(*arguments)


def _input(repeat=None):
    ids = np.array([3, -7, 3, 11, 5, 3, -7, 2], np.int64)
    data = {"id": ids, "other": ids + 1}, (ids % 2).astype(np.float32)
    return lambda: tf.data.Dataset.from_tensor_slices(data).batch(4).repeat(repeat)


def _model(features, labels, mode, params):
    with tf_multitier.feature_column.group_embedding_column_scope(name="all"):
        ids = [
            tf_multitier.feature_column.categorical_column_with_embedding(name, tf.int64)
            for name in ("id", "other")
        ]
        columns = [tf_multitier.feature_column.embedding_column(column, 4) for column in ids]
    logits = tf.reduce_sum(v1.feature_column.input_layer(features, columns), 1)
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, {"score": tf.sigmoid(logits)})
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    accuracy = v1.metrics.accuracy(labels, logits > 0)
    step = v1.train.AdagradOptimizer(params["rate"]).minimize(loss, v1.train.get_global_step())
    return estimator.EstimatorSpec(
        mode, loss=loss, train_op=step, eval_metric_ops={"accuracy": accuracy}
    )


def test_its_estimator_trains_evaluates_continues_and_exports(tmp_path):
    strategy = CollectiveStrategy()
    config = estimator.RunConfig(
        tf_random_seed=1, save_checkpoints_steps=20, log_step_count_steps=None
    )
    with strategy.scope(), strategy.embedding_scope():
        for steps in (40, 60):
            model = strategy.estimator(
                _model, model_dir=str(tmp_path), config=config, params={"rate": 0.5}
            )
            train = estimator.TrainSpec(_input(), max_steps=steps)
            model.train_and_evaluate(
                train,
                estimator.EvalSpec(_input(1), steps=None, start_delay_secs=0, throttle_secs=0),
            )
            found = model.evaluate(_input(1))
            assert found["global_step"] == steps
    assert found["accuracy"] == 1.0

    def signature():
        features = {name: v1.placeholder(tf.int64, [None], name=name) for name in ("id", "other")}
        scores = _model(features, None, estimator.ModeKeys.PREDICT, None).predictions
        return v1.saved_model.predict_signature_def(features, scores)

    target = strategy.export_saved_model(str(tmp_path / "exported"), str(tmp_path), signature)
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], target)
        score = loaded.signature_def["serving_default"].outputs["score"].name
        odd, even = session.run(score, {"id:0": [3, 2], "other:0": [4, 3]})
        assert odd > 0.5 > even
