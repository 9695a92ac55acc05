"""ConfigProto with DeepRec's fields: which are accepted, which are refused, and which TensorFlow receives."""

import copy

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as tf_session

from tf_multitier.deeprec import session_config
from tf_multitier.deeprec.session_config import (
    ConfigProto,
    GPUOptions,
    GraphOptions,
    OptimizerOptions,
    of_tensorflow,
)


@pytest.fixture
def logged(monkeypatch):
    """The logged warnings, with no field named before."""
    found = []
    monkeypatch.setattr(session_config, "_named", set())
    monkeypatch.setattr(tf.compat.v1.logging, "warning", found.append)
    return found


def test_switches_of_speed_are_named_once(logged):
    config = ConfigProto()
    options = config.graph_options.optimizer_options
    options.do_op_fusion = options.do_smart_stage = options.do_smart_stage_gpu = (
        options.stage_subgraph_on_cpu
    ) = True
    options.do_async_embedding = True
    options.async_embedding_options.threads_num = np.int64(4)
    config.executor_policy = session_config.ExecutorPolicy.USE_INLINE_EXECUTOR
    config.session_stage_subgraph_thread_pool.add(inter_op_threads_num=2, global_name="stage")
    of_tensorflow(config)
    of_tensorflow(copy.deepcopy(config))
    [line] = logged
    for name in (
        "do_op_fusion",
        "do_smart_stage,",
        "do_smart_stage_gpu",
        "stage_subgraph_on_cpu",
        "do_async_embedding",
        "executor_policy",
        "async_embedding_options",
        "session_stage_subgraph_thread_pool",
    ):
        assert name in line
    assert "intra_op_parallelism_threads" not in line


def test_fields_of_tensorflow_arrive(logged):
    config = ConfigProto(
        allow_soft_placement=True,
        device_count={"CPU": 2},
        gpu_options=GPUOptions(visible_device_list="0"),
        graph_options=GraphOptions(
            optimizer_options=OptimizerOptions(do_op_fusion=True, opt_level=-1)
        ),
    )
    config.device_filters.append("/job:ps")
    config.inter_op_parallelism_threads = 3
    found = of_tensorflow(config)
    assert found == config_pb2.ConfigProto(
        allow_soft_placement=True,
        device_count={"CPU": 2},
        gpu_options=config_pb2.GPUOptions(visible_device_list="0"),
        graph_options=config_pb2.GraphOptions(
            optimizer_options=config_pb2.OptimizerOptions(opt_level=-1)
        ),
        device_filters=["/job:ps"],
        inter_op_parallelism_threads=3,
    )
    assert config.graph_options.optimizer_options.do_op_fusion and len(logged) == 1


def test_a_field_that_neither_has_is_refused_by_name():
    with pytest.raises(AttributeError, match="do_op_fission"):
        ConfigProto().graph_options.optimizer_options.do_op_fission = True


def test_what_changes_results_is_refused_where_a_session_is_made(graph, logged, monkeypatch):
    session = tf_session.BaseSession
    monkeypatch.setattr(session, "__init__", session_config._session_init(session.__init__))
    config = ConfigProto()
    for number in (0, 1):
        config.graph_options.optimizer_options.micro_batch_num = number
        with tf.compat.v1.Session(config=config) as session:
            assert session.run(tf.constant(7)) == 7
    config.graph_options.optimizer_options.micro_batch_num = 4
    with pytest.raises(
        NotImplementedError,
        match="micro_batch_num=4 is not supported.*multiply the batch size by 4",
    ):
        tf.compat.v1.Session(config=config)


def test_configs_of_tensorflow_and_other_values_pass_as_they_are():
    config = config_pb2.ConfigProto(log_device_placement=True)
    assert of_tensorflow(config) is config and of_tensorflow(None) is None


@pytest.mark.parametrize(
    "name, number",
    [("USE_NORMAL_EXECUTOR", 0), ("USE_COST_MODEL_EXECUTOR", 1), ("USE_INLINE_EXECUTOR", 2)],
)
def test_executor_policies_have_deeprecs_numbers(name, number):
    assert session_config.ExecutorPolicy[name] == number
