"""Estimator: trains, evaluates, predicts and exports the model that a model_fn builds."""

from __future__ import annotations

import collections.abc
import inspect
import os
import tempfile
import time
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import boolean
from tf_multitier.deeprec.estimator import export as export_lib
from tf_multitier.deeprec.estimator.run_config import RunConfig
from tf_multitier.deeprec.estimator.spec import EstimatorSpec
from tf_multitier.deeprec.estimator.spec import ModeKeys

_v1 = tf.compat.v1


class Estimator:
    """A model with a directory of checkpoints. Each call builds a new graph and continues from the latest checkpoint.

    Args:
      model_fn: function that returns an EstimatorSpec. It is called with (features, labels) and those of the keyword arguments mode,
        params and config that it has.
      model_dir: directory of checkpoints and summaries. None: that of the config; if it has none, a new temporary directory.
      config: a RunConfig.
      params: a dict for model_fn and input_fn.
      warm_start_from: must be None.

    Raises:
      TypeError, NotImplementedError: a bad argument.
    """

    def __init__(
        self,
        model_fn: collections.abc.Callable,
        model_dir: str | os.PathLike | None = None,
        config: RunConfig | None = None,
        params: dict | None = None,
        warm_start_from: None = None,
    ) -> None:
        if not callable(model_fn):
            raise TypeError(f"Estimator: model_fn: expected a function, found {model_fn!r}")
        if warm_start_from is not None:
            raise NotImplementedError(
                f"Estimator: warm_start_from: expected None, found {warm_start_from!r}: in model_fn, use "
                "tf.train.init_from_checkpoint"
            )
        if config is not None and not isinstance(config, RunConfig):
            raise TypeError(
                f"Estimator: config: expected a tf.estimator.RunConfig, found {config!r}"
            )
        config = config or RunConfig()
        self.model_dir = os.fspath(model_dir or config.model_dir or tempfile.mkdtemp())
        self.config = config.replace(model_dir=self.model_dir)
        self.params = dict(params or {})
        self._model_fn = model_fn

    @property
    def model_fn(self) -> collections.abc.Callable:
        """The model_fn as a function of (features, labels, mode, config)."""
        return lambda features, labels, mode, config: _call(
            self._model_fn, features, labels, mode=mode, params=self.params, config=config
        )

    def latest_checkpoint(self) -> str | None:
        """Path of the latest checkpoint, or None."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """The names of the variables in the latest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self.model_dir)]

    def get_variable_value(self, name: str) -> np.ndarray:
        """The value of a variable in the latest checkpoint."""
        return tf.train.load_variable(self.model_dir, name)

    def eval_dir(self, name: str | None = None) -> str:
        """The directory for summaries of the evaluations with this name."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def train(
        self,
        input_fn: collections.abc.Callable,
        hooks: collections.abc.Sequence | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: collections.abc.Sequence | None = None,
    ) -> Estimator:
        """Trains.

        Args:
          input_fn: function that returns a Dataset of (features, labels), or the tensors of one batch. It may have the arguments
            mode, params and config.
          hooks: SessionRunHooks.
          steps: number of steps to train in this call.
          max_steps: global step at which to stop. Give at most one of steps and max_steps; without both, train to the end of the
            data.
          saving_listeners: CheckpointSaverListeners.

        Returns:
          The Estimator.

        Raises:
          ValueError: both steps and max_steps are given, or one is not positive.
        """
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise ValueError(f"Estimator.train: {name}: expected at least 1, found {value}")
        if steps is not None and max_steps is not None:
            raise ValueError(
                f"Estimator.train: expected steps or max_steps, found both: {steps} and {max_steps}"
            )
        if max_steps is not None and self._trained_steps() >= max_steps:
            tf.get_logger().info(
                "Estimator.train: skipped, because max_steps=%d was reached before.", max_steps
            )
            return self
        with tf.Graph().as_default(), _v1.device(self.config.device()):
            spec = self._build(input_fn, ModeKeys.TRAIN)
            every_hook = [*(hooks or ()), *spec.training_hooks, _v1.train.NanTensorHook(spec.loss)]
            if steps is not None or max_steps is not None:
                every_hook.append(_v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps))
            with self._training_session(spec, every_hook, saving_listeners) as session:
                while not session.should_stop():
                    session.run([spec.train_op, spec.loss])
        return self

    def _training_session(self, spec, hooks, saving_listeners):
        config = self.config
        if config.log_step_count_steps:
            hooks.append(
                _v1.train.LoggingTensorHook(
                    {"loss": spec.loss, "step": _v1.train.get_global_step()},
                    every_n_iter=config.log_step_count_steps,
                )
            )
        if spec.scaffold.saver is None:
            spec.scaffold._saver = _v1.train.Saver(  # pylint: disable=protected-access
                sharded=True,
                max_to_keep=config.keep_checkpoint_max,
                defer_build=True,
                save_relative_paths=True,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            )
        chief_hooks = list(spec.training_chief_hooks)
        saves = any(
            isinstance(hook, _v1.train.CheckpointSaverHook) for hook in [*hooks, *chief_hooks]
        )
        if not saves and (config.save_checkpoints_steps or config.save_checkpoints_secs):
            chief_hooks.append(
                _v1.train.CheckpointSaverHook(
                    self.model_dir,
                    config.save_checkpoints_secs,
                    config.save_checkpoints_steps,
                    scaffold=spec.scaffold,
                    listeners=saving_listeners,
                )
            )
        return _v1.train.MonitoredTrainingSession(
            config.master,
            config.is_chief,
            self.model_dir,
            spec.scaffold,
            hooks,
            chief_hooks,
            save_checkpoint_secs=None,
            save_checkpoint_steps=None,
            save_summaries_steps=config.save_summary_steps,
            save_summaries_secs=None,
            config=config.session_config,
            log_step_count_steps=config.log_step_count_steps,
        )

    def evaluate(
        self,
        input_fn: collections.abc.Callable,
        steps: int | None = None,
        hooks: collections.abc.Sequence | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, typing.Any]:
        """Evaluates the latest checkpoint, or the one at `checkpoint_path`.

        Args:
          input_fn, hooks: see `train`.
          steps: number of batches; None: to the end of the data.
          checkpoint_path: path of a checkpoint; None: the latest.
          name: part of the name of the directory for summaries.

        Returns:
          A dict: "loss" (the mean over the batches), "global_step" and the values of eval_metric_ops.

        Raises:
          ValueError: there is no checkpoint, or input_fn gave no batch.
        """
        with tf.Graph().as_default():
            spec = self._build(input_fn, ModeKeys.EVAL)
            metrics = {"loss": _v1.metrics.mean(spec.loss), **spec.eval_metric_ops}
            values = {
                "global_step": _v1.train.get_global_step(),
                **{key: value for key, (value, _) in metrics.items()},
            }
            updates = [update for _, update in metrics.values()]
            with self._session(
                spec, checkpoint_path, [*(hooks or ()), *spec.evaluation_hooks]
            ) as session:
                done = 0
                while (steps is None or done < steps) and not session.should_stop():
                    try:
                        session.run(updates)
                    except tf.errors.OutOfRangeError:
                        break
                    done += 1
                if not done:
                    raise ValueError(
                        "Estimator.evaluate: expected at least one batch of input_fn, found none"
                    )
                results = session.run(values)
        _write_summaries(self.eval_dir(name), results)
        return results

    def predict(
        self,
        input_fn: collections.abc.Callable,
        predict_keys: collections.abc.Sequence[str] | None = None,
        hooks: collections.abc.Sequence | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> collections.abc.Iterator:
        """Yields the predictions of the latest checkpoint.

        Args:
          predict_keys: names of the predictions; None: all.
          yield_single_examples: True: yield the predictions of one example at a time. False: of one batch at a time.
          others: see `evaluate`.
        """
        each = boolean("Estimator.predict: yield_single_examples", yield_single_examples)
        with tf.Graph().as_default():
            spec = self._build(input_fn, ModeKeys.PREDICT)
            predictions = spec.predictions
            if predict_keys is not None:
                if not isinstance(predictions, dict) or not set(predict_keys) <= set(predictions):
                    raise ValueError(
                        f"Estimator.predict: expected predictions {list(predict_keys)}, found {predictions!r}"
                    )
                predictions = {key: predictions[key] for key in predict_keys}
            with self._session(
                spec, checkpoint_path, [*(hooks or ()), *spec.prediction_hooks]
            ) as session:
                while not session.should_stop():
                    batch = session.run(predictions)
                    if not each:
                        yield batch
                    elif isinstance(batch, dict):
                        yield from (
                            {key: values[i] for key, values in batch.items()}
                            for i in range(len(next(iter(batch.values()))))
                        )
                    else:
                        yield from batch

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike,
        serving_input_receiver_fn: collections.abc.Callable[[], export_lib.ServingInputReceiver],
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
        save_incr_model: bool = False,
    ) -> bytes:
        """Writes a SavedModel of the latest checkpoint into a new directory below `export_dir_base`.

        Args:
          export_dir_base: parent directory.
          serving_input_receiver_fn: function that returns a tf.estimator.export.ServingInputReceiver.
          assets_extra: {path in the SavedModel's assets.extra: file to copy}.
          as_text: whether to write the graph as text.
          checkpoint_path: path of a checkpoint; None: the latest.
          experimental_mode: must be ModeKeys.PREDICT.
          save_incr_model: must be False.

        Returns:
          The directory, as bytes.
        """
        as_text = boolean("export_saved_model: as_text", as_text)
        if save_incr_model:
            raise NotImplementedError(
                "export_saved_model: save_incr_model is not supported: incremental checkpoints do not exist here; "
                "export the full model"
            )
        if experimental_mode != ModeKeys.PREDICT:
            raise NotImplementedError(
                f"export_saved_model: experimental_mode: expected '{ModeKeys.PREDICT}', found {experimental_mode!r}"
            )
        checkpoint_path = self._checkpoint(checkpoint_path)
        directory = _new_directory(export_dir_base)
        with tf.Graph().as_default():
            self._prepare_graph()
            receiver = serving_input_receiver_fn()
            spec = self._model(receiver.features, None, ModeKeys.PREDICT)
            outputs = spec.export_outputs or {
                "serving_default": export_lib.PredictOutput(spec.predictions)
            }
            if len(outputs) == 1:
                outputs = {**outputs, "serving_default": next(iter(outputs.values()))}
            signatures = {
                key: output.signature(receiver.receiver_tensors) for key, output in outputs.items()
            }
            for alternative, tensors in receiver.receiver_tensors_alternatives.items():
                signatures.update(
                    (f"{alternative}:{key}", output.signature(tensors))
                    for key, output in outputs.items()
                )
            with _v1.Session(config=self.config.session_config) as session:
                saver = spec.scaffold.saver or _v1.train.Saver(sharded=True)
                saver.restore(session, checkpoint_path)
                builder = _v1.saved_model.Builder(directory)
                builder.add_meta_graph_and_variables(
                    session,
                    [tf.saved_model.SERVING],
                    signatures,
                    saver=saver,
                    strip_default_attrs=True,
                    assets_collection=_v1.get_collection(_v1.GraphKeys.ASSET_FILEPATHS),
                    main_op=tf.group(_v1.local_variables_initializer(), _v1.tables_initializer()),
                )
                builder.save(as_text)
        for name, source in (assets_extra or {}).items():
            target = os.path.join(directory, "assets.extra", name)
            tf.io.gfile.makedirs(os.path.dirname(target))
            tf.io.gfile.copy(source, target)
        return directory.encode()

    export_savedmodel = export_saved_model

    # Graphs

    def _prepare_graph(self):
        _v1.set_random_seed(self.config.tf_random_seed)
        _v1.train.get_or_create_global_step()

    def _build(self, input_fn, mode):
        """The EstimatorSpec of the model over the input, in the default graph."""
        self._prepare_graph()
        given = _call(input_fn, mode=mode, params=self.params, config=self.config)
        if isinstance(given, tf.compat.v2.data.Dataset):
            iterator = _v1.data.make_initializable_iterator(given)
            _v1.add_to_collection(_v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            given = iterator.get_next()
        features, labels = (
            given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, None)
        )
        return self._model(features, labels, mode)

    def _model(self, features, labels, mode):
        spec = _call(
            self._model_fn, features, labels, mode=mode, params=self.params, config=self.config
        )
        if not isinstance(spec, EstimatorSpec) or spec.mode != mode:
            raise TypeError(
                f"Estimator: model_fn: expected a tf.estimator.EstimatorSpec of mode '{mode}', found "
                f"{getattr(spec, 'mode', spec)!r}"
            )
        return spec

    # Checkpoints

    def _trained_steps(self):
        path = self.latest_checkpoint()
        return 0 if path is None else int(tf.train.load_variable(path, "global_step"))

    def _checkpoint(self, path):
        path = path or self.latest_checkpoint()
        if path is None:
            raise ValueError(
                f"Estimator: expected a checkpoint in {self.model_dir}, found none: train first"
            )
        return path

    def _session(self, spec, checkpoint_path, hooks):
        creator = _v1.train.ChiefSessionCreator(
            spec.scaffold,
            self.config.evaluation_master,
            self.config.session_config,
            checkpoint_filename_with_path=self._checkpoint(checkpoint_path),
        )
        return _v1.train.MonitoredSession(creator, hooks)


def _call(function, *arguments, **by_name):
    """Calls a function with those of the arguments `by_name` that it has. Omits `labels` if it is None and the function lacks it."""
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if len(arguments) == 2 and "labels" not in parameters and not takes_all:
        if arguments[1] is not None:
            raise ValueError(
                "Estimator: model_fn: expected an argument labels, found none: input_fn returns labels"
            )
        arguments = arguments[:1]
    elif len(arguments) == 2 and "labels" in parameters:
        arguments, by_name = arguments[:1], {**by_name, "labels": arguments[1]}
    return function(
        *arguments,
        **{name: value for name, value in by_name.items() if takes_all or name in parameters},
    )


def _new_directory(base):
    """An unused path below `base`, named after the time in seconds."""
    name = int(time.time())
    while tf.io.gfile.exists(os.path.join(os.fspath(base), str(name))):
        name += 1
    return os.path.join(os.fspath(base), str(name))


def _write_summaries(directory, results):
    """Writes the numbers among `results` as scalar summaries."""
    values = [
        _v1.Summary.Value(tag=name, simple_value=float(value))
        for name, value in results.items()
        if name != "global_step" and getattr(value, "ndim", 0) == 0 and not isinstance(value, bytes)
    ]
    with tf.Graph().as_default():  # a FileWriter refuses to be used eagerly
        writer = _v1.summary.FileWriterCache.get(directory)
        writer.add_summary(_v1.Summary(value=values), results["global_step"])
        writer.flush()
