"""What the package assumes about TensorFlow's implementation, with a hash of each source that we read.

`RELIED_ON` lists functions and classes of TensorFlow. Each entry has the file of the package that depends on it, the assumption, and
a hash of the source in the newest minor version that we know. `KNOWN` has the hashes that differ in other minor versions.
`unknown()` compares the installed TensorFlow with both; tests/house/test_tensorflow_internals.py fails with its list. The test also finds
private names of TensorFlow that no entry mentions.

After a difference: read the new source, check that the assumption still holds, and put the new hash here. For a new minor version,
do this for the whole list. `python3 -m tf_multitier._src.tensorflow.sources` prints the hashes of the installed version. Nothing reads
this file while a program runs.
"""

import functools
import hashlib
import importlib
import inspect
import typing

import tensorflow as tf


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
    ("a6137b06b9b86cbf", "training.optimizer:_get_processor", "_src/patches.py", "chooses the adapter of each variable; wrapped"),
    ("b1ca736faa62c744", "training.optimizer:_OptimizableVariable", "_src/training/updates.py", "the adapter has target() and update_op()"),
    ("e96764057343dace", "training.optimizer:Optimizer.apply_gradients", "_src/training/group_updates.py",
     "calls update_op of every variable, then _finish with the updates"),
    ("4dc823539da26a74", "training.optimizer:Optimizer._finish", "_src/training/group_updates.py",
     "takes the update ops, once; wrapped for one call"),
    ("ebf66cd75aed3535", "training.optimizer:Optimizer.__init__", "_src/training/rules.py", "keeps _use_locking"),
    ("6261ab29f2d0ad5f", "training.optimizer:Optimizer._get_or_make_slot_with_initializer", "train/v1_row_optimizer.py",
     "makes a slot, or gives the one that is there"),
    ("dad9db65c477425d", "training.optimizer:Optimizer._create_non_slot_variable", "train/adamw.py",
     "makes a variable of the optimizer; _get_non_slot_variable finds it"),
    ("377ed5d63e71cfeb", "training.optimizer:Optimizer._resource_apply_sparse_duplicate_indices", "_src/training/rules.py",
     "this, _apply_sparse_duplicate_indices, _apply_sparse and _resource_apply_sparse are what a subclass overrides"),
    ("0ba4c802707c1e48", "training.adam:AdamOptimizer._finish", "_src/training/group_updates.py", "runs after the updates it is given"),
    ("8f613fd629fd54cc", "training.adam:AdamOptimizer._prepare", "_src/training/rules.py", "sets _lr_t, _beta1_t, _beta2_t, _epsilon_t"),
    ("dd425adca616fe82", "training.adam:AdamOptimizer._get_beta_accumulators", "_src/training/rules.py", "gives both beta powers"),
    ("65729906c60027d8", "training.gradient_descent:GradientDescentOptimizer._prepare", "_src/training/rules.py",
     "sets _learning_rate_tensor"),
    ("3dccf6c69e1f6a83", "training.momentum:MomentumOptimizer._prepare", "_src/training/rules.py",
     "sets _learning_rate_tensor, _momentum_tensor; the constructor _use_nesterov"),
    ("65729906c60027d8", "training.adagrad:AdagradOptimizer._prepare", "_src/training/rules.py",
     "sets _learning_rate_tensor; the constructor _initial_accumulator_value"),
    ("4e3aa2f935441ce9", "training.adagrad:AdagradOptimizer._create_slots", "_src/training/rules.py", "name and initial value of its slot"),
    ("51beecef534d521e", "training.rmsprop:RMSPropOptimizer._prepare", "_src/training/rules.py",
     "sets _learning_rate_tensor, _decay_tensor, _momentum_tensor, _epsilon_tensor; the constructor _centered"),
    ("506f19ce64a69696", "training.rmsprop:RMSPropOptimizer._create_slots", "_src/training/rules.py",
     "names and initial values of its slots"),
    ("7bc8bf867983d288", "training.ftrl:FtrlOptimizer._prepare", "_src/training/rules.py",
     "sets the five tensors of _TENSORS; the constructor _initial_accumulator_value"),
    ("c21462b18564efc9", "training.ftrl:FtrlOptimizer._create_slots", "_src/training/rules.py", "names and initial values of its slots"),
    ("88257e62e95c7964", "training.adadelta:AdadeltaOptimizer._prepare", "_src/training/rules.py", "sets _lr_t, _rho_t, _epsilon_t"),
    ("a91229b2bc3ff2c3", "training.slot_creator:_create_slot_var", "_src/patches.py",
     "makes each slot in a scope of its name; wrapped"),
    ("9f892987ba8d2139", "training.saver:BaseSaverBuilder._build_internal", "_src/variable/saver.py",
     "calls the tensor of the file name Const:0 in its name scope, before it walks the variables"),
    ("fca42423175f4dc4", "training.saver:BaseSaverBuilder.save_op", "_src/variable/saver.py",
     "takes each spec's tensor while it walks the specs (SaveSpecs.__iter__)"),
    ("cfe5718da97a020f", "training.saver:BaseSaverBuilder._AddRestoreOps", "_src/variable/saver.py",
     "walks the specs without taking a tensor"),
    ("9617d2b87bf73b8b", "training.saver:BaseSaverBuilder.bulk_restore", "_src/variable/saver.py",
     "gives what one RestoreV2 op read, in order"),
    ("80776141c1a0396f", "training.saver:Saver._build_eager", "_src/patches.py",
     "runs a Saver's eager call for its _var_list; wrapped"),
    ("01f6ab051bc50309", "training.saving.saveable_object:SaveableObject", "_src/variable/saver.py", "op, specs, name; restore()"),
    ("ab74bd0f4b9bb3b2", "training.saving.saveable_object:SaveSpec", "_src/variable/saver.py",
     "calls the tensor's function when it is taken"),
    ("b60d72252565738f", "training.session_manager:SessionManager.__init__", "_src/variable/variable_scope.py",
     "the default of recovery_wait_secs is how often a worker looks for the chief"),
    ("265316fbf97bc55f", "training.server_lib:Server.__init__", "deeprec/session_config.py", "its arguments; wrapped"),
    ("0763336a8e79478a", "training.monitored_session:WorkerSessionCreator", "distribute/sessions.py",
     "keeps _scaffold, _master and _config; create_session is wrapped"),
    ("bafd1eca64506bf0", "training.monitored_session:ChiefSessionCreator", "distribute/sessions.py",
     "initializes or restores in create_session, which is wrapped"),
    ("f3f2fef2251baa2e", "training.monitored_session:Scaffold.finalize", "distribute/sessions.py", "the last that adds ops to the graph; wrapped"),
    ("03c7a3d81cbed5ae", "client.session:BaseSession.__init__", "distribute/sessions.py", "its arguments; wrapped"),
    ("4cd6b905f3011b4a", "client.session:BaseSession._do_call", "_src/tensorflow/internals.py",
     "raises the errors of all calls of a Session; wrapped"),
    ("684e8b34a4bf4b3e", "training.device_setter:replica_device_setter", "_src/patches.py",
     "places the ops that STANDARD_PS_OPS names"),
    ("838da63d79d5ca93", "training.checkpoint_utils:_init_from_checkpoint", "_src/patches.py", "reads an assignment map; wrapped"),
    ("a019eb7618ee024d", "training.warm_starting_util:_get_grouped_variables", "_src/patches.py",
     "groups variables by name; wrapped"),
    ("a9f9afa9f18b4d9d", "training.warm_starting_util:_infer_var_name", "_src/patches.py",
     "the checkpoint's name of a variable; wrapped"),
    ("56a6bcfaec753a2c", "training.warm_starting_util:_warm_start_var_with_vocab", "_src/patches.py",
     "vocabularies of a variable; wrapped"),
    ("9a569f63652fbc6e", "ops.resource_variable_ops:ResourceVariable.from_proto", "_src/patches.py",
     "makes a variable of a meta graph; wrapped"),
    ("d74a04064307727d", "ops.resource_variable_ops:BaseResourceVariable.__init__", "_src/variable/embedding_variable.py",
     "its arguments; keeps _graph_element, _initializer_op and _handle_name"),
    ("5bc3e74aab05a93c", "ops.resource_variable_ops:VariableSpec", "_src/variable/embedding_variable.py", "a composite tensor of one handle"),
    ("a91a2ccc0d131a87", "ops.resource_variable_ops:ResourceVariableGradient", "_src/variable/embedding_variable.py",
     "the gradient of a variable is that of its handle"),
    ("1cf76bca60075bda", "ops.gradients_util:_GradientsHelper", "_src/training/updates.py",
     "puts a gate named <op>_grad/tuple/group_deps behind the gradients of one op"),
    ("ae2502cb155ca470", "ops.control_flow_util:GetContainingWhileContext", "_src/lookup/gradients.py", "finds a loop of control flow v1"),
    ("c222febcd1e6175a", "ops.control_flow_util:IsInCond", "_src/lookup/gradients.py", "finds a branch of control flow v1"),
    ("b3bdfa51b108473c", "ops.variables:Variable._set_save_slice_info", "train/v1_row_optimizer.py",
     "keeps _save_slice_info, which Savers read"),
    ("475b2a11fd782ba7", "ops.variable_scope:variable_scope._enter_scope_uncached", "deeprec/keep_weights.py",
     "has _cached_pure_variable_scope"),
    ("99fec5a8f28b4489", "framework.func_graph:FuncGraph.capture", "_src/lookup/gradients.py",
     "gives the same tensor for the same capture"),
    ("d5a168e042f9e325", "framework.ops:colocate_with", "_src/variable/queries.py",
     "with ignore_existing frees ops from the caller's devices"),
    ("a91f903ff1b05c76", "framework.ops:Graph.colocate_with", "_src/execution/placement.py",
     "leaves the devices in _device_function_stack, and sets the caller's again afterwards"),
    ("10f60971a75b999f", "framework.ops:Graph._get_control_flow_context", "_src/lookup/gradients.py",
     "the context of control flow v1; operations have one, too"),
    ("4f0c0e585108b816", "framework.ops:Graph._current_control_dependencies", "_src/execution/graph_state.py",
     "the ops that a new op waits for"),
    ("1a938f99a13e45b3", "framework.func_graph:FuncGraph.__init__", "_src/execution/graph_state.py", "a graph of a function has outer_graph"),
    ("6717cb36031a93d2", "eager.record:record_operation", "_src/lookup/group_tape.py", "records outputs, inputs and the function of their gradients"),
    ("3ed89958f959dd54", "eager.record:stop_recording", "_src/lookup/group_tape.py", "tapes record nothing inside"),
    ("d029c914c1642f46", "eager.execute:quick_execute", "_src/lookup/group_tape.py", "takes all attributes, and records nothing"),
    ("c21b7844c8f3872d", "eager.backprop:_MockOp", "_src/lookup/gradients.py", "stands for the operation on a tape: get_attr, inputs, outputs"),
    ("7690f57fa30f6fd2", "framework.auto_control_deps_utils:register_read_only_resource_op", "_src/execution/eager.py",
     "ops of this type do not wait for each other in a function"),
    ("b0289e9408fe7847", "ops.handle_data_util:set_handle_data", "_src/execution/eager.py", "an eager handle has _handle_data, which captures copy"),
    ("f708e8afcfdf5443", "ops.handle_data_util:get_resource_handle_data", "_src/lookup/gradients.py", "the shapes that a handle refers to"),
    ("144a23c08793ec3d", "ops.control_flow_util:GraphOrParentsInXlaContext", "_src/execution/eager.py", "whether jit_compile=True is being traced"),
    ("069868de412ff016", "eager.polymorphic_function.polymorphic_function:OptionalXlaContext", "_src/execution/eager.py",
     "a function with jit_compile=True is traced in a context of XLA"),
    ("2659074ee7dbd1c3", "ops.custom_gradient:recompute_grad", "_src/variable/recomputed.py",
     "converts gradients with the functions that are registered for IndexedSlices, and returns them for the variables"),
    ("4f27a998f93e22ab", "eager.imperative_grad:imperative_grad", "_src/variable/embedding_variable.py", "makes zeros like the variables"),
    ("42f6bee6552d4497", "ops.custom_gradient:_eager_mode_decorator", "_src/variable/recomputed.py",
     "makes tensors of the variables that f uses, and records the gradient for them"),
    ("72791bee0d014a4b", "ops.custom_gradient:_graph_mode_decorator", "_src/variable/recomputed.py",
     "makes tensors of the variables that f uses, and records the gradient for them"),
    ("2a6f6ed3185b047a", "autograph.impl.conversion:is_allowlisted", "_src/execution/eager.py", "reads CONVERSION_RULES; the first rule that applies holds"),
    ("d38843d855ce5ba9", "saved_model.registration.registration:register_checkpoint_saver", "_src/variable/object_checkpoint.py",
     "calls save_fn(trackables, file_prefix) and restore_fn(trackables, merged_prefix)"),
    ("284b428becaca4e9", "checkpoint.functional_saver:registered_saver_filename", "_src/variable/object_checkpoint.py",
     "adds -package.name to the prefix of the checkpoint"),
    ("5482008cb459da06", "checkpoint.checkpoint:TrackableSaver.restore", "_src/patches.py",
     "restores the objects of its _graph_view from the checkpoint at save_path; wrapped"),
    ("24cd3eef5f3fe268", "checkpoint.checkpoint:TrackableSaver.save", "_src/patches.py",
     "saves what the root of its _graph_view has; wrapped"),
    ("7fcf77b0b783d11a", "checkpoint.checkpoint:_NameBasedRestoreCoordinator.eager_restore", "_src/variable/saver.py",
     "reads by the names of dtype_map from save_path; puts what is not there into unused_attributes"),
    ("92fec19c7b8c6fe5", "trackable.base:Trackable._name_based_attribute_restore", "_src/variable/saver.py",
     "restores an object, if its _update_uid is before restore_uid"),
    ("c05dac9be1fdbd9c", "feature_column.feature_column:_internal_input_layer", "_src/patches.py",
     "the columns of one input_layer call; wrapped"),
    ("fd81c18099cb67fb", "feature_column.feature_column:_FCLinearWrapper.build", "_src/patches.py",
     "makes the weights of its _feature_column in its _scope; wrapped"),
    ("e0c4ac93a7d9e39a", "feature_column.feature_column:_EmbeddingColumn", "_src/columns/column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("12f4d7f081822d12", "feature_column.feature_column_v2:EmbeddingColumn", "_src/columns/column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("3cf05fa787a81b70", "feature_column.feature_column_v2:SharedEmbeddingColumn", "_src/columns/column_groups.py",
     "looks up through embedding_lookup_sparse; its __new__ is watched"),
    ("ea74e691a81f0e00", "feature_column.feature_column:_LinearModel", "_src/columns/fused_linear_model.py",
     "_add_layers makes _column_layers of _feature_columns; call() sums them, fills _cols_to_vars, adds _bias_layer"),
    ("b1df5466b679a5f5", "feature_column.feature_column:_get_expanded_variable_list", "_src/columns/fused_linear_model.py",
     "the parts of a variable"),
    ("3dee2f60f12e8b36", "feature_column.feature_column:_FCLinearWrapper", "_src/columns/fused_linear_model.py",
     "has _feature_column, _weight_var, _units, _sparse_combiner and _weight_collections"),
    ("73575c694b7da5d6", "feature_column.feature_column:_FeatureColumn", "deeprec/columns.py",
     "the class of all columns of v1"),
    ("9bd8d64a5f5aa62c", "feature_column.feature_column:_CategoricalColumn", "_src/columns/column_lookups.py",
     "a column has _parse_example_spec, _transform_feature, _num_buckets, _get_sparse_tensors"),
    ("f452d3d79bb13a68", "feature_column.feature_column:_DenseColumn", "_src/columns/column_groups.py",
     "a column has _var_scope_name, _variable_shape, _get_dense_tensor"),
    ("40f56e9b8fdedf1d", "feature_column.feature_column:_SequenceCategoricalColumn", "_src/columns/column_groups.py",
     "the class of all sequence columns of v1"),
    ("613ccffd0db5eafe", "feature_column.feature_column:_SequenceDenseColumn", "_src/columns/column_groups.py",
     "a column has _get_sequence_dense_tensor"),
    ("9f8f08f59111507c", "feature_column.feature_column:_SharedEmbeddingColumn", "_src/columns/column_groups.py",
     "looks up through safe_embedding_lookup_sparse; its __new__ is watched"),
    ("a8d5d22a282a54fe", "feature_column.feature_column:_HashedCategoricalColumn", "_src/columns/column_lookups.py", "gives no negative ids"),
    ("000fb6906e6e4d07", "feature_column.feature_column:_CrossedColumn", "_src/columns/column_lookups.py", "gives no negative ids"),
    ("ace1356af5119bc4", "feature_column.feature_column:_BucketizedColumn", "_src/columns/column_lookups.py", "gives no negative ids"),
    ("6ccdbd1c806382b5", "feature_column.feature_column:_LazyBuilder", "_src/columns/column_groups.py",
     "the cache of features that columns of v1 get"),
    ("800371587f20f8ed", "feature_column.feature_column:_normalize_feature_columns", "_src/columns/column_groups.py",
     "makes a list of columns of the argument"),
    ("965414098b1641eb", "feature_column.feature_column:_verify_static_batch_size_equality", "_src/columns/column_groups.py",
     "refuses batch sizes that are known to differ"),
    ("002fea8ac6fa19a7", "trackable.autotrackable:AutoTrackable.__setattr__", "_src/patches.py", "sets an attribute of a layer of Keras 3, too; wrapped"),
    ("0d78f0e2f85e42d9", "trackable.base:Trackable._track_trackable", "keras/held_variables.py",
     "tracks an object under a name that _lookup_dependency finds; _maybe_initialize_trackable comes before that"),
    ("f4516332d925a743", "data.ops.dataset_ops:DatasetV2.__init__", "data/parquet.py", "keeps _variant_tensor"),
    ("62f2be44c153d595", "distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended._create_variable_round_robin",
     "_src/processes/strategies.py", "calls its argument on the next server"),
    ("0ca2b4f9e46b03a5", "distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended.__init__", "_src/processes/strategies.py",
     "keeps _variable_partitioner"),
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
