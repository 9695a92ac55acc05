"""All that tf_multitier uses of TensorFlow beyond its public API. No other file of the package imports tensorflow.python.

The first part has the names and functions that the package uses. The second part is `RELIED_ON`: the functions and classes of
TensorFlow on whose implementation we depend. Each entry has our file that depends on it, the assumption, and a hash of the source in
the newest minor version we know. `KNOWN` has the differences of the other minor versions. `unknown()` compares the installed
TensorFlow with both; tests/test_tensorflow_internals.py fails with its list. The test also finds private names of TensorFlow that no
entry mentions.

After a difference: read the new source, check that the assumption still holds, and put the new hash here. For a new minor version,
do this for the whole list. `python3 -m tf_multitier.tensorflow_internals` prints the hashes of the installed version. The differences
between minor versions for C++ are in cc/kernels/tensorflow_versions.h.
"""

# ruff: noqa: F401  names for the other files of the package

import functools
import hashlib
import importlib
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
from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.client.session import BaseSession
from tensorflow.python.data.experimental import ops as experimental_data_ops
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.eager import record as tape_record
from tensorflow.python.eager.tape import variable_accessed
from tensorflow.python.feature_column import feature_column as feature_column_v1
from tensorflow.python.feature_column import feature_column_v2
from tensorflow.python.feature_column import sequence_feature_column
from tensorflow.python.feature_column.utils import sequence_length_from_sparse_tensor
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.composite_tensor_gradient import CompositeTensorGradient
from tensorflow.python.framework.errors_impl import exception_type_from_error_code
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
from tensorflow.python.ops.variables import PartitionedVariable
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from tensorflow.python.saved_model.registration import register_checkpoint_saver
from tensorflow.python.saved_model.registration import register_serializable
from tensorflow.python.training import checkpoint_utils
from tensorflow.python.training import device_setter
from tensorflow.python.training import optimizer
from tensorflow.python.training import slot_creator
from tensorflow.python.training import warm_starting_util
from tensorflow.python.training.saving.saveable_object import SaveableObject
from tensorflow.python.training.saving.saveable_object import SaveSpec
from tensorflow.python.util.deprecation import silence as deprecations_silenced
from tensorflow.python.util.dispatch import register_dispatchable_type

EagerTensor = framework_ops.EagerTensor
OptimizableVariable = optimizer._OptimizableVariable

# ---- functions that patches.py wraps

# {name: (module or class, attribute)}
WRAPPED: dict[str, tuple[typing.Any, str]] = {
    "optimizer._get_processor": (optimizer, "_get_processor"),
    "slot_creator._create_slot_var": (slot_creator, "_create_slot_var"),
    "ResourceVariable.from_proto": (resource_variable_ops.ResourceVariable, "from_proto"),
    "feature_column._internal_input_layer": (feature_column_v1, "_internal_input_layer"),
    "feature_column._FCLinearWrapper.build": (feature_column_v1._FCLinearWrapper, "build"),
    "checkpoint_utils._init_from_checkpoint": (checkpoint_utils, "_init_from_checkpoint"),
    "warm_starting_util._get_grouped_variables": (warm_starting_util, "_get_grouped_variables"),
    "warm_starting_util._infer_var_name": (warm_starting_util, "_infer_var_name"),
    "warm_starting_util._warm_start_var_with_vocab": (
        warm_starting_util,
        "_warm_start_var_with_vocab",
    ),
}


def wrap(name, make):
    """Replaces the function of WRAPPED that has this name by make(the function)."""
    holder, attribute = WRAPPED[name]
    original = getattr(holder, attribute)
    wrapper = functools.wraps(original)(make(original))
    setattr(holder, attribute, staticmethod(wrapper) if attribute == "from_proto" else wrapper)


def wrapped_functions():
    """{name of WRAPPED: TensorFlow's own function}."""
    return {name: inspect.unwrap(getattr(*place)) for name, place in WRAPPED.items()}


def place_on_parameter_servers(op_type):
    """Makes `replica_device_setter` place ops of this type on parameter servers, as it places variables."""
    device_setter.STANDARD_PS_OPS += (op_type,)


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


# ---- eager execution and tf.function


def eager_seed():
    """The seed of `tf.random.set_seed`, or None."""
    return eager_context.global_seed()


def eager_mode():
    """A context in which ops run eagerly, whatever graph is being built."""
    return eager_context.eager_mode()


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


def custom_gradient_that_asks():
    """ "custom_gradient" or "recompute_grad" if it called the caller's caller, without a function of another package in between.

    Otherwise None.
    """
    folder = os.path.dirname(tf.__file__)
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        if frame.f_code.co_name in ("_eager_mode_decorator", "_graph_mode_decorator"):
            code = getattr(frame.f_locals.get("f"), "__code__", None)
            is_own = code is not None and code.co_filename == custom_gradient.__file__
            return "recompute_grad" if is_own else "custom_gradient"
        frame = frame.f_back
    return None


def a_tape_records():
    """Whether a tf.GradientTape of this thread records now."""
    return tape_record.could_possibly_record()


# ---- assumptions


class Reliance(typing.NamedTuple):
    """A function or class of TensorFlow on whose implementation we depend."""

    hash: str  # of its source in the newest minor version of KNOWN
    place: str  # module:attribute, below tensorflow.python
    used_by: str  # file of the package
    granted: str  # the assumption of that file, with the private names it uses

    @property
    def name(self) -> str:
        """module.attribute"""
        return self.place.replace(":", ".")


# fmt: off
RELIED_ON = tuple(Reliance(*row) for row in (
    ("a6137b06b9b86cbf", "training.optimizer:_get_processor", "patches.py", "chooses the adapter of each variable; wrapped"),
    ("b1ca736faa62c744", "training.optimizer:_OptimizableVariable", "optimizer.py", "the adapter has target() and update_op()"),
    ("e96764057343dace", "training.optimizer:Optimizer.apply_gradients", "group_updates.py",
     "calls update_op of every variable, then _finish with the updates"),
    ("4dc823539da26a74", "training.optimizer:Optimizer._finish", "group_updates.py",
     "takes the update ops, once; wrapped for one call"),
    ("ebf66cd75aed3535", "training.optimizer:Optimizer.__init__", "rules.py", "keeps _use_locking"),
    ("6261ab29f2d0ad5f", "training.optimizer:Optimizer._get_or_make_slot_with_initializer", "train/row_optimizer.py",
     "makes a slot, or gives the one that is there"),
    ("dad9db65c477425d", "training.optimizer:Optimizer._create_non_slot_variable", "train/adamw.py",
     "makes a variable of the optimizer; _get_non_slot_variable finds it"),
    ("377ed5d63e71cfeb", "training.optimizer:Optimizer._resource_apply_sparse_duplicate_indices", "rules.py",
     "this, _apply_sparse_duplicate_indices, _apply_sparse and _resource_apply_sparse are what a subclass overrides"),
    ("0ba4c802707c1e48", "training.adam:AdamOptimizer._finish", "group_updates.py", "runs after the updates it is given"),
    ("8f613fd629fd54cc", "training.adam:AdamOptimizer._prepare", "rules.py", "sets _lr_t, _beta1_t, _beta2_t, _epsilon_t"),
    ("dd425adca616fe82", "training.adam:AdamOptimizer._get_beta_accumulators", "rules.py", "gives both beta powers"),
    ("65729906c60027d8", "training.gradient_descent:GradientDescentOptimizer._prepare", "rules.py",
     "sets _learning_rate_tensor"),
    ("3dccf6c69e1f6a83", "training.momentum:MomentumOptimizer._prepare", "rules.py",
     "sets _learning_rate_tensor, _momentum_tensor; the constructor _use_nesterov"),
    ("65729906c60027d8", "training.adagrad:AdagradOptimizer._prepare", "rules.py",
     "sets _learning_rate_tensor; the constructor _initial_accumulator_value"),
    ("4e3aa2f935441ce9", "training.adagrad:AdagradOptimizer._create_slots", "rules.py", "name and initial value of its slot"),
    ("51beecef534d521e", "training.rmsprop:RMSPropOptimizer._prepare", "rules.py",
     "sets _learning_rate_tensor, _decay_tensor, _momentum_tensor, _epsilon_tensor; the constructor _centered"),
    ("506f19ce64a69696", "training.rmsprop:RMSPropOptimizer._create_slots", "rules.py",
     "names and initial values of its slots"),
    ("7bc8bf867983d288", "training.ftrl:FtrlOptimizer._prepare", "rules.py",
     "sets the five tensors of _TENSORS; the constructor _initial_accumulator_value"),
    ("c21462b18564efc9", "training.ftrl:FtrlOptimizer._create_slots", "rules.py", "names and initial values of its slots"),
    ("88257e62e95c7964", "training.adadelta:AdadeltaOptimizer._prepare", "rules.py", "sets _lr_t, _rho_t, _epsilon_t"),
    ("a91229b2bc3ff2c3", "training.slot_creator:_create_slot_var", "patches.py",
     "makes each slot in a scope of its name; wrapped"),
    ("9f892987ba8d2139", "training.saver:BaseSaverBuilder._build_internal", "saver.py",
     "calls the tensor of the file name Const:0 in its name scope, before it walks the variables"),
    ("fca42423175f4dc4", "training.saver:BaseSaverBuilder.save_op", "saver.py",
     "takes each spec's tensor while it walks the specs (SaveSpecs.__iter__)"),
    ("cfe5718da97a020f", "training.saver:BaseSaverBuilder._AddRestoreOps", "saver.py",
     "walks the specs without taking a tensor"),
    ("9617d2b87bf73b8b", "training.saver:BaseSaverBuilder.bulk_restore", "saver.py",
     "gives what one RestoreV2 op read, in order"),
    ("01f6ab051bc50309", "training.saving.saveable_object:SaveableObject", "saver.py", "op, specs, name; restore()"),
    ("ab74bd0f4b9bb3b2", "training.saving.saveable_object:SaveSpec", "saver.py",
     "calls the tensor's function when it is taken"),
    ("265316fbf97bc55f", "training.server_lib:Server.__init__", "deeprec/session_config.py", "its arguments; wrapped"),
    ("684e8b34a4bf4b3e", "training.device_setter:replica_device_setter", "patches.py",
     "places the ops that STANDARD_PS_OPS names"),
    ("838da63d79d5ca93", "training.checkpoint_utils:_init_from_checkpoint", "patches.py", "reads an assignment map; wrapped"),
    ("a019eb7618ee024d", "training.warm_starting_util:_get_grouped_variables", "patches.py",
     "groups variables by name; wrapped"),
    ("a9f9afa9f18b4d9d", "training.warm_starting_util:_infer_var_name", "patches.py",
     "the checkpoint's name of a variable; wrapped"),
    ("56a6bcfaec753a2c", "training.warm_starting_util:_warm_start_var_with_vocab", "patches.py",
     "vocabularies of a variable; wrapped"),
    ("9a569f63652fbc6e", "ops.resource_variable_ops:ResourceVariable.from_proto", "patches.py",
     "makes a variable of a meta graph; wrapped"),
    ("d74a04064307727d", "ops.resource_variable_ops:BaseResourceVariable.__init__", "embedding_variable.py",
     "its arguments; keeps _graph_element, _initializer_op and _handle_name"),
    ("5bc3e74aab05a93c", "ops.resource_variable_ops:VariableSpec", "embedding_variable.py", "a composite tensor of one handle"),
    ("a91a2ccc0d131a87", "ops.resource_variable_ops:ResourceVariableGradient", "embedding_variable.py",
     "the gradient of a variable is that of its handle"),
    ("1cf76bca60075bda", "ops.gradients_util:_GradientsHelper", "optimizer.py",
     "puts a gate named <op>_grad/tuple/group_deps behind the gradients of one op"),
    ("ae2502cb155ca470", "ops.control_flow_util:GetContainingWhileContext", "gradients.py", "finds a loop of control flow v1"),
    ("c222febcd1e6175a", "ops.control_flow_util:IsInCond", "gradients.py", "finds a branch of control flow v1"),
    ("b3bdfa51b108473c", "ops.variables:Variable._set_save_slice_info", "train/row_optimizer.py",
     "keeps _save_slice_info, which Savers read"),
    ("475b2a11fd782ba7", "ops.variable_scope:variable_scope._enter_scope_uncached", "deeprec/keep_weights.py",
     "has _cached_pure_variable_scope"),
    ("99fec5a8f28b4489", "framework.func_graph:FuncGraph.capture", "gradients.py",
     "gives the same tensor for the same capture"),
    ("d5a168e042f9e325", "framework.ops:colocate_with", "queries.py",
     "with ignore_existing frees ops from the caller's devices"),
    ("10f60971a75b999f", "framework.ops:Graph._get_control_flow_context", "gradients.py",
     "the context of control flow v1; operations have one, too"),
    ("4f0c0e585108b816", "framework.ops:Graph._current_control_dependencies", "graph_state.py",
     "the ops that a new op waits for"),
    ("1a938f99a13e45b3", "framework.func_graph:FuncGraph.__init__", "graph_state.py", "a graph of a function has outer_graph"),
    ("6717cb36031a93d2", "eager.record:record_operation", "group_tape.py", "records outputs, inputs and the function of their gradients"),
    ("3ed89958f959dd54", "eager.record:stop_recording", "group_tape.py", "tapes record nothing inside"),
    ("d029c914c1642f46", "eager.execute:quick_execute", "group_tape.py", "takes all attributes, and records nothing"),
    ("c21b7844c8f3872d", "eager.backprop:_MockOp", "gradients.py", "stands for the operation on a tape: get_attr, inputs, outputs"),
    ("7690f57fa30f6fd2", "framework.auto_control_deps_utils:register_read_only_resource_op", "eager.py",
     "ops of this type do not wait for each other in a function"),
    ("b0289e9408fe7847", "ops.handle_data_util:set_handle_data", "eager.py", "an eager handle has _handle_data, which captures copy"),
    ("f708e8afcfdf5443", "ops.handle_data_util:get_resource_handle_data", "gradients.py", "the shapes that a handle refers to"),
    ("144a23c08793ec3d", "ops.control_flow_util:GraphOrParentsInXlaContext", "eager.py", "whether jit_compile=True is being traced"),
    ("069868de412ff016", "eager.polymorphic_function.polymorphic_function:OptionalXlaContext", "eager.py",
     "a function with jit_compile=True is traced in a context of XLA"),
    ("42f6bee6552d4497", "ops.custom_gradient:_eager_mode_decorator", "embedding_variable.py",
     "makes tensors of the variables that f uses, and records the gradient for them"),
    ("72791bee0d014a4b", "ops.custom_gradient:_graph_mode_decorator", "embedding_variable.py",
     "makes tensors of the variables that f uses, and records the gradient for them"),
    ("2a6f6ed3185b047a", "autograph.impl.conversion:is_allowlisted", "eager.py", "reads CONVERSION_RULES; the first rule that applies holds"),
    ("d38843d855ce5ba9", "saved_model.registration.registration:register_checkpoint_saver", "object_checkpoint.py",
     "calls save_fn(trackables, file_prefix) and restore_fn(trackables, merged_prefix)"),
    ("284b428becaca4e9", "checkpoint.functional_saver:registered_saver_filename", "object_checkpoint.py",
     "adds -package.name to the prefix of the checkpoint"),
    ("c05dac9be1fdbd9c", "feature_column.feature_column:_internal_input_layer", "patches.py",
     "the columns of one input_layer call; wrapped"),
    ("fd81c18099cb67fb", "feature_column.feature_column:_FCLinearWrapper.build", "patches.py",
     "makes the weights of its _feature_column in its _scope; wrapped"),
    ("e0c4ac93a7d9e39a", "feature_column.feature_column:_EmbeddingColumn", "column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("12f4d7f081822d12", "feature_column.feature_column_v2:EmbeddingColumn", "column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("3cf05fa787a81b70", "feature_column.feature_column_v2:SharedEmbeddingColumn", "column_groups.py",
     "looks up through embedding_lookup_sparse; its __new__ is watched"),
    ("ea74e691a81f0e00", "feature_column.feature_column:_LinearModel", "fused_linear_model.py",
     "_add_layers makes _column_layers of _feature_columns; call() sums them, fills _cols_to_vars, adds _bias_layer"),
    ("b1df5466b679a5f5", "feature_column.feature_column:_get_expanded_variable_list", "fused_linear_model.py",
     "the parts of a variable"),
    ("3dee2f60f12e8b36", "feature_column.feature_column:_FCLinearWrapper", "fused_linear_model.py",
     "has _feature_column, _weight_var, _units, _sparse_combiner and _weight_collections"),
    ("73575c694b7da5d6", "feature_column.feature_column:_FeatureColumn", "deeprec/columns.py",
     "the class of all columns of v1"),
    ("9bd8d64a5f5aa62c", "feature_column.feature_column:_CategoricalColumn", "column_lookups.py",
     "a column has _parse_example_spec, _transform_feature, _num_buckets, _get_sparse_tensors"),
    ("f452d3d79bb13a68", "feature_column.feature_column:_DenseColumn", "column_groups.py",
     "a column has _var_scope_name, _variable_shape, _get_dense_tensor"),
    ("40f56e9b8fdedf1d", "feature_column.feature_column:_SequenceCategoricalColumn", "column_groups.py",
     "the class of all sequence columns of v1"),
    ("613ccffd0db5eafe", "feature_column.feature_column:_SequenceDenseColumn", "column_groups.py",
     "a column has _get_sequence_dense_tensor"),
    ("9f8f08f59111507c", "feature_column.feature_column:_SharedEmbeddingColumn", "column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("a8d5d22a282a54fe", "feature_column.feature_column:_HashedCategoricalColumn", "column_lookups.py", "gives no negative ids"),
    ("000fb6906e6e4d07", "feature_column.feature_column:_CrossedColumn", "column_lookups.py", "gives no negative ids"),
    ("ace1356af5119bc4", "feature_column.feature_column:_BucketizedColumn", "column_lookups.py", "gives no negative ids"),
    ("6ccdbd1c806382b5", "feature_column.feature_column:_LazyBuilder", "column_groups.py",
     "the cache of features that columns of v1 get"),
    ("800371587f20f8ed", "feature_column.feature_column:_normalize_feature_columns", "column_groups.py",
     "makes a list of columns of the argument"),
    ("965414098b1641eb", "feature_column.feature_column:_verify_static_batch_size_equality", "column_groups.py",
     "refuses batch sizes that are known to differ"),
    ("f4516332d925a743", "data.ops.dataset_ops:DatasetV2.__init__", "data/parquet.py", "keeps _variant_tensor"),
    ("03c7a3d81cbed5ae", "client.session:BaseSession.__init__", "deeprec/session_config.py",
     "takes target, graph, config; the destructor closes _session; wrapped"),
))
# fmt: on

# {minor version that we support: {name of a Reliance whose source differs from the newest: hash}}, the newest last.
KNOWN: dict[str, dict[str, str]] = {
    "2.19": {"ops.gradients_util._GradientsHelper": "8d68650e4e0007ab"},
    "2.20": {},
    "2.21": {},
}


def minor_version() -> str:
    """The minor version of the installed TensorFlow, for example "2.21"."""
    return ".".join(tf.__version__.split(".")[:2])


def source_hash(reliance: Reliance) -> str:
    """The first 16 digits of the sha256 of the source in the installed TensorFlow, without our wrappers.

    "missing" if it does not exist.
    """
    module, attributes = reliance.place.split(":")
    try:
        found: typing.Any = functools.reduce(
            getattr, attributes.split("."), importlib.import_module("tensorflow.python." + module)
        )
    except (ImportError, AttributeError):
        return "missing"
    return hashlib.sha256(inspect.getsource(inspect.unwrap(found)).encode()).hexdigest()[:16]


def unknown() -> list[str]:
    """A line for each Reliance whose source in the installed TensorFlow differs from the one that we read.

    For an unknown minor version: a line for every Reliance.
    """
    differing = KNOWN.get(minor_version())
    return [
        f"{r.name} ({r.used_by}): {r.granted}"
        for r in RELIED_ON
        if differing is None or differing.get(r.name, r.hash) != source_hash(r)
    ]


if __name__ == "__main__":
    print(f"TensorFlow {tf.__version__}")
    for one in RELIED_ON:
        print(f"{source_hash(one)} {one.place}")
