"""tf.estimator of DeepRec programs: train, evaluate, predict and export with embedding variables, and go on from checkpoints."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

import tf_multitier
from tf_multitier.deeprec import estimator as estimator_lib

v1 = tf.compat.v1
est = estimator_lib.module()
IDS = np.array([3, -7, 3, 11, 5, 3, -7, 2], np.int64)
LABELS = (IDS % 2).astype(np.float32)


def input_fn(batch=4, repeat=None):
    return lambda: (
        tf.data.Dataset.from_tensor_slices(({"id": IDS}, LABELS)).batch(batch).repeat(repeat)
    )


def model_fn(features, labels, mode, params):
    table = tf_multitier.get_embedding_variable("table", 4)
    logits = tf.reduce_sum(tf.nn.embedding_lookup(table, features["id"]), 1)
    if mode == est.ModeKeys.PREDICT:
        return est.EstimatorSpec(mode, {"score": tf.sigmoid(logits)})
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    if mode == est.ModeKeys.EVAL:
        return est.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": v1.metrics.accuracy(labels, logits > 0)}
        )
    step = v1.train.AdagradOptimizer(params["rate"]).minimize(loss, v1.train.get_global_step())
    return est.EstimatorSpec(mode, loss=loss, train_op=step)


def make(directory, **config):
    config = est.RunConfig(
        tf_random_seed=1, save_checkpoints_steps=50, log_step_count_steps=None, **config
    )
    return est.Estimator(model_fn, str(directory), config, params={"rate": 0.5})


def test_it_learns_and_a_second_object_continues(tmp_path):
    before = make(tmp_path).train(input_fn(), steps=1).evaluate(input_fn(repeat=1))
    assert before["global_step"] == 1 and set(before) == {"loss", "global_step", "accuracy"}
    after = make(tmp_path).train(input_fn(), max_steps=60).evaluate(input_fn(repeat=1))
    assert (
        after["global_step"] == 60
        and after["accuracy"] == 1.0
        and after["loss"] < 0.5 * before["loss"]
    )
    assert (
        make(tmp_path).train(input_fn(), max_steps=60).evaluate(input_fn(), steps=1)["global_step"]
        == 60
    )
    assert "global_step" in make(tmp_path).get_variable_names() and os.path.isdir(
        make(tmp_path).eval_dir()
    )


def test_a_loss_that_an_earlier_call_of_the_model_built_is_refused(tmp_path):
    kept = {}

    def keeping(features, labels, mode, params):
        if mode == est.ModeKeys.TRAIN:
            spec = model_fn(features, labels, mode, params)
            kept["loss"] = spec.loss
            return spec
        return est.EstimatorSpec(mode, loss=kept["loss"])

    estimator = est.Estimator(keeping, str(tmp_path), params={"rate": 0.5})
    estimator.train(input_fn(), steps=1)
    with pytest.raises(
        ValueError,
        match="loss: expected a tensor .*, found '.*' of another graph: model_fn .* in each call",
    ):
        estimator.evaluate(input_fn(repeat=1))


def test_training_ends_with_the_data(tmp_path):
    assert make(tmp_path).train(input_fn(repeat=3)).get_variable_value("global_step") == 6


def test_the_loss_is_the_mean_over_the_batches(tmp_path):
    trained = make(tmp_path).train(input_fn(), steps=5)
    whole, parts = trained.evaluate(input_fn(8, 1)), trained.evaluate(input_fn(4, 1))
    assert np.isclose(whole["loss"], parts["loss"], rtol=1e-6)


def test_predictions_come_one_by_one_or_in_batches(tmp_path):
    trained = make(tmp_path).train(input_fn(), steps=60)
    scores = [
        prediction["score"]
        for prediction in trained.predict(lambda: input_fn(repeat=1)().map(lambda f, _: f))
    ]
    assert len(scores) == 8 and ((np.array(scores) > 0.5) == LABELS.astype(bool)).all()
    batches = list(trained.predict(input_fn(repeat=1), ["score"], yield_single_examples=False))
    assert [len(batch["score"]) for batch in batches] == [4, 4]
    with pytest.raises(ValueError, match=r"expected predictions \['other'\]"):
        next(trained.predict(input_fn(), ["other"]))


def test_a_saved_model_serves_what_was_trained(tmp_path):
    trained = make(tmp_path / "model").train(input_fn(), steps=60)

    def receive():
        inputs = {"id": v1.placeholder(tf.int64, [None])}
        return est.export.ServingInputReceiver(inputs, inputs)

    directory = trained.export_saved_model(str(tmp_path / "export"), receive)
    expected = [prediction["score"] for prediction in trained.predict(input_fn(repeat=1))]
    with tf.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], directory.decode()).signature_def[
            "serving_default"
        ]
        scores = session.run(signature.outputs["score"].name, {signature.inputs["id"].name: IDS})
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_a_program_that_trained_in_its_own_session_exports(tmp_path):
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        features, labels = v1.data.make_one_shot_iterator(input_fn()()).get_next()
        spec = model_fn(features, labels, est.ModeKeys.TRAIN, {"rate": 0.5})
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path / "model"), save_checkpoint_steps=10
        ) as session:
            while session.run([spec.train_op, step])[1] < 9:
                pass
    with tf.Graph().as_default():
        receiver = est.export.build_raw_serving_input_receiver_fn(
            {"id": v1.placeholder(tf.int64, [None])}
        )
    assert tf.io.gfile.exists(
        make(tmp_path / "model").export_saved_model(str(tmp_path / "export"), receiver).decode()
    )


def test_train_and_evaluate_gives_the_last_results(tmp_path):
    train = est.TrainSpec(input_fn(), max_steps=60)
    results, exports = est.train_and_evaluate(
        make(tmp_path), train, est.EvalSpec(input_fn(repeat=1), steps=None, throttle_secs=0)
    )
    assert results["global_step"] == 60 and results["accuracy"] == 1.0 and exports == []
    steps = [
        event.step
        for name in os.listdir(tmp_path / "eval")
        for event in v1.train.summary_iterator(str(tmp_path / "eval" / name))
        if event.HasField("summary")
    ]
    assert steps[-1] == 60 and len(steps) > 1  # checkpoints on the way were evaluated, too


def test_parameter_servers_come_from_tf_config(monkeypatch):
    cluster = {
        "ps": ["localhost:1"],
        "chief": ["localhost:2"],
        "worker": ["localhost:3", "localhost:4"],
    }
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    )
    config = est.RunConfig()
    assert (config.master, config.is_chief, config.num_ps_replicas, config.num_worker_replicas) == (
        "grpc://localhost:4",
        False,
        1,
        3,
    )
    with tf.Graph().as_default(), v1.device(config.device()):
        assert v1.get_variable("v", [1]).device == "/job:ps/task:0"
        assert tf.constant(1).device.startswith("/job:worker/task:1")


def test_wide_and_deep_learns(tmp_path):
    columns = tf.feature_column
    key = columns.categorical_column_with_hash_bucket("id", 100, tf.int64)
    model = est.DNNLinearCombinedClassifier(
        config=est.RunConfig(save_checkpoints_steps=50, tf_random_seed=1),
        model_dir=str(tmp_path),
        linear_feature_columns=[key],
        linear_optimizer=lambda: v1.train.FtrlOptimizer(0.2),
        linear_sparse_combiner="sum",
        dnn_feature_columns=[columns.embedding_column(key, 4)],
        dnn_optimizer=lambda: v1.train.AdagradOptimizer(0.05),
        dnn_dropout=0.1,
        dnn_hidden_units=[8, 4],
        dnn_dtype=tf.bfloat16,
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
    )
    results = model.train(input_fn(), steps=100).evaluate(input_fn(repeat=1))
    assert results["accuracy"] == 1.0 and results["auc"] > 0.99 and results["loss"] < 0.3
    assert (
        results["label/mean"] == LABELS.mean()
        and "dnn/hiddenlayer_0/kernel" in model.get_variable_names()
    )


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: est.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
            ValueError,
            "found both: 1 and 1",
        ),
        (lambda: est.RunConfig(train_distribute=object()), NotImplementedError, "train_distribute"),
        (
            lambda: est.EstimatorSpec("train", loss=1),
            ValueError,
            "train_op: expected a value in mode 'train', found None",
        ),
        (lambda: est.EstimatorSpec("test"), ValueError, "mode: expected one of"),
        (
            lambda: est.Estimator(model_fn, warm_start_from="dir"),
            NotImplementedError,
            "warm_start_from: expected None",
        ),
        (lambda: est.Estimator(3), TypeError, "model_fn: expected a function"),
        (
            lambda: est.BoostedTreesClassifier,
            NotImplementedError,
            "tensorflow.estimator.BoostedTreesClassifier is not supported",
        ),
        (
            lambda: est.DNNLinearCombinedClassifier(n_classes=3),
            NotImplementedError,
            "n_classes: expected 2, found 3",
        ),
    ],
)
def test_what_is_not_supported_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_a_checkpoint_evaluation_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a checkpoint in .*, found none"):
        make(tmp_path).evaluate(input_fn(repeat=1))


def test_an_export_of_increments_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="export the full model"):
        make(tmp_path).export_saved_model(str(tmp_path), None, save_incr_model=True)
