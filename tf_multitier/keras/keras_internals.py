"""All that tf_multitier uses of Keras beyond its public API. No other file of the package names keras.src.

Each function says what it gives where a version of Keras does not have it.
"""

from __future__ import annotations

import importlib
import sys
import typing


def seed_of_program() -> int | None:
    """The seed of keras.utils.set_random_seed; None without one, or where Keras does not tell it."""
    try:
        module = importlib.import_module("keras.src.utils.rng_utils")
    except ImportError:
        return None
    return getattr(module, "get_random_seed", lambda: None)()


def calling_layer_of_keras_2(package: str) -> typing.Any:
    """The layer of Keras 2 whose `call` runs; None without one. package: "tf_keras" or "tensorflow.python.keras"."""
    source = "tf_keras.src" if package == "tf_keras" else package
    module = sys.modules.get(f"{source}.engine.base_layer_utils")
    return None if module is None else module.call_context().layer


# The module whose functions save and load archives: part_files.py looks for it among the callers. Without it, part_files.py finds
# only the paths that an archive itself knows.
SAVING_MODULE = "keras.src.saving.saving_lib"
