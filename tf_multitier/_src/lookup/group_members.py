"""One member of a grouped lookup: its variable and its ids, checked and brought into the form that the op takes.

Every error names the member.
"""

import numpy as np
import tensorflow as tf

from tf_multitier import lookup
from tf_multitier._src.lookup import padding
from tf_multitier._src.lookup.lookup_member import Member
from tf_multitier._src.options import key_types
from tf_multitier._src.options.key_types import checked_keys
from tf_multitier._src.tensorflow.internals import is_resource_variable
from tf_multitier._src.tensorflow.internals import PartitionedVariable
from tf_multitier._src.tensorflow.internals import variable_accessed
from tf_multitier._src.variable import table_numbers
from tf_multitier._src.variable.embedding_variable import only_parts
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.partitioned import StoredParts
from tf_multitier._src.variable.queries import accessed


def first_dimension(shape):
    """The first dimension of a static shape; None if it is unknown or the shape is a scalar's."""
    return shape.as_list()[0] if shape.rank else None


def norm(target, max_norm):
    try:
        return lookup.max_norm_attribute(max_norm)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{target.where}: {error}") from None


def padding_key(target, padding_idx):
    """A member's padding_idx as padding.key_of gives it. Ids of static variables are int64."""
    key_dtype = tf.int64 if target.variable is None else target.variable.key_dtype
    return padding.key_of(key_dtype, padding_idx, f"{target.where}: padding_idx")


def resolve(param, number):
    """A Member with the fields that describe the variable. The fields for the ids are still None."""
    where = f"member {number}"
    if (
        is_embedding_variable(param)
        or isinstance(param, StoredParts)
        or (isinstance(param, (list, tuple)) and param and is_embedding_variable(param[0]))
    ):
        try:
            variable = lookup.one_variable(param)
            accessed(variable)
            table_numbers.checked(variable, keys=None, tables=None)  # a group has none
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{where}: {error}") from None
        if len(variable.parts) < variable.num_partitions and variable.world is None:
            raise ValueError(f"{where}: {only_parts(variable.variable_name)}")
        return _member(
            f"{where} ('{variable.variable_name}')",
            "table",
            variable.parts,
            variable,
            variable.embedding_dim,
        )
    if isinstance(param, PartitionedVariable):
        name, parts = param.name, list(param)
    elif isinstance(param, (list, tuple)) and param:
        name, parts = getattr(param[0], "name", "list of parts"), list(param)
    else:
        name, parts = getattr(param, "name", type(param).__name__), [param]
    where = f"{where} ('{name.partition(':')[0]}')"
    source = "variable" if all(is_resource_variable(part) for part in parts) else "tensor"
    if source == "tensor":
        try:
            parts = [tf.convert_to_tensor(part) for part in parts]
        except (TypeError, ValueError):
            raise TypeError(
                f"{where}: expected an embedding variable, or a float32 variable or its parts, found {param!r}"
            ) from None
    for part in parts:
        if source == "variable" and part.trainable:
            variable_accessed(part)  # the op reads the handle, which says nothing to a tape
        if part.dtype.base_dtype != tf.float32:
            raise TypeError(
                f"{where}: params: expected float32, found {part.dtype.base_dtype.name}"
            )
        if (
            part.shape.rank != 2
            or part.shape.as_list()[1] is None
            or part.shape.as_list()[1:] != parts[0].shape.as_list()[1:]
        ):
            raise ValueError(
                f"{where}: params: expected shape [rows, dim] with the same dim in each part, found {part.shape}"
            )
    return _member(where, source, parts, None, parts[0].shape.as_list()[1])


def _member(where, source, parts, variable, dim):
    return Member(where, source, parts, variable, dim, *[None] * 8)


def keys_of(target, ids, what="ids"):
    """The ids of a member as int64 or int32 keys. TypeError, with the member's name, if they are not integers."""
    try:
        if target.variable is not None:
            ids = checked_keys(target.variable, ids, what)
        else:
            ids = tf.convert_to_tensor(ids, name=what)
            if not ids.dtype.is_integer or ids.dtype == tf.uint64:
                raise TypeError(f"{what}: expected integers, found {ids.dtype.name}")
    except TypeError as error:
        raise TypeError(f"{target.where}: {error}") from None
    return ids if ids.dtype in (tf.int64, tf.int32) else key_types.to_int64(ids)


def entries(target, ids, weights, is_sequence, padding_key=None):
    """(keys, indices or splits, dense shape or None, weights or None, form) of a member, without entries that are padding."""
    where = target.where
    if not isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(
            f"{where}: sp_ids: expected a SparseTensor or a RaggedTensor, found {type(ids).__name__}"
        )
    if weights is not None and type(weights) is not type(ids):
        raise TypeError(
            f"{where}: weights: expected a {type(ids).__name__} as the ids are, or None, found {type(weights).__name__}"
        )
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
            raise ValueError(
                f"{where}: ragged ids: expected shape [batch, (any)], found {ids.shape}: merge their inner "
                "dimensions, ids.merge_dims(1, -1)"
            )
        form = "ragged_sequence" if is_sequence else "ragged"
        indices, shape = tf.cast(ids.row_splits, tf.int64), None
        if is_sequence and padding_key is not None:  # the other entries stay in their places
            sparse = lookup.from_ragged(ids, None)[0]
            form, indices, shape = "sequence", sparse.indices, sparse.dense_shape
    else:
        rank = ids.dense_shape.shape.num_elements()
        if rank not in (None, 2):
            raise ValueError(f"{where}: sp_ids: expected rank 2, found rank {rank}")
        form = "sequence" if is_sequence else "sparse"
        indices, shape = ids.indices, ids.dense_shape
    keys = keys_of(target, ids.values, "sp_ids")
    if weights is not None:
        weights = _weights(target, ids, keys, weights)
    if padding_key is not None:
        keys, indices, weights = _without_padding(padding_key, keys, indices, weights, form)
    return keys, indices, shape, weights, form


def _without_padding(padding_key, keys, indices, weights, form):
    """(keys, indices or splits, weights or None) of a member without padding."""
    if weights is not None:
        weights = lookup.one_a_key(weights, keys)  # before a choice among keys
    if form != "ragged":
        return padding.without(padding_key, keys, indices, weights)
    kept_before = tf.cumsum(tf.cast(padding.is_id(keys, padding_key), tf.int64))
    splits = tf.gather(tf.concat([[0], kept_before], 0), indices)
    keys, weights = padding.without(padding_key, keys, weights)
    return keys, splits, weights


def padded(member, padding_key):
    """A member with dense ids as one with a row for each id: without an entry for padding, whose values are zeros then."""
    keys = tf.reshape(member.keys, [-1])
    splits = tf.range(tf.size(keys, tf.int64) + 1)
    if padding_key is not None:
        keys, splits, _ = _without_padding(padding_key, keys, splits, None, "ragged")
    return member._replace(form="ragged", combiner="sum", keys=keys, indices=splits)


def _weights(target, ids, keys, weights):
    """The weights of a member, float32 [n]."""
    where = target.where
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(f"{where}: weights: expected floats, found {weights.dtype.name}")
    values = tf.cast(weights.values, tf.float32)
    if not keys.shape.is_compatible_with(values.shape):
        raise ValueError(
            f"{where}: weights: expected {first_dimension(keys.shape)} values, one for each of sp_ids, found "
            f"{first_dimension(values.shape)}"
        )
    _check_places(where, ids, weights)
    return values


def _check_places(where, ids, weights):
    """ValueError if static values show that the weights have other indices, splits or another dense shape than the ids."""
    if isinstance(ids, tf.RaggedTensor):
        pairs = [(ids.row_splits, weights.row_splits, "row splits")]
    else:
        pairs = [
            (ids.indices, weights.indices, "indices"),
            (ids.dense_shape, weights.dense_shape, "dense shape"),
        ]
    for of_ids, of_weights, what in pairs:
        if of_ids is of_weights:
            continue
        expected, found = tf.get_static_value(of_ids), tf.get_static_value(of_weights)
        if (
            expected is not None
            and found is not None
            and np.shape(expected) == np.shape(found)
            and (expected != found).any()
        ):
            raise ValueError(
                f"{where}: weights: expected {what} {expected.tolist()}, as the ids have, found {found.tolist()}"
            )
