"""Keras 3 layers over embedding variables, and optimizers that train them with a model.

    from tf_multitier.keras import Embedding, GroupEmbedding, with_rows

    Embedding(16, optimizer=tf_multitier.optimizers.Adagrad(0.1))     the layer trains its rows; the model has any optimizer
    model.compile(with_rows(keras.optimizers.Adam(1e-3)))             the model's optimizer trains rows and dense weights

Importing this module wraps Keras' functions that load weights into a model (keras_internals.py): a model with embedding layers is
loaded wholly or not at all. For other models they call Keras alone. It needs Keras 3 with the TensorFlow backend.
"""

import keras

if keras.__version__.split(".")[0] != "3" or keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"tf_multitier.keras needs Keras 3 with the TensorFlow backend, found Keras {keras.__version__} with the backend "
        f"'{keras.backend.backend()}': set KERAS_BACKEND=tensorflow before Keras is imported"
    )

from tf_multitier.keras.group_embedding import GroupEmbedding
from tf_multitier.keras.layers import Embedding
from tf_multitier.keras.optimizers import with_rows
from tf_multitier.keras.retrieval import Retrieval
from tf_multitier.keras.statistics import StatisticsCallback

__all__ = ["Embedding", "GroupEmbedding", "Retrieval", "StatisticsCallback", "with_rows"]


def __dir__():
    return sorted(__all__)
