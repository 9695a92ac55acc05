"""From feature columns to one lookup of many of them.

A dense column of TensorFlow looks up the ids of its categorical column itself. To look up many columns together, each dense column
is copied over a `_Collecting` categorical column, which wraps the ids as `PendingIds`:

1. TensorFlow's column creates or finds its variable, with the usual name and in the usual order.
2. It calls TensorFlow's lookup with the variable and the wrapped ids.
3. TensorFlow's public dispatch routes that call here, by the type of the ids. It returns an `Asked` instead of a tensor.
4. `look_up` replaces the `Asked` of all columns of a group by their values, with one grouped op (nn.py). Columns that are neighbours
   in the layer share one tensor of concatenated values.

Values of embedding variables have the same bits as without a group. Values of static variables are equal up to rounding: TensorFlow
adds ten ids or more eight at a time and multiplies by a reciprocal for "mean" and "sqrtn"; the group adds in order of occurrence
and divides.
"""

import collections

import tensorflow as tf

from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier._src.tensorflow.internals import feature_column_v1
from tf_multitier._src.tensorflow.internals import feature_column_v2
from tf_multitier._src.tensorflow.internals import PartitionedVariable
from tf_multitier._src.tensorflow.internals import register_dispatchable_type
from tf_multitier._src.variable.partitioned import is_embedding_variable
from tf_multitier._src.variable.partitioned import StoredParts

_v1 = tf.compat.v1

# Categorical columns whose ids are never negative. For other columns TensorFlow drops negative ids.
_NEVER_NEGATIVE = (
    feature_column_v2.HashedCategoricalColumn,
    feature_column_v2.CrossedColumn,
    feature_column_v2.BucketizedColumn,
    feature_column_v1._HashedCategoricalColumn,
    feature_column_v1._CrossedColumn,
    feature_column_v1._BucketizedColumn,
)

# The lookup that a column asked for. variable: an embedding or static variable. given: its ids as a SparseTensor. ids, weights:
# the entries to look up, of rank 2; weights may be None. outer: the ids' dense shape without the last dimension, or None if that
# is [batch].
Asked = collections.namedtuple(
    "Asked", ["variable", "given", "ids", "weights", "combiner", "max_norm", "outer"]
)


@register_dispatchable_type
class PendingIds:
    """A SparseTensor of ids. Its type makes TensorFlow's dispatch route the lookup of a column to this module."""

    def __init__(self, ids, may_be_negative):
        self.ids = ids
        self.may_be_negative = may_be_negative

    @property
    def dense_shape(self):  # the columns ask for the rank
        return self.ids.dense_shape


def _may_be_negative(column):
    """Whether ids of a categorical column may be negative."""
    while hasattr(column, "categorical_column"):
        column = column.categorical_column
    return not isinstance(column, _NEVER_NEGATIVE)


class _Collecting(feature_column_v1._CategoricalColumn):
    """A categorical column, or a sequence column, that wraps its ids as PendingIds."""

    def __init__(self, column):
        self._column = column
        self._may_be_negative = _may_be_negative(column)

    @property
    def name(self):
        return self._column.name

    @property
    def _parse_example_spec(self):
        return self._column._parse_example_spec

    def _transform_feature(self, inputs):
        return inputs.get(self._column)

    @property
    def _num_buckets(self):
        return self._column._num_buckets

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        ids, weights = self._column._get_sparse_tensors(inputs, weight_collections, trainable)
        return feature_column_v1._CategoricalColumn.IdWeightPair(
            PendingIds(ids, self._may_be_negative), weights
        )


def ask(column, inputs, weight_collections, trainable):
    """The lookup of `column` as an Asked, or a tensor of values if the lookup cannot be grouped."""
    collecting = column._replace(categorical_column=_Collecting(column.categorical_column))
    return collecting._get_dense_tensor(
        inputs, weight_collections=weight_collections, trainable=trainable
    )


def ask_for(column, variable, ids, weights, combiner):
    """The safe sparse lookup of a categorical column's ids in `variable`: an Asked, to be looked up later with others.

    If the lookup cannot wait for others, it is made at once: then the result is its tensor.
    """
    return _asked(
        variable, PendingIds(ids, _may_be_negative(column)), weights, combiner, None, is_safe=True
    )


def _one_op_reaches(variable):
    """True if all parts of a static variable are on one device that is not a GPU."""
    parts = list(variable) if isinstance(variable, PartitionedVariable) else [variable]
    devices = {part.device for part in parts}
    return len(devices) == 1 and tf.DeviceSpec.from_string(devices.pop() or "").device_type in (
        None,
        "CPU",
    )


def _asked(variable, pending, weights, combiner, max_norm, is_safe):
    ids = pending.ids
    rank = ids.dense_shape.shape.num_elements()
    is_static = not (is_embedding_variable(variable) or isinstance(variable, StoredParts))
    if rank is None or (is_static and not _one_op_reaches(variable)):
        look_up = _v1.nn.safe_embedding_lookup_sparse if is_safe else _v1.nn.embedding_lookup_sparse
        values = look_up(
            variable, ids, weights, combiner=combiner, max_norm=max_norm, partition_strategy="div"
        )
        return values if is_static else tf.cast(values, tf.float32)
    outer = None
    if rank != 2:
        outer = ids.dense_shape[:-1]
        ids = tf.sparse.reshape(ids, tf.stack([tf.reduce_prod(outer), ids.dense_shape[-1]]))
    indices, values = ids.indices, ids.values
    weights = (
        None if weights is None else lookup.one_a_key(tf.cast(weights.values, tf.float32), values)
    )
    if is_safe:
        kept = []
        if pending.may_be_negative and is_static:
            kept.append(values >= 0)
        if weights is not None and combiner != "sum":
            kept.append(weights > 0)
        if kept:
            places = tf.where(kept[0] if len(kept) == 1 else tf.logical_and(*kept))[:, 0]
            indices, values = tf.gather(indices, places), tf.gather(values, places)
            weights = None if weights is None else tf.gather(weights, places)
    sparse = lambda entries: tf.SparseTensor(indices, entries, ids.dense_shape)
    return Asked(
        variable,
        pending.ids,
        sparse(values),
        None if weights is None else sparse(weights),
        combiner,
        max_norm,
        outer,
    )


@tf.experimental.dispatch_for_api(_v1.nn.safe_embedding_lookup_sparse)
def _safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids: PendingIds,
    sparse_weights=None,
    combiner="mean",
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
    allow_fast_lookup=False,
):
    return _asked(embedding_weights, sparse_ids, sparse_weights, combiner, max_norm, is_safe=True)


@tf.experimental.dispatch_for_api(tf.nn.embedding_lookup_sparse)
def _embedding_lookup_sparse(
    params,
    sp_ids: PendingIds,
    sp_weights,
    combiner=None,
    max_norm=None,
    name=None,
    allow_fast_lookup=False,
):
    return _asked(params, sp_ids, sp_weights, combiner or "mean", max_norm, is_safe=False)


def look_up(tensors, groups, joins=False):
    """Looks up each Asked in the list `tensors` and replaces it by its values. Other entries stay.

    Args:
      tensors: list of Asked and tensors.
      groups: for each entry, its _Group, or None for tensors.
      joins: whether neighbours of one group share one tensor of concatenated values. The tensor replaces the first neighbour; the
        others become None.
    """
    numbers = collections.OrderedDict()
    for number, (tensor, group) in enumerate(zip(tensors, groups)):
        if isinstance(tensor, Asked):
            numbers.setdefault(group.key, (group, []))[1].append(number)
    for group, members in numbers.values():
        asked = [tensors[number] for number in members]
        runs = _runs(members, asked) if joins else [1] * len(members)
        found = nn.group_embedding_lookup_sparse(
            [a.variable for a in asked],
            [a.ids for a in asked],
            [a.combiner for a in asked],
            [a.weights for a in asked],
            partition_strategy="div",
            max_norms=[a.max_norm for a in asked],
            params_num_per_group=group.limit,
            concat=runs,
            output_dtype=tf.float32,  # a layer of columns concatenates them
        )
        joined = iter(
            [value for values, run in zip(found, runs) for value in [values] + [None] * (run - 1)]
        )
        for number, a, values in zip(members, asked, joined):
            if a.outer is not None:
                dim = values.shape.as_list()[-1]
                values = tf.reshape(values, tf.concat([a.outer, [dim]], 0))
                values.set_shape([None] * (values.shape.rank - 1) + [dim])
            tensors[number] = values


def _runs(numbers, asked):
    """The lengths of runs of Asked whose values can be concatenated.

    The members of a run are neighbours in the layer, have values [batch, dim], and static batch sizes that do not contradict each
    other. numbers: the places of the Asked in the layer.
    """
    runs, before, batch = [], None, None
    for number, a in zip(numbers, asked):
        its = a.ids.shape[:1]
        if runs and a.outer is None and before == number - 1 and batch.is_compatible_with(its):
            runs[-1] += 1
            batch = batch.merge_with(its)
        else:
            runs.append(1)
            batch = its
        before = number if a.outer is None else None
    return runs
