"""All that tf_multitier uses of TensorFlow beyond its public API. No other file of the package imports tensorflow.python.

What the package assumes about the implementation of these functions is in sources.py, with a hash of each source. The
differences between minor versions for C++ are in cc/tensorflow/common/tensorflow_versions.h.
"""

# ruff: noqa: F401  names for the other files of the package

import contextlib
import functools
import inspect
import os
import re
import sys
import typing

import tensorflow as tf
from google.protobuf.wrappers_pb2 import StringValue
from tensorflow.core.framework import variable_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.checkpoint import checkpoint as object_checkpoint
from tensorflow.python.checkpoint import util as object_checkpoint_util
from tensorflow.python.client.session import BaseSession
from tensorflow.python.client.session import register_session_run_conversion_functions
from tensorflow.python.data.experimental import ops as experimental_data_ops
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.eager import record as tape_record
from tensorflow.python.feature_column import feature_column as feature_column_v1
from tensorflow.python.feature_column import feature_column_v2
from tensorflow.python.feature_column import sequence_feature_column
from tensorflow.python.feature_column.utils import sequence_length_from_sparse_tensor
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.framework import composite_tensor_gradient
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.composite_tensor_gradient import CompositeTensorGradient
from tensorflow.python.framework.errors_impl import exception_type_from_error_code
from tensorflow.python.framework.errors_impl import OpError
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import colocate_with
from tensorflow.python.framework.ops import name_from_scope_name
from tensorflow.python.framework.ops import prepend_name_scope
from tensorflow.python.framework.ops import strip_name_scope
from tensorflow.python.framework.tensor_util import constant_value_as_shape
from tensorflow.python.ops import control_flow_util
from tensorflow.python.ops import custom_gradient
from tensorflow.python.ops import embedding_ops
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops import rnn_cell_impl
from tensorflow.python.ops import variable_scope
from tensorflow.python.ops import variables
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileCondFuncGraph
from tensorflow.python.ops.init_ops_v2 import TruncatedNormal as TruncatedNormalV2
from tensorflow.python.ops.resource_variable_ops import is_resource_variable
from tensorflow.python.ops.resource_variable_ops import variable_accessed
from tensorflow.python.ops.variables import PartitionedVariable
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from tensorflow.python.saved_model.registration import register_checkpoint_saver
from tensorflow.python.saved_model.registration import register_serializable
from tensorflow.python.trackable import autotrackable
from tensorflow.python.training import checkpoint_utils
from tensorflow.python.training import device_setter
from tensorflow.python.training import optimizer
from tensorflow.python.training import saver
from tensorflow.python.training import session_manager
from tensorflow.python.training import slot_creator
from tensorflow.python.training import warm_starting_util
from tensorflow.python.training.saving.saveable_object import SaveableObject
from tensorflow.python.training.saving.saveable_object import SaveSpec
from tensorflow.python.util.deprecation import silence as deprecations_silenced
from tensorflow.python.util.dispatch import register_dispatchable_type

EagerTensor = framework_ops.EagerTensor
OptimizableVariable = optimizer._OptimizableVariable
Optimizer = optimizer.Optimizer

# ---- functions that patches.py wraps

# {name: (module or class, attribute)}
WRAPPED: dict[str, tuple[typing.Any, str]] = {
    "optimizer._get_processor": (optimizer, "_get_processor"),
    "slot_creator._create_slot_var": (slot_creator, "_create_slot_var"),
    "ResourceVariable.from_proto": (resource_variable_ops.ResourceVariable, "from_proto"),
    "feature_column._internal_input_layer": (feature_column_v1, "_internal_input_layer"),
    "feature_column._FCLinearWrapper.build": (feature_column_v1._FCLinearWrapper, "build"),
    "checkpoint_utils._init_from_checkpoint": (checkpoint_utils, "_init_from_checkpoint"),
    "Saver._build_eager": (saver.Saver, "_build_eager"),
    "warm_starting_util._get_grouped_variables": (warm_starting_util, "_get_grouped_variables"),
    "warm_starting_util._infer_var_name": (warm_starting_util, "_infer_var_name"),
    "warm_starting_util._warm_start_var_with_vocab": (
        warm_starting_util,
        "_warm_start_var_with_vocab",
    ),
    "autotrackable.AutoTrackable.__setattr__": (autotrackable.AutoTrackable, "__setattr__"),
    "checkpoint.TrackableSaver.restore": (object_checkpoint.TrackableSaver, "restore"),
    "checkpoint.TrackableSaver.save": (object_checkpoint.TrackableSaver, "save"),
}


def wrap(name, make):
    """Replaces the function of WRAPPED that has this name by make(the function)."""
    holder, attribute = WRAPPED[name]
    original = getattr(holder, attribute)
    wrapper = functools.wraps(original)(make(original))
    setattr(holder, attribute, staticmethod(wrapper) if attribute == "from_proto" else wrapper)


def wrap_method(holder, name, make):
    """Replaces a method of a class by make(the method)."""
    original = getattr(holder, name)
    setattr(holder, name, functools.wraps(original)(make(original)))


def creator_arguments(creator):
    """The scaffold, master and config of a WorkerSessionCreator."""
    return creator._scaffold, creator._master, creator._config


def objects_of(saver):
    """The objects that a TrackableSaver, of tf.train.Checkpoint, saves and restores."""
    return object_checkpoint_util.list_objects(saver._graph_view)


def root_of(saver):
    """The object of which a TrackableSaver saves all that it has."""
    return saver._graph_view.root


def wrapped_functions():
    """{name of WRAPPED: TensorFlow's own function}."""
    return {name: inspect.unwrap(getattr(*place)) for name, place in WRAPPED.items()}


def place_on_parameter_servers(op_type):
    """Makes `replica_device_setter` place ops of this type on parameter servers, as it places variables."""
    device_setter.STANDARD_PS_OPS += (op_type,)


def look_for_the_chief_every(seconds):
    """Sets how often, in seconds, a worker's new Sessions of this process look whether the chief has initialized or restored the model.

    It replaces the default of SessionManager, 30 seconds. An explicit recovery_wait_secs stays.
    """
    made = session_manager.SessionManager.__init__
    names = made.__code__.co_varnames[: made.__code__.co_argcount]
    place = names.index("recovery_wait_secs") - len(names)
    defaults = list(made.__defaults__)
    defaults[place] = seconds
    made.__defaults__ = tuple(defaults)


_explanations: list = []


def explain_errors(explain):
    """From now on, the message of each OpError of a Session begins with what explain(session, error) returns; None leaves it."""
    if explain in _explanations:
        return
    if not _explanations:
        wrap_method(BaseSession, "_do_call", _explained)
    _explanations.append(explain)


def _explained(original):
    def call(self, fn, *args):
        try:
            return original(self, fn, *args)
        except OpError as error:
            found = [text for explain in _explanations if (text := explain(self, error))]
            if not found:
                raise
            text = ": ".join([*found, error.message])
            raise type(error)(error.node_def, error.op, text) from error

    return call


_watched: set = set()


def on_new(kinds, see):
    """Makes each later constructor call of these classes call `see(instance)`."""
    for kind in set(kinds) - _watched:
        _watched.add(kind)
        kind.__new__ = _seen(kind.__new__, see)


def _seen(original, see):
    @functools.wraps(original)
    def new(cls, *args, **kwargs):
        made = original(cls, *args, **kwargs)
        see(made)
        return made

    return staticmethod(new)


# ---- optimizers

# {rule of the engine: the tensors that TensorFlow's optimizer has for it after `_prepare`}, in the rule's order.
_TENSORS = {
    "sgd": ["_learning_rate_tensor"],
    "momentum": ["_learning_rate_tensor", "_momentum_tensor"],
    "adagrad": ["_learning_rate_tensor"],
    "adam": ["_lr_t", "_beta1_t", "_beta2_t", "_epsilon_t"],
    "rmsprop": ["_learning_rate_tensor", "_decay_tensor", "_momentum_tensor", "_epsilon_tensor"],
    "ftrl": [
        "_learning_rate_tensor",
        "_learning_rate_power_tensor",
        "_l1_regularization_strength_tensor",
        "_adjusted_l2_regularization_strength_tensor",
        "_l2_shrinkage_regularization_strength_tensor",
    ],
    "adadelta": ["_lr_t", "_rho_t", "_epsilon_t"],
}
_TENSORS["centered_rmsprop"] = _TENSORS["rmsprop"]


def optimizer_tensors(its_optimizer, rule):
    """The tensors of one of TensorFlow's optimizers that an engine's rule takes, in the rule's order."""
    tensors = [getattr(its_optimizer, name) for name in _TENSORS[rule]]
    return tensors + list(its_optimizer._get_beta_accumulators()) if rule == "adam" else tensors


def optimizer_setting(its_optimizer, name):
    """The argument of an optimizer's constructor that has this name."""
    return getattr(its_optimizer, "_" + name)


def before_finish(its_optimizer, change):
    """Makes the next call of the optimizer's `_finish` receive change(update_ops) instead of update_ops.

    A second call of this function before that `_finish` has no effect.
    """
    own = vars(its_optimizer).get("_finish")
    if getattr(own, "changes_updates", False):
        return
    finish = its_optimizer._finish

    def changed_finish(update_ops, name_scope):
        if own is None:
            del its_optimizer._finish
        else:
            its_optimizer._finish = own
        return finish(change(update_ops), name_scope)

    changed_finish.changes_updates = True
    its_optimizer._finish = changed_finish


# ---- graphs

# The name of the gate that tf.gradients adds after the gradients of one op.
_GRADIENT_GATE = re.compile(r"_grad(_\d+)?/tuple/group_deps$")


def is_gradient_gate(op):
    """Whether an op is the gate that tf.gradients adds after the gradients of one op. It waits only for these gradients.

    Other gates (of all gradients, a caller's tf.group, a gate that also waits for a check) may have any purpose.
    """
    if not _GRADIENT_GATE.search(op.name):
        return False
    behind = {after.inputs[0].op.name for after in op._control_outputs if after.type == "Identity"}
    return all(before.name in behind for before in op.control_inputs)


def control_flow_context(op_or_graph):
    """The context of control flow v1 in which an op was made, or the current one of a graph. None if there is none."""
    return op_or_graph._get_control_flow_context()


def control_dependencies_of(graph):
    """The ops for which a new op in `graph` would wait."""
    return graph._current_control_dependencies()


def order_of(op):
    """A number that grows with each op of a graph."""
    return op._id


def container_of(graph):
    """The name of the current resource container; "" is the default one."""
    return graph._container or ""


def device_scope():
    """The caller's `tf.device` scope in a graph, for `only_in`; None eagerly."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    return graph, graph._device_function_stack.copy()


def device_of_new_ops():
    """The device that the caller's `tf.device` scopes give a new operation of a v1 graph, which gets no operation by this."""
    stack = tf.compat.v1.get_default_graph()._device_function_stack
    scratch = tf.Graph()
    with scratch.as_default():
        scratch._device_function_stack = stack.copy()
        return tf.no_op().device


@contextlib.contextmanager
def only_in(scope):
    """A context: new ops of the graph are placed by `scope` alone, and are colocated with nothing."""
    with colocate_with(None, ignore_existing=True):
        graph = tf.compat.v1.get_default_graph()
        if scope is not None and scope[0] is graph:
            graph._device_function_stack = scope[1].copy()  # colocate_with sets the caller's again
        yield


def add_control_input(op, before):
    """Lets `op`, which no session has run, wait for the op `before`, which was made after it."""
    op._add_control_input(before)


def saver_prefix():
    """The tensor of the checkpoint's prefix while the Saver of the current name scope is being built; else None."""
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    while scope:
        try:
            return graph.get_tensor_by_name(f"{scope}/Const:0")
        except KeyError:
            scope = scope.rpartition("/")[0]
    return None


def fetched_as(kind, tensor_of, convert):
    """Makes Session.run give convert(value of tensor_of(fetch)) for a fetch of this class."""
    register_session_run_conversion_functions(
        kind, lambda fetch: ([tensor_of(fetch)], lambda values: convert(values[0]))
    )


# ---- eager execution and tf.function


def eager_seed():
    """The seed of `tf.random.set_seed`, or None."""
    return eager_context.global_seed()


def eager_mode():
    """A context in which ops run eagerly, whatever graph is being built."""
    return eager_context.eager_mode()


def workers_of_collectives():
    """The number of processes that this one's collective operations connect, as MultiWorkerMirroredStrategy sets them up; else 1."""
    server = eager_context.context()._collective_ops_server_def
    return 1 if server is None else sum(len(job.tasks) for job in server.cluster.job)


def partitioner_of_strategy(strategy):
    """The variable_partitioner of a ParameterServerStrategy of TensorFlow 2, or None."""
    return strategy.extended._variable_partitioner


def on_next_server(strategy, make):
    """What `make` makes on the server of a ParameterServerStrategy whose turn it is. The variables of TensorFlow take turns too."""
    return strategy.extended._create_variable_round_robin(make)


def set_handle_shape(handle, shape, dtype):
    """Sets the static shape and dtype of what an eager resource handle refers to. Functions that capture the handle see them."""
    handle_data_util.set_handle_data(handle, handle_data_util.create_handle_data(shape, dtype))


def embedding_dim_of_handle(handle):
    """The static length of the rows of a table, given the resource handle of a lookup in a graph."""
    data = handle_data_util.get_resource_handle_data(handle)
    return data.shape_and_type[0].shape.dim[-1].size


def register_reads(op_types):
    """Says of these op types that they only read their resources. In a tf.function, reads of a resource run side by side."""
    for op_type in op_types:
        auto_control_deps_utils.register_read_only_resource_op(op_type)


def is_compiled_by_xla(graph):
    """Whether the function whose graph is being built has jit_compile=True, or a caller of it has."""
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def keep_from_autograph(package):
    """Makes AutoGraph call the functions of this package as they are. It would rewrite them in each function that is traced."""
    autograph_config.CONVERSION_RULES = (
        autograph_config.DoNotConvert(package),
        *autograph_config.CONVERSION_RULES,
    )


def run_eagerly(op_type, num_outputs, inputs, attrs):
    """Runs an op eagerly with these attributes, none of which is inferred from the inputs. Returns the list of its outputs.

    TensorFlow records nothing on tapes.
    """
    pairs = [item for pair in attrs.items() for item in pair]
    return eager_execute.execute(
        op_type.encode(), num_outputs, inputs, tuple(pairs), eager_context.context()
    )


def record_on_tapes(name, outputs, inputs, backward):
    """Records on the tapes of this thread that outputs were computed from inputs. backward: function of the outputs' gradients."""
    tape_record.record_operation(name, outputs, inputs, backward)


def unrecorded():
    """A context in which tapes record nothing."""
    return tape_record.stop_recording()


def conversion_asked_by():
    """Which function of TensorFlow called the caller's caller, without a function of another package in between, or None.

    "custom_gradient", "recompute_grad", "assert_variables_initialized", or "unconnected": GradientTape.gradient makes the zeros of
    UnconnectedGradients.ZERO.
    """
    folder = os.path.dirname(tf.__file__)
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        if frame.f_code.co_name == "imperative_grad":
            return "unconnected"
        if frame.f_code.co_name == "assert_variables_initialized":
            return "assert_variables_initialized"
        if frame.f_code.co_name in ("_eager_mode_decorator", "_graph_mode_decorator"):
            code = getattr(frame.f_locals.get("f"), "__code__", None)
            is_own = code is not None and code.co_filename == custom_gradient.__file__
            return "recompute_grad" if is_own else "custom_gradient"
        frame = frame.f_back
    return None


def is_given_to_custom_gradient():
    """Whether the caller was called for the arguments, or the result, of a function of tf.custom_gradient or tf.recompute_grad."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == composite_tensor_gradient.__file__:
        frame = frame.f_back
    names = ("_eager_mode_decorator", "_graph_mode_decorator")
    return (
        frame is not None
        and frame.f_code.co_name in names
        and frame.f_code.co_filename == custom_gradient.__file__
    )


def variable_of_recomputed_gradient(slices):
    """The variable whose gradient is `slices`, if tf.recompute_grad asked the caller's caller to convert it; else None.

    tf.recompute_grad makes a function f of the variables that its function reads. Its decorator gets the gradients as the second
    result of f's gradient function.
    """
    folder = os.path.dirname(tf.__file__)
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        if frame.f_code.co_name in ("_eager_mode_decorator", "_graph_mode_decorator"):
            f, result = frame.f_locals.get("f"), frame.f_locals.get("result")
            code = getattr(f, "__code__", None)
            if code is None or code.co_filename != custom_gradient.__file__ or result is None:
                return None
            cells = dict(zip(code.co_freevars, f.__closure__ or ()))
            variables = cells["variables"].cell_contents if "variables" in cells else None
            pairs = zip(variables or (), result[1])
            return next((variable for variable, grad in pairs if grad is slices), None)
        frame = frame.f_back
    return None


def a_tape_records():
    """Whether a tf.GradientTape of this thread records now."""
    return tape_record.could_possibly_record()
