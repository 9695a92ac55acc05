"""The map of DeepRec's names: which name goes into which module of TensorFlow, and which file has its definition.

`add` adds names to three kinds of modules:

    modules of TensorFlow 2    names that TensorFlow 1 has and they lack: tf.Session, tf.train.AdagradOptimizer, ...
    modules of both APIs       DeepRec's own names: tf.get_embedding_variable, tf.nn.group_embedding_lookup_sparse, ...
    new modules                tensorflow.contrib, ...kv_variable_ops, ...config_pb2, which are entered in sys.modules

A name that TensorFlow has is never replaced, except those in REPLACED. All names are checked before the first change. So if another
package has one of the names, `add` fails and changes nothing.
"""

import functools
import importlib.util
import sys
import types

import tensorflow as tf

import tf_multitier
from tf_multitier import feature_column
from tf_multitier import train
from tf_multitier._src.options import storage_types
from tf_multitier._src.tensorflow.internals import embedding_ops
from tf_multitier._src.tensorflow.internals import feature_column_v1
from tf_multitier._src.tensorflow.internals import feature_column_v2
from tf_multitier._src.tensorflow.internals import framework_ops
from tf_multitier._src.tensorflow.internals import sequence_feature_column
from tf_multitier._src.tensorflow.internals import variable_pb2
from tf_multitier._src.tensorflow.internals import variable_scope
from tf_multitier._src.tensorflow.internals import variables as tf_variables
from tf_multitier._src.variable import embedding_variable
from tf_multitier.deeprec import checkpoint_names
from tf_multitier.deeprec import collective
from tf_multitier.deeprec import columns
from tf_multitier.deeprec import contrib
from tf_multitier.deeprec import estimator
from tf_multitier.deeprec import fused_lookups
from tf_multitier.deeprec import incremental
from tf_multitier.deeprec import keep_weights
from tf_multitier.deeprec import moved_names
from tf_multitier.deeprec import names
from tf_multitier.deeprec import options
from tf_multitier.deeprec import parquet
from tf_multitier.deeprec import refused_names
from tf_multitier.deeprec import rnn_cells
from tf_multitier.deeprec import session_config
from tf_multitier.deeprec import stage
from tf_multitier.deeprec import work_queue

_v1 = tf.compat.v1

# Names that TensorFlow 2 has with another meaning and that are replaced anyway. DeepRec programs write tf.ones_initializer(tf.float32).
REPLACED = {"ones_initializer": _v1.ones_initializer}

_OUR_OPTIONS = (
    "CBFFilter",
    "CounterFilter",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
)
_DEEPREC_OPTIONS = ("CheckpointOption", "EmbeddingVariableOption", "StorageOption")

# Graph collections. In DeepRec the last two contain initializers. Here they stay empty: `global_variables_initializer` runs all of them.
_COLLECTIONS = {
    "EMBEDDING_VARIABLES": "embedding_variables",
    "EV_INIT_VAR_OPS": "ev_init_var_ops",
    "EV_INIT_SLOT_OPS": "ev_init_slot_ops",
}


def _of(module, *wanted):
    return {name: getattr(module, name) for name in wanted}


def _columns():
    """DeepRec's columns, except those whose name TensorFlow has too."""
    ours = {
        name: getattr(feature_column, name)
        for name in feature_column.__all__
        if not hasattr(_v1.feature_column, name)
    }
    return {**ours, **_of(columns, *columns.COLUMNS)}


def _added():
    """[(module, {name: object})]: DeepRec's names in modules that TensorFlow has."""
    all_options = {**_of(tf_multitier, *_OUR_OPTIONS), **_of(options, *_DEEPREC_OPTIONS)}
    variables = _of(names, *names.VARIABLES)
    new_columns = _columns()
    lookups = {**names.lookups(), **_of(fused_lookups, *fused_lookups.EMBEDDING_OPS)}
    places = [
        (tf_variables, all_options),
        (variable_scope, variables),
        (embedding_ops, lookups),
        (feature_column_v1, new_columns),
        (feature_column_v2, new_columns),
        (sequence_feature_column, new_columns),
        (framework_ops.GraphKeys, _COLLECTIONS),
        (variable_scope.variable_scope, _of(keep_weights, *keep_weights.VARIABLE_SCOPE)),
        (tf, _of(session_config, *session_config.CONFIG)),
        (tf.train, _of(incremental, "MonitoredTrainingSession")),
        *moved_names.places(),
    ]
    for api in (tf, _v1):
        places += [
            (
                api,
                {
                    **all_options,
                    **variables,
                    **_of(stage, *stage.STAGE),
                    **refused_names.of("tensorflow"),
                    "stream": refused_names.stream,
                },
            ),
            (api.data, refused_names.of("tensorflow.data")),
            (api.nn, {**lookups, **refused_names.of("tensorflow.nn")}),
            (api.feature_column, {**new_columns, **refused_names.of("tensorflow.feature_column")}),
            (api.train, {**_of(train, *train.__all__), **_of(stage, *stage.TRAIN)}),
            (api.config.experimental, _of(names, *names.CONFIG)),
        ]
    return places


def _made():
    """{module name: {name: object}}: the modules that TensorFlow lacks. Packages such as `python` are empty."""
    layers = {**_of(contrib, *contrib.LAYERS), **refused_names.of("tensorflow.contrib.layers")}
    estimators = estimator.module()
    checkpoints = checkpoint_names.NAMES
    return {
        "tensorflow.core.framework.embedding": {},
        "tensorflow.core.framework.embedding.config_pb2": storage_types,
        "tensorflow.python.ops.kv_variable_ops": {
            **_of(names, *names.KV_VARIABLE_OPS),
            **_of(names, *names.VARIABLES),
        },
        "tensorflow.python.ops.group_embedding_lookup_ops": names.lookups(),
        "tensorflow.python.ops.fused_embedding_ops": _of(
            fused_lookups, *fused_lookups.EMBEDDING_OPS
        ),
        "tensorflow.python.ops.prefetch": _of(stage, *stage.STAGE),
        "tensorflow.python.distribute.group_embedding_collective_strategy": _of(
            collective, "CollectiveStrategy"
        ),
        "tensorflow.python.training.adagrad_decay": _of(train, "AdagradDecayOptimizer"),
        "tensorflow.python.training.adagrad_decay_v2": _of(train, "AdagradDecayOptimizerV2"),
        "tensorflow.python.training.adam_async": _of(train, "AdamAsyncOptimizer"),
        "tensorflow.python.training.weight_decay_optimizers": _of(train, "AdamWOptimizer"),
        **parquet.MODULES,
        **work_queue.MODULES,
        "tensorflow.estimator": estimators,
        "tensorflow.estimator.export": estimators.export,
        "tensorflow.python.training.incremental_saver": _of(
            incremental, "IncrementalSaver", "_get_incremental_saver"
        ),
        "tensorflow.contrib": {},
        "tensorflow.contrib.feature_column": _of(contrib, *contrib.FEATURE_COLUMN),
        "tensorflow.contrib.framework": checkpoints,
        "tensorflow.contrib.framework.python": {},
        "tensorflow.contrib.framework.python.framework": {},
        "tensorflow.contrib.framework.python.framework.checkpoint_utils": checkpoints,
        "tensorflow.contrib.layers": layers,
        "tensorflow.contrib.rnn": _of(rnn_cells, *rnn_cells.CELLS),
        "tensorflow.contrib.rnn.python": {},
        "tensorflow.contrib.rnn.python.ops": {},
        "tensorflow.contrib.rnn.python.ops.core_rnn_cell": _of(rnn_cells, *rnn_cells.CORE_RNN_CELL),
        "tensorflow.contrib.layers.python": {},
        "tensorflow.contrib.layers.python.layers": layers,
        "tensorflow.contrib.layers.python.layers.embedding_ops": {
            **_of(contrib, *contrib.EMBEDDING_OPS),
            **_of(fused_lookups, *fused_lookups.EMBEDDING_OPS),
        },
        "tensorflow.contrib.layers.python.layers.feature_column": layers,
        "tensorflow.contrib.layers.python.layers.feature_column_ops": layers,
    }


def _is_api_module(value):
    """True for a loaded module of TensorFlow's API, and False for a lazy loader, which would import Keras."""
    return isinstance(value, types.ModuleType) and getattr(type(value), "_load", None) is None


def _missing(new, old, seen):
    """[(module of `new`, {name: object of `old`})]: the public names that `new`, or a module in it, lacks."""
    if id(new) in seen:
        return []
    seen.add(id(new))
    found, places = {}, [(new, {})]
    for name, value in vars(old).items():
        if name.startswith("_") or name == "compat":
            continue
        if name not in vars(new):
            found[name] = value
        elif (
            _is_api_module(value)
            and _is_api_module(vars(new)[name])
            and vars(new)[name] is not value
        ):
            places += _missing(vars(new)[name], value, seen)
    places[0] = (new, found)
    return places


def _is_tensorflows(value):
    home = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None)
    )
    return (home or "").split(".")[0] in ("tensorflow", "keras", "tf_keras")


def _refuse_contrib(place, name):
    """`__getattr__` of a module below `tf.contrib`."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"{place.replace('tensorflow', 'tf', 1)}.{name} does not exist here: TensorFlow 2 has no tf.contrib, and docs/deeprec.md lists "
        "the names of it that work"
    )


def _refuse(what, found):
    raise RuntimeError(
        f"tf_multitier.deeprec.install(): {what}: expected none, TensorFlow's or ours, found {found!r}: "
        "install() adds names to TensorFlow and cannot be used together with another package that does"
    )


def _check(places, made):
    """RuntimeError if another package has one of the names."""
    for place, added in places:
        for name, value in added.items():
            found = vars(place).get(name, value)
            if found is not value and not _is_tensorflows(found):
                _refuse(f"{place.__name__}.{name}", found)
    for name in made:
        if name in sys.modules:
            _refuse(name, sys.modules[name])
    for root in (
        "tensorflow.contrib",
        "tensorflow.core.framework.embedding",
        "tensorflow.python.ops.kv_variable_ops",
    ):
        spec = importlib.util.find_spec(root)
        if spec is not None:
            _refuse(root, spec.origin or list(spec.submodule_search_locations))


def add():
    """Adds the names to TensorFlow. See `deeprec.install`."""
    places, made = _added(), _made()
    _check(places, made)
    for place, added in places + _missing(tf, _v1, set()):
        for name, value in added.items():
            if name not in vars(place):
                setattr(place, name, value)
    for name, value in REPLACED.items():
        setattr(tf, name, value)
    for name, content in made.items():
        module = content
        if not isinstance(content, types.ModuleType):
            module = types.ModuleType(name, "DeepRec's names, from tf_multitier.")
            module.__dict__.update(content)
            if name.startswith("tensorflow.contrib"):
                module.__getattr__ = functools.partial(_refuse_contrib, name)
            if any(other.startswith(name + ".") for other in made):
                module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, module)
    _v1.contrib, _v1.estimator = tf.contrib, tf.estimator
    key = _COLLECTIONS["EMBEDDING_VARIABLES"]
    embedding_variable.MORE_COLLECTIONS.append(key)
    framework_ops.register_proto_function(
        key,
        proto_type=variable_pb2.VariableDef,
        from_proto=embedding_variable.from_proto,
        to_proto=lambda variable, export_scope=None: variable.to_proto(export_scope),
    )
