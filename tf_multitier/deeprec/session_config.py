"""`tf.ConfigProto` with the fields that DeepRec adds to TensorFlow's.

    config = tf.ConfigProto()
    config.graph_options.optimizer_options.do_op_fusion = True  # a performance switch: no effect, and logged once
    config.graph_options.optimizer_options.micro_batch_num = 4  # changes results: refused when a Session is made
    config.executor_policy = tf.ExecutorPolicy.USE_INLINE_EXECUTOR
    tf.Session(config=config)

Fields cannot be added to an existing protobuf class. So the classes here are made from a copy of TensorFlow's `config.proto` with
`_FIELDS` added. `of_tensorflow(config)` converts a message to TensorFlow's own class, for Sessions and servers.
"""

import enum
import functools

import tensorflow as tf
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

from tf_multitier._src.tensorflow.internals import BaseSession
from tf_multitier._src.tensorflow.internals import config_pb2
from tf_multitier._src.tensorflow.internals import eager_context
from tf_multitier._src.tensorflow.internals import rewriter_config_pb2

CONFIG = ("ConfigProto", "ExecutorPolicy", "GPUOptions", "GraphOptions", "OptimizerOptions")


class ExecutorPolicy(enum.IntEnum):
    """DeepRec's executors. The choice has no effect, because TensorFlow 2.21 has one executor."""

    USE_NORMAL_EXECUTOR = 0
    USE_COST_MODEL_EXECUTOR = 1
    USE_INLINE_EXECUTOR = 2


# DeepRec's messages and the fields that it adds: {message: {field: type}}. A list means a repeated field. A type that begins with a
# capital letter is a message.
_FIELDS = {
    "AsyncEmbeddingOptions": {
        "threads_num": "int32",
        "capacity": "int32",
        "use_stage_subgraph_thread_pool": "bool",
        "stage_subgraph_thread_pool_id": "int32",
    },
    "CudaGraphModeOptions": {
        "output_names": ["string"],
        "batch_size": "int32",
        "allow_fallback": "bool",
        "has_invalid_graph": "bool",
    },
    "StageSubGraphThreadPoolOptionsProto": {
        "inter_op_threads_num": "int32",
        "intra_op_threads_num": "int32",
        "global_name": "string",
    },
    "GPUOptions": {"cuda_graph_mode_compatible": "bool", "cuda_graph_enable_jit": "bool"},
    "OptimizerOptions": {
        "do_op_fusion": "bool",
        "micro_batch_num": "int32",
        "do_smart_stage": "bool",
        "do_smart_stage_gpu": "bool",
        "do_async_embedding": "bool",
        "async_embedding_options": "AsyncEmbeddingOptions",
        "stage_subgraph_on_cpu": "bool",
        "stage_multi_stream": "bool",
        "device_placement_optimization": "bool",
        "embedding_layer_device_placement_optimization": "bool",
    },
    "MultiStreamOptions": {"multi_stream_num": "int32"},
    "RewriterConfig": {"use_multi_stream": "int32", "multi_stream_opts": "MultiStreamOptions"},
    "ConfigProto": {
        "tensor_fuse": "bool",
        "run_graph_mode": "bool",
        "run_graph_mode_lite": "bool",
        "executor_policy": "int32",
        "use_per_session_stream": "bool",
        "per_session_devices": ["string"],
        "cuda_graph_mode_options": "CudaGraphModeOptions",
        "session_stage_subgraph_thread_pool": ["StageSubGraphThreadPoolOptionsProto"],
    },
}

# For each message that TensorFlow lacks, the file that gets it.
_NEW = {
    **dict.fromkeys(
        ("AsyncEmbeddingOptions", "CudaGraphModeOptions", "StageSubGraphThreadPoolOptionsProto"),
        config_pb2.DESCRIPTOR.name,
    ),
    "MultiStreamOptions": rewriter_config_pb2.DESCRIPTOR.name,
}

_FIRST_NUMBER = 20000  # of the added fields: TensorFlow's own stay below

_Field = descriptor_pb2.FieldDescriptorProto


def _add_fields(message, fields):
    for number, (name, kind) in enumerate(fields.items(), _FIRST_NUMBER):
        field = message.field.add(name=name, number=number)
        field.label = _Field.LABEL_REPEATED if isinstance(kind, list) else _Field.LABEL_OPTIONAL
        kind = kind[0] if isinstance(kind, list) else kind
        if kind[0].isupper():
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".tensorflow.{kind}"
        else:
            field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")


def _copy_with_fields(file, pool, copied):
    """Adds `file`, and the files that it imports, to `pool`, with DeepRec's fields."""
    if file.name in copied:
        return
    copied.add(file.name)
    for imported in file.dependencies:
        _copy_with_fields(imported, pool, copied)
    made = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(made)
    there = {message.name: message for message in made.message_type}
    for name, fields in _FIELDS.items():
        if name in there:
            _add_fields(there[name], fields)
        elif file.name == _NEW.get(name):
            _add_fields(made.message_type.add(name=name), fields)
    pool.Add(made)


_pool = descriptor_pool.DescriptorPool()
_copy_with_fields(config_pb2.DESCRIPTOR, _pool, set())


def _message(name):
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"tensorflow.{name}"))


ConfigProto, GPUOptions, GraphOptions, OptimizerOptions = map(
    _message, ("ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions")
)


def _take_deeprecs(message, prefix=""):
    """Clears DeepRec's fields of `message`. Returns those that were set: {path such as graph_options.rewrite_options.x: value}."""
    found = {}
    for field, value in message.ListFields():
        if field.number >= _FIRST_NUMBER:
            found[prefix + field.name] = value
            message.ClearField(field.name)
        elif field.message_type is not None and field.message_type.name in (
            "GPUOptions",
            "GraphOptions",
            "OptimizerOptions",
            "RewriterConfig",
        ):
            found.update(_take_deeprecs(value, f"{prefix}{field.name}."))
    return found


_named: set[str] = set()


def of_tensorflow(config):
    """Converts a `ConfigProto` of this module to a `tf.compat.v1.ConfigProto`. Logs the name of each of DeepRec's fields once.

    Args:
      config: a `ConfigProto` of this module. An object of another type is returned unchanged.

    Raises:
      NotImplementedError: micro_batch_num is above 1.
    """
    if not isinstance(config, ConfigProto):
        return config
    stock = ConfigProto()
    stock.CopyFrom(config)
    given = _take_deeprecs(stock)
    micro_batches = given.pop("graph_options.optimizer_options.micro_batch_num", 0)
    if micro_batches > 1:
        raise NotImplementedError(
            f"ConfigProto: micro_batch_num={micro_batches} is not supported; it trains {micro_batches} batches in one step, so multiply "
            f"the batch size by {micro_batches} and leave micro_batch_num at 1"
        )
    new = sorted(set(given) - _named)
    if new:
        _named.update(new)
        tf.compat.v1.logging.warning(
            "tf_multitier.deeprec: these fields of ConfigProto have no effect on this TensorFlow (in DeepRec they are "
            f"performance switches): {', '.join(new)}"
        )
    return config_pb2.ConfigProto.FromString(stock.SerializeToString())


def _session_init(original):
    """A BaseSession.__init__ that accepts both ConfigProtos. It sets `allow_soft_placement` in a copy."""

    @functools.wraps(original)
    def init(self, target="", graph=None, config=None):
        self._session = None  # the destructor reads it if the config is refused
        config = of_tensorflow(config)
        given = eager_context.context().config if config is None else config
        if isinstance(given, config_pb2.ConfigProto):  # else let TensorFlow say what is wrong
            config = config_pb2.ConfigProto()
            config.CopyFrom(given)
            config.allow_soft_placement = True
        original(self, target, graph, config=config)

    return init


def _server_init(original):
    """A Server.__init__ that accepts both ConfigProtos."""

    @functools.wraps(original)
    def init(
        self,
        server_or_cluster_def,
        job_name=None,
        task_index=None,
        protocol=None,
        config=None,
        start=True,
    ):
        original(
            self,
            server_or_cluster_def,
            job_name,
            task_index,
            protocol,
            of_tensorflow(config),
            start,
        )

    return init


def install():
    """Makes Sessions and servers of this process accept this module's `ConfigProto`, and all Sessions use soft placement."""
    BaseSession.__init__ = _session_init(BaseSession.__init__)
    tf.distribute.Server.__init__ = _server_init(tf.distribute.Server.__init__)
