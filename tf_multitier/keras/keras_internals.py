"""All that tf_multitier uses of Keras beyond its public API. No other file of the package names keras.src.

Each function says what it gives where a version of Keras does not have it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import types
import typing

import keras
import tensorflow as tf


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


def writes_old_hdf5() -> bool:
    """Whether Keras writes the configuration of a model to an HDF5 file, `model.save("m.h5")`."""
    state = importlib.import_module("keras.src.backend.common.global_state")
    return bool(state.get_global_attribute("use_legacy_config", False))


def own_weights(layer: typing.Any) -> tuple:
    """The lists of a layer's own weights: those that are trained, and the others. Its sublayers have their own."""
    return layer._trainable_variables, layer._non_trainable_variables


def track_weight(layer: typing.Any, weight: typing.Any) -> bool:
    """Makes a keras.Variable a weight of a layer, which may be built. False if it is one already."""
    tracker = layer._tracker
    stores = ("trainable_variables", "non_trainable_variables")
    if any(tracker.is_in_store(store, weight) for store in stores):
        return False
    locked, tracker.locked = tracker.locked, False
    tracker.add_to_store(stores[not weight.trainable], weight)
    tracker.locked = locked
    return True


def untrack_weight(layer: typing.Any, weight: typing.Any) -> None:
    """Undoes `track_weight`."""
    layer._tracker.untrack(weight)


def sublayers(layer: typing.Any) -> list:
    """The layers that a layer has, in attributes, lists, tuples and dicts, in the order in which it got them."""
    return list(layer._layers)


def dependency(layer: typing.Any, name: str) -> typing.Any:
    """What `track_dependency` tracked under a name; None if nothing."""
    layer._maybe_initialize_trackable()
    return layer._lookup_dependency(name)


def track_dependency(layer: typing.Any, name: str, values: list) -> None:
    """Lets tf.train.Checkpoint find a list of Trackables in a layer."""
    layer._maybe_initialize_trackable()
    layer._track_trackable(tf.__internal__.tracking.wrap(list(values)), name, overwrite=True)


def layers_of(layer: typing.Any) -> list:
    """A layer and all layers in it."""
    return layer._flatten_layers()


def called_layer() -> typing.Any:
    """The outermost layer that is being called in this thread, for example a model; None outside of calls."""
    state = importlib.import_module("keras.src.backend.common.global_state")
    context = state.get_global_attribute("current_call_ctx")
    return None if context is None else context.entry_layer


def is_symbolic_call() -> bool:
    """Whether Keras calls layers only to learn the shapes of their outputs."""
    scopes = importlib.import_module("keras.src.backend.common.symbolic_scope")
    return scopes.in_symbolic_scope()


def model_in_own_step() -> typing.Any:
    """The model whose call or loss Keras' own `train_step` computes; None outside of it, and for metrics, which train nothing."""
    code = keras.Model.train_step.__code__
    frame: typing.Any = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        if frame.f_code.co_name == "compute_metrics":
            return None
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def with_gradients(optimizer: typing.Any, grads: list, variables: list) -> tuple:
    """(gradients, variables) without the variables that have none. Keras warns about these, and raises a ValueError if all are."""
    return optimizer._filter_empty_gradients(grads, variables)


def is_decayed(optimizer: typing.Any, variable: typing.Any) -> bool:
    """Whether a variable has the weight decay of an optimizer: `exclude_from_weight_decay` takes some out."""
    return optimizer._use_weight_decay(variable)


def copy_exclusions(source: typing.Any, target: typing.Any) -> None:
    """Gives an optimizer the exclusions of another one (`exclude_from_weight_decay`), which its configuration lacks."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def make_loss_scale_take_rows(optimizer: typing.Any) -> None:
    """Makes a LossScaleOptimizer, of this object alone, check the values of gradients of rows and divide them by the scale.

    Keras' own check makes rows dense, and it leaves the gradients of variables with `overwrite_with_gradient` as they are.
    """
    if "check_finite" in vars(optimizer):
        return
    own, is_overwritten = optimizer.check_finite, optimizer._overwrite_variable_with_gradient
    values = lambda g: g.values if isinstance(g, tf.IndexedSlices) else g
    check = lambda grads: own([values(g) for g in grads])
    is_left = lambda v: is_overwritten(v) and not hasattr(v, "embedding_variable")
    object.__setattr__(optimizer, "check_finite", check)
    object.__setattr__(optimizer, "_overwrite_variable_with_gradient", is_left)


def _apart(variables, averages):
    """(weights that have rows, other weights, averages of the others)."""
    rows = [v for v in variables if hasattr(v, "embedding_variable")]
    others = [(v, a) for v, a in zip(variables, averages) if not hasattr(v, "embedding_variable")]
    return rows, [v for v, _ in others], [a for _, a in others]


def trains_rows_alone(optimizer: typing.Any) -> bool:
    """Whether an optimizer was built for weights that all have rows."""
    return all(hasattr(v, "embedding_variable") for v in optimizer._trainable_variables)


def _with_averages(optimizer, variables, averages):
    """What Keras' functions for averages need of an optimizer, with these variables and averages in place of its own."""
    return types.SimpleNamespace(
        _trainable_variables=variables,
        _model_variables_moving_average=averages,
        _distribution_strategy=optimizer._distribution_strategy,
    )


def make_overwrite_take_rows(optimizer: typing.Any, of_rows: typing.Callable) -> None:
    """Makes an optimizer, this object alone, call of_rows(optimizer, weights) to replace rows by their averages. Keras knows none."""
    name = "_overwrite_model_variables_with_average_value"
    if name in vars(optimizer):
        return
    own = getattr(type(optimizer), name)

    def overwrite(variables):
        rows, others, averages = _apart(variables, optimizer._model_variables_moving_average)
        own(_with_averages(optimizer, others, averages), others)
        of_rows(optimizer, rows)

    object.__setattr__(optimizer, name, overwrite)


def wrap_swaps(swap: typing.Callable, forget: typing.Callable) -> None:
    """Makes keras.callbacks.SwapEMAWeights call swap(optimizer, weights) where it exchanges weights and averages, and forget(...) where
    it makes weights the averages, for weights that have rows. Where a version of Keras has no such callback, nothing calls them.
    """
    callback = getattr(keras.callbacks, "SwapEMAWeights", None)
    for name, of_rows in (("_tf_swap_variables", swap), ("_tf_finalize_ema_values", forget)):
        if hasattr(callback, name):
            setattr(callback, name, _also_for_rows(getattr(callback, name), of_rows))


def _also_for_rows(own, of_rows):
    @functools.wraps(own)
    def both(callback, optimizer):
        its = optimizer._trainable_variables, optimizer._model_variables_moving_average
        rows, others, averages = _apart(*its)
        if not rows:
            own(callback, optimizer)
            return
        of_rows(optimizer, rows)  # first: it may fail, and then nothing changes
        # Keras 3.12 takes the variables from the model.
        model = types.SimpleNamespace(trainable_variables=others)
        own(types.SimpleNamespace(model=model), _with_averages(optimizer, others, averages))

    return both


# The functions that load weights into a model that exists: (module, name, place of the model among the arguments). Where a version
# of Keras lacks one, a load that it does may fail half-way.
LOADS = [
    ("keras.src.saving.saving_lib", "load_weights_only", 0),
    ("keras.src.legacy.saving.legacy_h5_format", "load_weights_from_hdf5_group", 1),
    ("keras.src.legacy.saving.legacy_h5_format", "load_weights_from_hdf5_group_by_name", 1),
]


def wrap_loads(wrapped: typing.Callable) -> None:
    """Replaces each function of LOADS by wrapped(place, the function)."""
    for module, name, place in LOADS:
        with contextlib.suppress(ImportError, AttributeError):
            holder = importlib.import_module(module)
            setattr(holder, name, wrapped(place, getattr(holder, name)))


def wrap_logs(wrapped: typing.Callable) -> None:
    """Replaces the function that gives models their logs at the end of an epoch, and of evaluate(), by wrapped(it).

    It is function(model, logs of the last step) -> logs: those of the metrics, where they have the same names.

    Raises:
      NotImplementedError: this version of Keras has none.
    """
    own = getattr(keras.Model, "_get_metrics_result_or_logs", None)
    if own is None:
        raise NotImplementedError(
            f"collective training: expected a Keras whose logs of an epoch are those of its metrics, found {keras.__version__}: install "
            "a newer one"
        )
    keras.Model._get_metrics_result_or_logs = wrapped(own)
