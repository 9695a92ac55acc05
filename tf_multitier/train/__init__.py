"""Optimizers that TensorFlow lacks: for embedding variables by the engine's rules, and for ordinary variables.

They are used like those of `tf.compat.v1.train`, whose optimizers train embedding variables as they are.
"""

from tf_multitier.train.adagrad_decay import AdagradDecayOptimizer
from tf_multitier.train.adagrad_decay import AdagradDecayOptimizerV2
from tf_multitier.train.adam_async import AdamAsyncOptimizer
from tf_multitier.train.adamw import AdamWOptimizer
from tf_multitier.train.rowwise_adagrad import RowwiseAdagradOptimizer

__all__ = ["AdagradDecayOptimizer", "AdagradDecayOptimizerV2", "AdamAsyncOptimizer", "AdamWOptimizer",
           "RowwiseAdagradOptimizer"]
