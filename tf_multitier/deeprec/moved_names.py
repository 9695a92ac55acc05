"""Names that TensorFlow has moved from one of its modules to another since 1.15.

Programs of that time import them from the old module: `array_ops.stack`, `control_flow_ops.while_loop`. `MOVED` lists the old and the
new module of each name. name_map.py adds the names to the old module; no name of an old module is replaced.

`RNN_CELL_IMPORTS` are modules that `from tensorflow.python.ops.rnn_cell import *` used to import too.
"""

import importlib

# {module of TensorFlow 1.15: {module of today: names}}, below tensorflow.python.
MOVED = {
    "framework.ops": {
        "framework.tensor": "Tensor",
        "framework.indexed_slices": "IndexedSlices IndexedSlicesValue convert_n_to_tensor_or_indexed_slices "
        "convert_to_tensor_or_indexed_slices",
        "framework.tensor_conversion": "convert_to_tensor_v2",
        "framework.tensor_conversion_registry": "register_tensor_conversion_function",
    },
    "framework.common_shapes": {"framework.tensor_shape": "unknown_shape"},
    "framework.graph_util_impl": {
        "framework.convert_to_constants": "convert_variables_to_constants"
    },
    "framework.tensor_util": {"ops.shape_util": "maybe_set_static_shape shape_tensor"},
    "ops.array_ops": {"ops.array_ops_stack": "stack unstack"},
    "ops.control_flow_ops": {
        "ops.cond": "cond cond_for_tf_v2",
        "ops.control_flow_assert": "Assert",
        "ops.control_flow_case": "case case_v2",
        "ops.control_flow_switch_case": "switch_case",
        "ops.while_loop": "while_loop while_loop_v2",
    },
    "ops.math_ops": {"ops.bincount_ops": "bincount bincount_v1"},
    "ops.nn_impl": {"ops.nn_impl_distribute": "compute_average_loss scale_regularization_loss"},
    "ops.random_ops": {"ops.random_crop_ops": "random_crop"},
    "ops.variable_scope": {
        "ops.resource_variables_toggle": "disable_resource_variables enable_resource_variables resource_variables_enabled",
        "ops.variable_v1": "default_variable_creator",
        "ops.variables": "default_variable_creator_v2",
    },
    "ops.variables": {
        "ops.ref_variable": "RefVariable",
        "ops.variable_v1": "VariableV1 is_variable_initialized",
    },
    "training.checkpoint_management": {
        "checkpoint.checkpoint_management": "CheckpointManager checkpoint_exists generate_checkpoint_state_proto get_checkpoint_mtimes get_checkpoint_state "
        "latest_checkpoint meta_graph_filename remove_checkpoint update_checkpoint_state",
    },
    "data.ops.dataset_ops": {"data.ops.options": "AutotuneAlgorithm Options"},
    "feature_column.feature_column_v2": {"feature_column.feature_column_v2_types": "FeatureColumn"},
}

# {module: {old name: name today}}: names that were renamed in the same module.
RENAMED = {
    "util.nest": {"is_sequence": "is_nested"},
    "data.util.nest": {"is_sequence": "is_nested"},
}

RNN_CELL_IMPORTS = {
    "eager": "context",
    "framework": "constant_op dtypes ops tensor_shape tensor_util",
    "ops": "array_ops clip_ops init_ops math_ops nn_ops partitioned_variables tensor_array_ops variable_scope",
    "util": "nest",
}


def _module(name):
    return importlib.import_module(f"tensorflow.python.{name}")


def places():
    """[(module, {name: object})]: the names to add to the modules of 1.15."""
    found = [
        (
            _module(old),
            {
                name: getattr(_module(new), name)
                for new, names in homes.items()
                for name in names.split()
            },
        )
        for old, homes in MOVED.items()
    ]
    found += [
        (_module(module), {old: getattr(_module(module), new) for old, new in names.items()})
        for module, names in RENAMED.items()
    ]
    imports = {
        name: _module(f"{package}.{name}")
        for package, names in RNN_CELL_IMPORTS.items()
        for name in names.split()
    }
    imports["vs"] = imports["variable_scope"]
    return found + [(_module("ops.rnn_cell"), imports), (_module("ops.rnn_cell_impl"), imports)]
