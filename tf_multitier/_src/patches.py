"""The fourteen places of TensorFlow that `import tf_multitier` wraps or extends for embedding variables.

    optimizer._get_processor             an optimizer's adapter for a variable
    slot_creator._create_slot_var        an optimizer's slot of a variable
    device_setter.STANDARD_PS_OPS        ops that replica_device_setter puts on parameter servers (our handle op is added)
    ResourceVariable.from_proto          a variable of a meta graph
    feature_column._internal_input_layer columns of one input_layer call
    feature_column._FCLinearWrapper.build weights of one column of linear_model
    checkpoint_utils._init_from_checkpoint   replaces a partitioned variable in an assignment map by its parts
    Saver._build_eager                   an eager call of a v1 Saver: refused for variables of graphs
    warm_starting_util._get_grouped_variables  replaces it by its parts in a list of variables
    warm_starting_util._infer_var_name       the name of a variable in a checkpoint
    warm_starting_util._warm_start_var_with_vocab  refuses vocabularies for embedding variables
    autotrackable.AutoTrackable.__setattr__  gives layers of Keras 3 a list of their embedding variables (keras_tracking.py)
    checkpoint.TrackableSaver.restore        a restore of tf.train.Checkpoint
    checkpoint.TrackableSaver.save           a save of it: finds embedding variables in lists of layers of Keras 3

If no embedding variable is involved (in input_layer: no column of a group), each wrapper only calls the original. The first
`group_embedding_column_scope` adds one more wrapper: see column_groups.py. tests/house/test_import_purity.py compares stock graphs byte by
byte before and after the import. _src/tensorflow/internals.py finds the wrapped functions; sources.py next to it has the hashes of their
sources.
"""

import collections.abc

import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.options import handle_attrs
from tf_multitier._src.tensorflow import internals
from tf_multitier._src.training import updates
from tf_multitier._src.variable import embedding_variable
from tf_multitier._src.variable import keras_tracking
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import partitioned

_installed = False
_input_layer = None  # (holds_ours, run), see on_input_layer
_linear_weights = None  # see on_linear_weights


def on_input_layer(holds_ours, run):
    """Sets the handler of input_layer calls with columns of a group.

    Args:
      holds_ours: function of the `feature_columns` argument that returns True if any of them is in a group.
      run: function of (TensorFlow's function, its args, its kwargs). It is called if holds_ours returned True, and returns the
        result of input_layer.
    """
    global _input_layer
    _input_layer = (holds_ours, run)


def on_linear_weights(prepare):
    """Sets the function `prepare(column, variable scope)`, which is called before linear_model makes the weights of a column.

    `prepare` must do nothing for columns that are not ours.
    """
    global _linear_weights
    _linear_weights = prepare


def _get_processor(original):
    def get_processor(v):
        if isinstance(v, embedding_variable.EmbeddingVariable):
            if not v._in_graph_mode:
                raise NotImplementedError(
                    f"embedding variable '{v.variable_name}', which was created eagerly, cannot be trained by optimizers of "
                    "tf.compat.v1.train (AdagradOptimizer and its siblings): use tf_multitier.optimizers.Adagrad or its siblings"
                )
            return updates.EmbeddingProcessor(v)
        if _is_partitioned(v):
            raise ValueError(
                f"gradient of embedding variable '{v.variable_name}': expected its parts, found the whole variable: give the "
                "optimizer a pair for each part of list(variable)"
            )
        return original(v)

    return get_processor


def _create_slot_var(original):
    def create_slot_var(primary, *args, **kwargs):
        if isinstance(primary, embedding_variable.EmbeddingVariable):
            return updates.make_slot(primary)
        return original(primary, *args, **kwargs)

    return create_slot_var


def _internal_input_layer(original):
    def internal_input_layer(features, feature_columns, *args, **kwargs):
        if isinstance(feature_columns, collections.abc.Iterator):
            feature_columns = list(feature_columns)  # iterated twice; the original makes a list too
        if _input_layer is not None and _input_layer[0](feature_columns):
            return _input_layer[1](original, (features, feature_columns, *args), kwargs)
        return original(features, feature_columns, *args, **kwargs)

    return internal_input_layer


def _linear_build(original):
    def build(self, input_shape):
        if _linear_weights is not None:
            _linear_weights(self._feature_column, self._scope)
        return original(self, input_shape)

    return build


def _from_proto(original):
    def from_proto(variable_def, import_scope=None):
        variable = embedding_variable.from_proto(variable_def, import_scope)
        return original(variable_def, import_scope=import_scope) if variable is None else variable

    return from_proto


def _is_partitioned(variable):
    return isinstance(variable, partitioned.PartitionedEmbeddingVariable)


def _init_from_checkpoint(original):
    def init_from_checkpoint(ckpt_dir_or_file, assignment_map):
        is_mapping = isinstance(assignment_map, collections.abc.Mapping)
        pairs = list(assignment_map.items() if is_mapping else assignment_map)
        if any(_is_partitioned(variable) for _, variable in pairs):
            pairs = [
                (name, list(variable) if _is_partitioned(variable) else variable)
                for name, variable in pairs
            ]
            return original(ckpt_dir_or_file, pairs)
        return original(ckpt_dir_or_file, assignment_map if is_mapping else pairs)

    return init_from_checkpoint


def _build_eager(original):
    def build_eager(self, *args, **kwargs):
        for variable in tf.nest.flatten(self._var_list):
            if isinstance(variable, embedding_variable.EmbeddingVariable):
                eager.check_world(variable, "a Saver of embedding variable")
        return original(self, *args, **kwargs)

    return build_eager


def _get_grouped_variables(original):
    def get_grouped_variables(vars_to_warm_start):
        if isinstance(vars_to_warm_start, list) and any(
            _is_partitioned(v) for v in vars_to_warm_start
        ):
            vars_to_warm_start = [
                part
                for v in vars_to_warm_start
                for part in (v.parts if _is_partitioned(v) else [v])
            ]
        return original(vars_to_warm_start)

    return get_grouped_variables


def _infer_var_name(original):
    def infer_var_name(var):
        names = {
            v.variable_name if isinstance(v, embedding_variable.EmbeddingVariable) else None
            for v in var
        }
        return names.pop() if len(names) == 1 and None not in names else original(var)

    return infer_var_name


def _warm_start_var_with_vocab(original):
    def warm_start_var_with_vocab(var, *args, **kwargs):
        for v in var if isinstance(var, list) else [var]:
            if isinstance(v, embedding_variable.EmbeddingVariable):
                raise ValueError(
                    f"embedding variable '{v.variable_name}' has keys, not a vocabulary: expected no entry for it in "
                    "var_name_to_vocab_info, found one"
                )
        return original(var, *args, **kwargs)

    return warm_start_var_with_vocab


def _setattr(original):
    def set_attribute(self, name, value):
        original(self, name, value)
        keras_tracking.new_attribute(self, name, value)

    return set_attribute


def _restore(original):
    def restore(self, save_path, *args, **kwargs):
        if save_path is None or not tf.executing_eagerly():
            return original(self, save_path, *args, **kwargs)
        with object_checkpoint.wholly_or_not_at_all(object_checkpoint.objects_of(self), save_path):
            return original(self, save_path, *args, **kwargs)

    return restore


def _save(original):
    def save(self, *args, **kwargs):
        keras_tracking.find_listed(internals.root_of(self))
        return original(self, *args, **kwargs)

    return save


_WRAPPERS = {
    "optimizer._get_processor": _get_processor,
    "slot_creator._create_slot_var": _create_slot_var,
    "ResourceVariable.from_proto": _from_proto,
    "feature_column._internal_input_layer": _internal_input_layer,
    "feature_column._FCLinearWrapper.build": _linear_build,
    "checkpoint_utils._init_from_checkpoint": _init_from_checkpoint,
    "Saver._build_eager": _build_eager,
    "warm_starting_util._get_grouped_variables": _get_grouped_variables,
    "warm_starting_util._infer_var_name": _infer_var_name,
    "warm_starting_util._warm_start_var_with_vocab": _warm_start_var_with_vocab,
    "autotrackable.AutoTrackable.__setattr__": _setattr,
    "checkpoint.TrackableSaver.restore": _restore,
    "checkpoint.TrackableSaver.save": _save,
}


def install():
    """Installs the wrappers. Further calls do nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    for name, wrapper in _WRAPPERS.items():
        internals.wrap(name, wrapper)
    for op_type in handle_attrs.HANDLE_OP_TYPES:
        internals.place_on_parameter_servers(op_type)
