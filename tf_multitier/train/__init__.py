"""Optimizers, session hooks and a saver that TensorFlow lacks.

The optimizers train embedding variables, by the engine's update rules, and ordinary variables.

Use them like the optimizers of `tf.compat.v1.train`, which also train embedding variables.
"""

from tf_multitier._src.variable.saver import convert_on_restore
from tf_multitier._src.variable.saver import resize_on_restore
from tf_multitier.train.adagrad_decay import AdagradDecayOptimizer
from tf_multitier.train.adagrad_decay import AdagradDecayOptimizerV2
from tf_multitier.train.adam_async import AdamAsyncOptimizer
from tf_multitier.train.adamw import AdamWOptimizer
from tf_multitier.train.incremental_saver import IncrementalSaver
from tf_multitier.train.incremental_saver_hook import IncrementalSaverHook
from tf_multitier.train.rowwise_adagrad import RowwiseAdagradOptimizer
from tf_multitier.train.statistics_hook import StatisticsHook

__all__ = [
    "AdagradDecayOptimizer",
    "AdagradDecayOptimizerV2",
    "AdamAsyncOptimizer",
    "AdamWOptimizer",
    "IncrementalSaver",
    "IncrementalSaverHook",
    "RowwiseAdagradOptimizer",
    "StatisticsHook",
    "convert_on_restore",
    "resize_on_restore",
]


def __dir__():
    return sorted(__all__)
