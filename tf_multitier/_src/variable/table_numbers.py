"""Table numbers of keys: they choose among the initializers of a variable whose `initializer` is a list.

    embedding_lookup(variable, ids, tables=numbers)
      checked()      int64, shaped as the ids
      the op         the initial value of a key without a row
      record()       the gradient: the numbers of its indices
      of_gradient()  the update: the numbers of the indices that it got, -1 where they are not known

Numbers are found as occurrence counts are: in graphs by the name of the indices, behind identities, reshapes and concatenations;
eagerly as an attribute of the indices. Eagerly, TensorFlow concatenates the gradients of several lookups into new tensors. A handle
therefore has a list, for each thread, of the gradients since its last update, whose keys must be the parts of such a concatenation.
"""

import collections
import threading

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.tensorflow.internals import EagerTensor

_ATTRIBUTE = "_tf_multitier_tables"
_MOST_LOOKUPS = 256  # of one variable between two of its updates, in eager execution


def checked(variable, keys, tables):
    """The table numbers of a lookup as a list for its op: int64, shaped as `keys`; or no tensor.

    Raises:
      TypeError: they are no integers.
      ValueError: the variable has several tables and there are no numbers, or they have another shape than the keys.
    """
    name = f"embedding variable '{variable.variable_name}': tables"
    if tables is None:
        if variable.num_tables > 1:
            raise ValueError(
                f"{name}: expected a table number for each id, because its initializer is a list of {variable.num_tables}; found "
                "none: pass tables= to tf_multitier.lookup.embedding_lookup"
            )
        return []
    if not tf.is_tensor(tables):
        tables = np.asarray(tables)
        tables = tables if tables.size else tables.astype(np.int64)
    tables = tf.convert_to_tensor(tables)
    if not tables.dtype.is_integer:
        raise TypeError(f"{name}: expected integers, found {tables.dtype.name}")
    if not tables.shape.is_compatible_with(keys.shape):
        raise ValueError(
            f"{name}: expected the shape of the ids, {keys.shape}, found {tables.shape}"
        )
    tables = tf.cast(tables, tf.int64)
    is_divided = len(variable.parts) > 1 or variable.world is not None
    if is_divided and not tables.shape.is_fully_defined():
        message = f"{name}: expected the shape of the ids"
        check = tf.debugging.assert_equal(tf.shape(tables), tf.shape(keys), message=message)
        with tf.control_dependencies([] if check is None else [check]):
            tables = tf.identity(tables)
    return [tables]


def record(indices, tables, handle):
    """Records the numbers, int64 of the shape of `indices`, of a gradient of one lookup."""
    if not isinstance(indices, EagerTensor):
        graph_state.state_of(indices.graph).tables[indices.name] = tables
        return
    setattr(indices, _ATTRIBUTE, tables)
    _lookups_of(handle).append((indices, tables))


def forget(handle):
    """Eagerly, an update has the numbers of a lookup's plan (exchange.py)."""
    if hasattr(handle, _ATTRIBUTE):
        _lookups_of(handle).clear()


def _lookups_of(handle):
    """Eagerly: the (indices, table numbers) of the gradients of this thread since its last update of the variable."""
    of_threads = vars(handle).setdefault(_ATTRIBUTE, threading.local())
    return vars(of_threads).setdefault("lookups", collections.deque(maxlen=_MOST_LOOKUPS))


def of_gradient(keys, handle):
    """The numbers of the entries of a gradient, as a list for the op of the update: int64 [n], -1 where not known; or no tensor.

    keys: the gradient's indices, in parts: those of an update in a graph; eagerly one.
    """
    if isinstance(keys[0], EagerTensor):
        lookups = list(_lookups_of(handle))
        _lookups_of(handle).clear()
        found = [getattr(keys[0], _ATTRIBUTE, None)]
        if found[0] is None:
            found = [_of_concatenation(keys[0], lookups)]
    else:
        found = [_of_indices(part) for part in keys]
    if all(numbers is None for numbers in found):
        return []
    return [_joined(found, keys)]


def _joined(tables, keys):
    tables = [_unknown(part) if found is None else found for found, part in zip(tables, keys)]
    return tables[0] if len(tables) == 1 else tf.concat(tables, 0)


def _unknown(keys):
    return tf.fill([tf.size(keys)], tf.constant(-1, tf.int64))


def _of_concatenation(keys, lookups):
    """Eagerly: the numbers of keys that are those of several lookups, one after the other; None if they are not.

    A gradient that was computed before and not applied may have the same keys: those of the newest lookups are tried first.
    """
    lookups = [(each.numpy(), tables) for each, tables in lookups if each.shape[0]]
    newest, left = [], keys.shape[0]
    for lookup in reversed(lookups):
        if left > 0:
            newest.insert(0, lookup)
            left -= len(lookup[0])
    found = _parts_of(keys.numpy(), newest)
    return found if found is not None else _parts_of(keys.numpy(), lookups)


def _parts_of(all_keys, lookups):
    found, at = [], 0
    while at < len(all_keys):
        fits = [i for i, (part, _) in enumerate(lookups) if _is_prefix(part, all_keys[at:])]
        if not fits:
            return None
        part, tables = lookups.pop(fits[0])
        at += len(part)
        found.append(tables)
    return tf.concat(found, 0) if found else None


def _is_prefix(part, whole):
    return np.array_equal(part, whole[: len(part)])


def _of_indices(indices):
    """In a graph: the numbers of the indices of a gradient, or None."""
    found = graph_state.state_of(indices.graph).tables.get(indices.name)
    if found is not None:
        return found
    op = indices.op
    if op.type in ("Identity", "Reshape", "Cast", "Bitcast"):
        return _of_indices(op.inputs[0])
    if op.type in ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"):
        tables = _of_indices(op.inputs[0]) if indices.value_index == 0 else None
        if tables is None:
            return None
        positions = tf.range(tf.size(op.outputs[1]))
        first = tf.math.unsorted_segment_min(positions, op.outputs[1], tf.size(indices))
        return tf.gather(tables, first)
    if op.type == "ConcatV2":
        parts = list(op.inputs[:-1])
        tables = [_of_indices(part) for part in parts]
        if any(numbers is not None for numbers in tables):
            return _joined(tables, parts)
    return None
