"""DeepRec programs on TensorFlow 2.21, unchanged.

    python3 -m tf_multitier.deeprec SCRIPT [ARGS]      runs a script (script.py): `import tensorflow` there is TensorFlow 1's API
    tf_multitier.deeprec.install()                     inside a program: adds the missing names to `tensorflow`

`import tf_multitier` alone does none of this. name_map.py lists which names are added where. docs/deeprec.md is the page for users.
"""

import tensorflow as tf

from tf_multitier._src.execution.graph_state import refuse_eager
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import deprecations_silenced
from tf_multitier.deeprec import incremental
from tf_multitier.deeprec import name_map
from tf_multitier.deeprec import parquet
from tf_multitier.deeprec import server_protocol
from tf_multitier.deeprec import session_config

__all__ = ["install"]


def __dir__():
    return sorted(__all__)


_installed = False


def install(v1_behavior: bool = True) -> None:
    """Adds the names that DeepRec programs use to TensorFlow. A second call changes nothing.

    A name is added only if `tensorflow` or `tensorflow.compat.v1` lacks it, with one exception: `tf.ones_initializer` is replaced by
    TensorFlow 1's, because DeepRec programs pass it a dtype. From then on, all Sessions of the process use soft placement: an op
    without a kernel for its device runs on the CPU.

    Args:
      v1_behavior: True: also switch the process to graphs and Sessions, as `tf.compat.v1.disable_v2_behavior()` does, but keep
        TensorFlow 2's control flow and resource variables, which embedding variables in a `tf.cond` need. False: add names only.

    Raises:
      RuntimeError: called in a tf.function, or another package already defines one of the names. Nothing has changed.
    """
    global _installed
    v1_behavior = boolean("install: v1_behavior", v1_behavior)
    if not tf.executing_eagerly():
        refuse_eager("tf_multitier.deeprec.install()")
    if not _installed:
        name_map.add()
        session_config.install()
        incremental.install()
        server_protocol.install()
        parquet.install()
        _installed = True
    if v1_behavior:
        with deprecations_silenced():
            tf.compat.v1.disable_v2_behavior()
            tf.compat.v1.enable_resource_variables()
            tf.compat.v1.enable_control_flow_v2()
