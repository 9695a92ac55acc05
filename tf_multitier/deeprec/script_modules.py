"""The modules below `tensorflow` that only a script gets: those where DeepRec gives one of TensorFlow's names more arguments.

    from tensorflow.python.ops import embedding_ops
    embedding_ops.embedding_lookup(table, ids, blocknums=[2, 1])

TensorFlow's own modules cannot be changed, because TensorFlow and installed packages use them. So a script gets another module of the
same name, with the content of TensorFlow's and with `_content()` in place of names of the same name. The packages around it
(`tensorflow.python.ops`, `tensorflow.python`) are such modules, too.
"""

import functools
import importlib
import types

from tf_multitier import feature_column
from tf_multitier.deeprec import checkpoint_names
from tf_multitier.deeprec import columns
from tf_multitier.deeprec import incremental
from tf_multitier.deeprec import lookup_arguments
from tf_multitier.deeprec import session_config

# Functions of columns.py that replace TensorFlow's.
_WITH_DEEPRECS_ARGUMENTS = (
    "embedding_column",
    "input_layer",
    "linear_model",
    "shared_embedding_columns",
)

COLUMNS = {
    **{name: getattr(feature_column, name) for name in feature_column.__all__},
    **{name: getattr(columns, name) for name in _WITH_DEEPRECS_ARGUMENTS},
}
TRAIN = {
    "MonitoredTrainingSession": incremental.MonitoredTrainingSession,
    **checkpoint_names.NAMES,
}
CONFIG = {name: getattr(session_config, name) for name in session_config.CONFIG}


def _content():
    """{module: {name: object}}. Names that the module lacks are left out, except those of `CONFIG`."""
    wanted = {
        "tensorflow.python.feature_column.feature_column": COLUMNS,
        "tensorflow.python.feature_column.feature_column_v2": COLUMNS,
        "tensorflow.python.ops.embedding_ops": lookup_arguments.LOOKUPS,
        "tensorflow.python.training.checkpoint_utils": checkpoint_names.NAMES,
        "tensorflow.python.training.monitored_session": TRAIN,
    }
    found = {"tensorflow.core.protobuf.config_pb2": CONFIG}
    for name, content in wanted.items():
        module = importlib.import_module(name)
        found[name] = {key: value for key, value in content.items() if hasattr(module, key)}
    return found


def over(module, name, content):
    """A module of the given name that has the content of `module`, overridden by `content`. It also has what `module` gets later."""
    made = types.ModuleType(name, module.__doc__)
    more = {"__name__": name, "__getattr__": functools.partial(getattr, module)}
    made.__dict__.update({**vars(module), **more, **content})
    return made


def make():
    """{name: module}: the modules of `_content` and the packages around them, for one script."""
    made = {}
    for name, content in _content().items():
        module = made[name] = over(importlib.import_module(name), name, content)
        while name.count(".") > 1:
            name, _, child = name.rpartition(".")
            if name not in made:
                made[name] = over(importlib.import_module(name), name, {})
            setattr(made[name], child, module)
            module = made[name]
    return made
