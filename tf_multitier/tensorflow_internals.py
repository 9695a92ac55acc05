"""What tf_multitier relies on in TensorFlow beyond its public API, and how it is guarded.

`RELIED_ON` names each function or class of TensorFlow whose inner workings we depend on, the file of ours that does, and what it
takes for granted. `KNOWN` has the hash of its source in each minor version that we support. `unknown()` compares the installed
TensorFlow with it; tests/test_tensorflow_internals.py fails with its list.

A difference means: read the new source, see that what is taken for granted still holds, and put the new hash here. A new minor
version: the same for the whole list. `python3 -m tf_multitier.tensorflow_internals` prints the hashes of the installed one. What
differs between minor versions for C++ is in cc/kernels/tensorflow_versions.h.
"""

import functools
import hashlib
import importlib
import inspect
import typing

import tensorflow as tf


class Reliance(typing.NamedTuple):
    """One thing of TensorFlow that we rely on: module.attribute, which of our files does, and what that takes for granted."""

    module: str
    attribute: str
    used_by: str
    granted: str

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


_OPTIMIZER_TENSORS = "the names of the tensors and settings that rules.py reads as hyperparameters"

RELIED_ON = (
    Reliance(
        "training.optimizer",
        "_get_processor",
        "patches.py",
        "chooses the adapter of each variable; wrapped",
    ),
    Reliance(
        "training.optimizer",
        "_OptimizableVariable",
        "optimizer.py",
        "the adapter has target() and update_op()",
    ),
    Reliance(
        "training.optimizer",
        "Optimizer.apply_gradients",
        "group_updates.py",
        "calls update_op of every variable, then _finish with the updates",
    ),
    Reliance(
        "training.optimizer",
        "Optimizer._finish",
        "group_updates.py",
        "takes the update ops, once; wrapped for one call",
    ),
    Reliance(
        "training.adam",
        "AdamOptimizer._finish",
        "group_updates.py",
        "runs after the updates it is given",
    ),
    Reliance("training.adam", "AdamOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance(
        "training.adam",
        "AdamOptimizer._get_beta_accumulators",
        "rules.py",
        "gives both beta powers",
    ),
    Reliance(
        "training.gradient_descent",
        "GradientDescentOptimizer._prepare",
        "rules.py",
        _OPTIMIZER_TENSORS,
    ),
    Reliance("training.momentum", "MomentumOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance("training.adagrad", "AdagradOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance(
        "training.adagrad",
        "AdagradOptimizer._create_slots",
        "rules.py",
        "name and initial value of its slot",
    ),
    Reliance("training.rmsprop", "RMSPropOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance(
        "training.rmsprop",
        "RMSPropOptimizer._create_slots",
        "rules.py",
        "names and initial values of its slots",
    ),
    Reliance("training.ftrl", "FtrlOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance(
        "training.ftrl",
        "FtrlOptimizer._create_slots",
        "rules.py",
        "names and initial values of its slots",
    ),
    Reliance("training.adadelta", "AdadeltaOptimizer._prepare", "rules.py", _OPTIMIZER_TENSORS),
    Reliance(
        "training.slot_creator",
        "_create_slot_var",
        "patches.py",
        "makes each slot in a scope of its name; wrapped",
    ),
    Reliance(
        "training.device_setter",
        "replica_device_setter",
        "patches.py",
        "places the ops that STANDARD_PS_OPS names",
    ),
    Reliance(
        "training.saver",
        "BaseSaverBuilder._build_internal",
        "saver.py",
        "calls the tensor of the file name Const:0 in its name scope, before it walks the variables",
    ),
    Reliance(
        "training.saver",
        "BaseSaverBuilder.save_op",
        "saver.py",
        "takes each spec's tensor while it walks the specs (SaveSpecs.__iter__)",
    ),
    Reliance(
        "training.saver",
        "BaseSaverBuilder._AddRestoreOps",
        "saver.py",
        "walks the specs without taking a tensor",
    ),
    Reliance(
        "training.saver",
        "BaseSaverBuilder.bulk_restore",
        "saver.py",
        "gives what one RestoreV2 op read, in order",
    ),
    Reliance(
        "training.saving.saveable_object",
        "SaveableObject",
        "saver.py",
        "op, specs, name; restore()",
    ),
    Reliance(
        "training.saving.saveable_object",
        "SaveSpec",
        "saver.py",
        "calls the tensor's function when it is taken",
    ),
    Reliance(
        "training.checkpoint_utils",
        "_init_from_checkpoint",
        "patches.py",
        "reads an assignment map; wrapped",
    ),
    Reliance(
        "training.warm_starting_util",
        "_get_grouped_variables",
        "patches.py",
        "groups variables by name; wrapped",
    ),
    Reliance(
        "training.warm_starting_util",
        "_infer_var_name",
        "patches.py",
        "the checkpoint's name of a variable; wrapped",
    ),
    Reliance(
        "training.warm_starting_util",
        "_warm_start_var_with_vocab",
        "patches.py",
        "vocabularies of a variable; wrapped",
    ),
    Reliance(
        "ops.resource_variable_ops",
        "ResourceVariable.from_proto",
        "patches.py",
        "makes a variable of a meta graph; wrapped",
    ),
    Reliance(
        "ops.resource_variable_ops",
        "BaseResourceVariable.__init__",
        "embedding_variable.py",
        "its arguments",
    ),
    Reliance(
        "ops.resource_variable_ops",
        "VariableSpec",
        "embedding_variable.py",
        "a composite tensor of one handle",
    ),
    Reliance(
        "ops.resource_variable_ops",
        "ResourceVariableGradient",
        "embedding_variable.py",
        "the gradient of a variable is that of its handle",
    ),
    Reliance(
        "ops.gradients_util",
        "_GradientsHelper",
        "optimizer.py",
        "puts a gate named <op>_grad/tuple/group_deps behind the gradients of one op",
    ),
    Reliance(
        "ops.control_flow_util",
        "GetContainingWhileContext",
        "gradients.py",
        "finds a loop of control flow v1",
    ),
    Reliance(
        "ops.control_flow_util", "IsInCond", "gradients.py", "finds a branch of control flow v1"
    ),
    Reliance(
        "framework.func_graph",
        "FuncGraph.capture",
        "gradients.py",
        "gives the same tensor for the same capture",
    ),
    Reliance(
        "feature_column.feature_column",
        "_internal_input_layer",
        "patches.py",
        "the columns of one input_layer call; wrapped",
    ),
    Reliance(
        "feature_column.feature_column",
        "_FCLinearWrapper.build",
        "patches.py",
        "makes the weights of one column of linear_model; wrapped",
    ),
    Reliance(
        "feature_column.feature_column",
        "_EmbeddingColumn",
        "column_groups.py",
        "looks up through safe_embedding_lookup_sparse; its __new__ is watched",
    ),
    Reliance(
        "feature_column.feature_column_v2",
        "EmbeddingColumn",
        "column_groups.py",
        "looks up through safe_embedding_lookup_sparse; its __new__ is watched",
    ),
    Reliance(
        "feature_column.feature_column_v2",
        "SharedEmbeddingColumn",
        "column_groups.py",
        "looks up through embedding_lookup_sparse; its __new__ is watched",
    ),
)


def minor_version() -> str:
    """Of the installed TensorFlow: "2.21"."""
    return ".".join(tf.__version__.split(".")[:2])


def source_hash(reliance: Reliance) -> str:
    """sha256 of the source that the installed TensorFlow has for it; "missing" where there is none. Our wrappers are seen through."""
    try:
        found: typing.Any = functools.reduce(
            getattr,
            reliance.attribute.split("."),
            importlib.import_module("tensorflow.python." + reliance.module),
        )
    except (ImportError, AttributeError):
        return "missing"
    return hashlib.sha256(inspect.getsource(inspect.unwrap(found)).encode()).hexdigest()[:16]


def unknown() -> list[str]:
    """What the installed TensorFlow has otherwise than it was when we last read it: a line for each; all where its minor version is
    not known."""
    known = KNOWN.get(minor_version(), {})
    return [
        f"{r.name} ({r.used_by}): {r.granted}"
        for r in RELIED_ON
        if known.get(r.name) != source_hash(r)
    ]


# {name of a Reliance: hash of its source} in TensorFlow 2.21.
_KNOWN_2_21 = {
    "training.optimizer._get_processor": "a6137b06b9b86cbf",
    "training.optimizer._OptimizableVariable": "b1ca736faa62c744",
    "training.optimizer.Optimizer.apply_gradients": "e96764057343dace",
    "training.optimizer.Optimizer._finish": "4dc823539da26a74",
    "training.adam.AdamOptimizer._finish": "0ba4c802707c1e48",
    "training.adam.AdamOptimizer._prepare": "8f613fd629fd54cc",
    "training.adam.AdamOptimizer._get_beta_accumulators": "dd425adca616fe82",
    "training.gradient_descent.GradientDescentOptimizer._prepare": "65729906c60027d8",
    "training.momentum.MomentumOptimizer._prepare": "3dccf6c69e1f6a83",
    "training.adagrad.AdagradOptimizer._prepare": "65729906c60027d8",
    "training.adagrad.AdagradOptimizer._create_slots": "4e3aa2f935441ce9",
    "training.rmsprop.RMSPropOptimizer._prepare": "51beecef534d521e",
    "training.rmsprop.RMSPropOptimizer._create_slots": "506f19ce64a69696",
    "training.ftrl.FtrlOptimizer._prepare": "7bc8bf867983d288",
    "training.ftrl.FtrlOptimizer._create_slots": "c21462b18564efc9",
    "training.adadelta.AdadeltaOptimizer._prepare": "88257e62e95c7964",
    "training.slot_creator._create_slot_var": "a91229b2bc3ff2c3",
    "training.device_setter.replica_device_setter": "684e8b34a4bf4b3e",
    "training.saver.BaseSaverBuilder._build_internal": "9f892987ba8d2139",
    "training.saver.BaseSaverBuilder.save_op": "fca42423175f4dc4",
    "training.saver.BaseSaverBuilder._AddRestoreOps": "cfe5718da97a020f",
    "training.saver.BaseSaverBuilder.bulk_restore": "9617d2b87bf73b8b",
    "training.saving.saveable_object.SaveableObject": "01f6ab051bc50309",
    "training.saving.saveable_object.SaveSpec": "ab74bd0f4b9bb3b2",
    "training.checkpoint_utils._init_from_checkpoint": "838da63d79d5ca93",
    "training.warm_starting_util._get_grouped_variables": "a019eb7618ee024d",
    "training.warm_starting_util._infer_var_name": "a9f9afa9f18b4d9d",
    "training.warm_starting_util._warm_start_var_with_vocab": "56a6bcfaec753a2c",
    "ops.resource_variable_ops.ResourceVariable.from_proto": "9a569f63652fbc6e",
    "ops.resource_variable_ops.BaseResourceVariable.__init__": "d74a04064307727d",
    "ops.resource_variable_ops.VariableSpec": "5bc3e74aab05a93c",
    "ops.resource_variable_ops.ResourceVariableGradient": "a91a2ccc0d131a87",
    "ops.gradients_util._GradientsHelper": "1cf76bca60075bda",
    "ops.control_flow_util.GetContainingWhileContext": "ae2502cb155ca470",
    "ops.control_flow_util.IsInCond": "c222febcd1e6175a",
    "framework.func_graph.FuncGraph.capture": "99fec5a8f28b4489",
    "feature_column.feature_column._internal_input_layer": "c05dac9be1fdbd9c",
    "feature_column.feature_column._FCLinearWrapper.build": "fd81c18099cb67fb",
    "feature_column.feature_column._EmbeddingColumn": "e0c4ac93a7d9e39a",
    "feature_column.feature_column_v2.EmbeddingColumn": "12f4d7f081822d12",
    "feature_column.feature_column_v2.SharedEmbeddingColumn": "3cf05fa787a81b70",
}

# The same for each minor version that we support.
KNOWN: dict[str, dict[str, str]] = {
    "2.19": {
        **_KNOWN_2_21,
        "ops.gradients_util._GradientsHelper": "8d68650e4e0007ab",
    },
    "2.20": _KNOWN_2_21,
    "2.21": _KNOWN_2_21,
}

if __name__ == "__main__":
    print(f"TensorFlow {tf.__version__}")
    for one in RELIED_ON:
        print(f'    "{one.name}": "{source_hash(one)}",')
