"""RunConfig: when an Estimator saves, and which task of the cluster in TF_CONFIG this process is."""

from __future__ import annotations

import collections.abc
import copy
import json
import os
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import each_once

_SAVE_SECONDS = 600


class RunConfig:
    """Settings of an Estimator.

    Args:
      model_dir: directory of checkpoints and summaries.
      tf_random_seed: random seed of the graph.
      save_summary_steps, log_step_count_steps: number of steps between summaries, and between log lines with the speed. None: none.
      save_checkpoints_steps, save_checkpoints_secs: steps or seconds between checkpoints. Give one of them. Default: 600 seconds.
      session_config: a tf.ConfigProto.
      keep_checkpoint_max, keep_checkpoint_every_n_hours: see tf.train.Saver.
      device_fn: a device function for the model. None: tf.train.replica_device_setter if there are parameter servers.
      protocol: protocol of the servers of train_and_evaluate. Default: "grpc".
      train_distribute, eval_distribute: must be None.

    Raises:
      ValueError: both save_checkpoints_steps and save_checkpoints_secs are given, or TF_CONFIG does not name this task.
      NotImplementedError: a distribution strategy is given.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike | None = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = None,
        save_checkpoints_secs: float | None = None,
        session_config: typing.Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: None = None,
        device_fn: collections.abc.Callable | None = None,
        protocol: str | None = None,
        eval_distribute: None = None,
    ) -> None:
        if save_checkpoints_steps is not None and save_checkpoints_secs is not None:
            raise ValueError(
                "RunConfig: expected save_checkpoints_steps or save_checkpoints_secs, found both: "
                f"{save_checkpoints_steps} and {save_checkpoints_secs}"
            )
        for name, value in (
            ("train_distribute", train_distribute),
            ("eval_distribute", eval_distribute),
        ):
            if value is not None:
                raise NotImplementedError(
                    f"RunConfig: {name}: expected None, found {value!r}: workers and parameter servers come from TF_CONFIG"
                )
        if save_checkpoints_steps is None and save_checkpoints_secs is None:
            save_checkpoints_secs = _SAVE_SECONDS
        self.model_dir = model_dir
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = save_checkpoints_steps
        self.save_checkpoints_secs = save_checkpoints_secs
        self.session_config = session_config
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.device_fn = device_fn
        self.protocol = protocol
        text = os.environ.get("TF_CONFIG") or "{}"
        try:
            config = json.loads(text, object_pairs_hook=each_once)
        except ValueError as error:
            raise ValueError(
                f"RunConfig: TF_CONFIG: expected JSON, found an error: {error}"
            ) from None
        self._read_cluster(config)

    def _read_cluster(self, config):
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        self.cluster_spec = tf.train.ClusterSpec(cluster)
        self.task_type = task.get("type", "worker")
        self.task_id = int(task.get("index", 0))
        evaluates = self.task_type == "evaluator"
        if cluster and not evaluates and self.task_id >= len(cluster.get(self.task_type, ())):
            raise ValueError(
                f"RunConfig: TF_CONFIG: expected task {self.task_id} of '{self.task_type}' in its cluster, found {config}"
            )
        self.num_ps_replicas = len(cluster.get("ps", ()))
        self.num_worker_replicas = (
            len(cluster.get("worker", ())) + len(cluster.get("chief", ())) or 1
        )
        chief = "chief" if "chief" in cluster else "worker"
        self.is_chief = not cluster or (self.task_type, self.task_id) == (chief, 0)
        alone = not cluster or evaluates or self.num_worker_replicas + self.num_ps_replicas == 1
        self.master = "" if alone else f"grpc://{cluster[self.task_type][self.task_id]}"
        self.evaluation_master = ""

    def device(self) -> collections.abc.Callable | None:
        """The device function for building the model, or None."""
        if self.device_fn is not None or not self.num_ps_replicas or not self.master:
            return self.device_fn
        return tf.compat.v1.train.replica_device_setter(
            worker_device=f"/job:{self.task_type}/task:{self.task_id}",
            cluster=self.cluster_spec.as_dict(),
        )

    def replace(self, **changes: typing.Any) -> RunConfig:
        """A copy with changed settings.

        Raises:
          ValueError: an unknown setting.
        """
        made = copy.copy(self)
        for name, value in changes.items():
            if name not in vars(self):
                raise ValueError(
                    f"RunConfig.replace: expected one of {', '.join(sorted(vars(self)))}; found {name!r}"
                )
            setattr(made, name, value)
        if "save_checkpoints_steps" in changes and "save_checkpoints_secs" not in changes:
            made.save_checkpoints_secs = None
        if "save_checkpoints_secs" in changes and "save_checkpoints_steps" not in changes:
            made.save_checkpoints_steps = None
        return made
