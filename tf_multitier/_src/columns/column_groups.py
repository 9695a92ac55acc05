"""Groups of feature columns: one op looks up many columns, in input_layer and sequence_input_layer.

A group may contain columns over embedding variables and over TensorFlow's own variables, and pooled and sequence columns of one
call. column_lookups.py looks the columns of a group up together; this file says which columns are a group, and has the layers.
"""

import collections
import collections.abc
import contextlib
import itertools
import sys
import threading
import typing

import tensorflow as tf

from tf_multitier._src import patches
from tf_multitier._src.columns import column_lookups
from tf_multitier._src.execution import graph_state
from tf_multitier._src.lookup import side_by_side
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import feature_column_v1
from tf_multitier._src.tensorflow.internals import feature_column_v2
from tf_multitier._src.tensorflow.internals import on_new
from tf_multitier._src.tensorflow.internals import sequence_length_from_sparse_tensor

_v1 = tf.compat.v1

# key: identifies the group. limit: maximal number of lookups in one op.
_Group = collections.namedtuple("_Group", ["key", "limit"])

_scopes = threading.local()  # .groups: the scopes this thread is in, the innermost last
_unnamed = itertools.count()

# Columns that return the result of their lookup unchanged.
_GROUPABLE = (feature_column_v2.EmbeddingColumn, feature_column_v1._SharedEmbeddingColumn)


@contextlib.contextmanager
def group_embedding_column_scope(
    name: str | None = None, params_num_per_group: int = sys.maxsize
) -> typing.Any:
    """A context. One op looks up the embedding columns that are made inside it, per `input_layer` call.

    A group does not affect the names of variables, nor values (static variables: up to rounding). It contains `embedding_column`
    and `shared_embedding_columns`, this package's and TensorFlow's own, over any categorical column. Sequence columns are grouped
    in `sequence_input_layer`. Other columns that are made inside are not affected.

    Source: DeepRec's `tf.feature_column.group_embedding_column_scope`.

    Args:
      name: scopes with the same name are one group; None: a new group.
      params_num_per_group: maximal number of lookups in one op.
    """
    on_new(_GROUPABLE, _join_scope)
    groups = _scopes.__dict__.setdefault("groups", [])
    groups.append(_Group(next(_unnamed) if name is None else str(name), params_num_per_group))
    try:
        yield
    finally:
        groups.pop()


def _join_scope(column):
    """Adds a new column to the group of the innermost scope, if the thread is in one."""
    groups = getattr(_scopes, "groups", None)
    if groups:
        column.tf_multitier_group = groups[-1]


def _group_of(column):
    """The _Group of a dense column, or None. Always None in eager mode and in a tf.function, where grouped lookups do not work."""
    if type(column) not in _GROUPABLE or not _works_here():
        return None
    return getattr(column, "tf_multitier_group", None)


def _works_here():
    try:
        graph_state.refuse_eager("a grouped lookup")
    except RuntimeError:
        return False
    return True


def _group_or(rest):
    """A function like _group_of that returns `rest` for columns that could be in a group but are in none."""
    return lambda column: (
        _group_of(column) or (rest if type(column) in _GROUPABLE and _works_here() else None)
    )


# ---- layers


def _with_model_variables(weight_collections):
    names = list(weight_collections or [])
    for name in (_v1.GraphKeys.GLOBAL_VARIABLES, _v1.GraphKeys.MODEL_VARIABLES):
        if name not in names:
            names.append(name)
    return names


def _columns_of(feature_columns):
    if isinstance(feature_columns, dict):
        return feature_columns.values()
    return (
        feature_columns
        if isinstance(feature_columns, (list, tuple, set, frozenset))
        else [feature_columns]
    )


def _has_groups(feature_columns):
    return any(_group_of(column) is not None for column in _columns_of(feature_columns))


def _grouped_input_layer(
    group_of,
    features,
    feature_columns,
    weight_collections=None,
    trainable=True,
    cols_to_vars=None,
    scope=None,
    cols_to_output_tensors=None,
    from_template=False,
):
    """TensorFlow's `_internal_input_layer`, with one op for the lookups of each group.

    Args:
      group_of: function that returns the _Group of a column, or None.
      others: see TensorFlow's function.
    """
    columns = feature_column_v1._normalize_feature_columns(feature_columns)
    for column in columns:
        if not isinstance(column, feature_column_v1._DenseColumn):
            raise ValueError(
                f"feature_columns: expected dense columns, such as an embedding_column; found {column!r}"
            )
    weight_collections = _with_model_variables(weight_collections)
    if not from_template:  # otherwise the template has made the scope
        with _v1.variable_scope(scope, default_name="input_layer", values=features.values()):
            return _grouped_input_layer(
                group_of,
                features,
                columns,
                weight_collections,
                trainable,
                cols_to_vars,
                None,
                cols_to_output_tensors,
                from_template=True,
            )

    inputs = feature_column_v1._LazyBuilder(features)
    columns = sorted(columns, key=lambda column: column.name)
    tensors, groups = [], []
    for column in columns:
        with _v1.variable_scope(None, default_name=column._var_scope_name) as column_scope:
            groups.append(group_of(column))
            if groups[-1] is None or _is_sequence(
                column
            ):  # TensorFlow refuses sequence columns here
                tensor = column._get_dense_tensor(
                    inputs, weight_collections=weight_collections, trainable=trainable
                )
            else:
                tensor = column_lookups.ask(column, inputs, weight_collections, trainable)
            tensors.append(tensor)
            if cols_to_vars is not None:
                cols_to_vars[column] = _v1.get_collection(
                    _v1.GraphKeys.GLOBAL_VARIABLES, scope=column_scope.name
                )
    column_lookups.look_up(tensors, groups, joins=cols_to_output_tensors is None)
    outputs, whose = [], []
    for column, tensor, group in zip(columns, tensors, groups):
        if tensor is None:  # its values are in its neighbour's tensor
            continue
        whose.append(column)
        if group is None or cols_to_output_tensors is not None or tensor.shape.rank != 2:
            tensor = tf.reshape(
                tensor, [tf.shape(tensor)[0], column._variable_shape.num_elements()]
            )
        outputs.append(tensor)
        if cols_to_output_tensors is not None:
            cols_to_output_tensors[column] = tensor
    feature_column_v1._verify_static_batch_size_equality(outputs, whose)
    return side_by_side.concat(outputs, _named(whose))


def input_layer(
    features: typing.Any,
    feature_columns: typing.Any,
    weight_collections: typing.Any = None,
    trainable: bool = True,
    cols_to_vars: dict | None = None,
    cols_to_output_tensors: dict | None = None,
) -> tf.Tensor:
    """TensorFlow's `tf.compat.v1.feature_column.input_layer`, with one op for the lookups of all embedding columns.

    Columns that were made in a `group_embedding_column_scope` stay in its group. Names of variables and arguments are TensorFlow's.
    Values over embedding variables have the same bits; values over static variables are equal up to rounding.

    Args:
      features: dict from feature name to SparseTensor or dense tensor.
      feature_columns: dense columns in a list, set or dict, or one column.
      weight_collections: names of additional collections for the variables.
      trainable: whether the variables are trained.
      cols_to_vars: None, or a dict that is filled: {column: list of its variables}.
      cols_to_output_tensors: None, or a dict that is filled: {column: float32 [batch, its size]}.

    Returns:
      float32 [batch, sum of the columns' sizes], in the order of the columns' names.

    Raises:
      ValueError: an item is not a dense column; or for the reasons of TensorFlow's function.
      tf.errors.InvalidArgumentError, when run: batch sizes differ. The message names the column, or the variable that its group
        looks up.
    """
    trainable = boolean("input_layer: trainable", trainable)
    if isinstance(feature_columns, collections.abc.Iterator):
        feature_columns = list(feature_columns)
    if not _works_here() or not any(
        type(column) in _GROUPABLE for column in _columns_of(feature_columns)
    ):
        return _v1.feature_column.input_layer(
            features,
            feature_columns,
            weight_collections,
            trainable,
            cols_to_vars,
            cols_to_output_tensors,
        )
    return _grouped_input_layer(
        _group_or(_Group(object(), sys.maxsize)),
        features,
        feature_columns,
        weight_collections,
        trainable,
        cols_to_vars,
        cols_to_output_tensors=cols_to_output_tensors,
    )


def _is_sequence(column):
    return isinstance(
        getattr(column, "categorical_column", None),
        (feature_column_v1._SequenceCategoricalColumn, feature_column_v2.SequenceCategoricalColumn),
    )


def sequence_input_layer(
    features: typing.Any,
    feature_columns: typing.Any,
    weight_collections: typing.Any = None,
    trainable: bool = True,
) -> typing.Any:
    """Turns sequence columns into one tensor [batch, time, features] and the length of each example.

    One op looks up all embedding columns. Steps beyond an example's length are zeros. Columns that were made in a
    `group_embedding_column_scope` stay in its group.

    Source: `tf.contrib.feature_column.sequence_input_layer` of TensorFlow 1. TensorFlow 2.21 does not have it.

    Args:
      features: dict from feature name to SparseTensor or dense tensor.
      feature_columns: list of `embedding_column` or `shared_embedding_columns` over sequence columns, `sequence_numeric_column`, or
        TensorFlow's `indicator_column` over sequence columns. The result is in the order of their names, whatever the order here.
      weight_collections: names of additional collections for the variables.
      trainable: whether the variables are trained.

    Returns:
      (tensor, lengths): float32 [batch, time, sum of dimensions] and int64 [batch].

    Raises:
      ValueError: no columns, two columns with one name, a column that is not a sequence column, or static batch sizes or steps that
        differ.
      tf.errors.InvalidArgumentError, when run: batch sizes, steps or lengths differ. The message names the columns.
    """
    trainable = boolean("sequence_input_layer: trainable", trainable)
    kinds = (feature_column_v1._SequenceDenseColumn, feature_column_v2.SequenceDenseColumn)
    columns = sorted(
        [feature_columns] if isinstance(feature_columns, kinds) else feature_columns,
        key=lambda c: c.name,
    )
    if not columns:
        raise ValueError("feature_columns: expected at least one column, found none")
    for column, following in zip(columns, columns[1:] + [None]):
        if not isinstance(column, kinds):
            raise ValueError(
                "feature_columns: expected sequence dense columns, such as an embedding_column over a sequence "
                f"column; found {column!r}"
            )
        if following is not None and column.name == following.name:
            raise ValueError(
                f"feature_columns: expected distinct names, found {column.name!r} twice"
            )
    group_of = _group_or(_Group(object(), sys.maxsize))
    with _v1.variable_scope(None, default_name="sequence_input_layer"):
        pairs = _SequenceInputs(features, _with_model_variables(weight_collections), trainable)
        tensors, lengths = map(
            list, zip(*(pairs.of(column, group_of(column) is not None) for column in columns))
        )
        column_lookups.look_up(tensors, [group_of(column) for column in columns])
        outputs = []
        for column, tensor in zip(columns, tensors):
            shape = tf.shape(tensor)
            outputs.append(tf.reshape(tensor, [shape[0], shape[1], _size_of(column)]))
        with tf.control_dependencies(side_by_side.check(outputs, _named(columns))):
            checks = [
                tf.debugging.assert_equal(
                    lengths[0],
                    other,
                    message=f"sequence lengths of columns {columns[0].name} and "
                    f"{column.name} differ",
                )
                for other, column in zip(lengths[1:], columns[1:])
            ]
            with tf.control_dependencies(checks):
                return tf.concat(outputs, axis=2), tf.identity(lengths[0])


def _named(columns):
    """The names of columns in error messages."""
    return [f"column '{column.name}'" for column in columns]


def _size_of(column):
    shape = (
        column._variable_shape
        if isinstance(column, feature_column_v1._SequenceDenseColumn)
        else column.variable_shape
    )
    return shape.num_elements()


class _SequenceInputs:
    """Computes the values of sequence columns. TensorFlow has two kinds of columns, and a cache of features for each."""

    def __init__(self, features, weight_collections, trainable):
        self._inputs = feature_column_v1._LazyBuilder(features)
        self._cache = feature_column_v2.FeatureTransformationCache(features)
        self._arguments = dict(weight_collections=weight_collections, trainable=trainable)

    def of(self, column, may_be_grouped):
        """(tensor [batch, time, ...] or column_lookups.Asked, lengths [batch]) of a column."""
        with _v1.variable_scope(None, default_name=getattr(column, "_var_scope_name", column.name)):
            if may_be_grouped and _is_sequence(column):
                asked = column_lookups.ask(column, self._inputs, **self._arguments)
                ids = (
                    asked.given
                    if isinstance(asked, column_lookups.Asked)
                    else column.categorical_column._get_sparse_tensors(self._inputs).id_tensor
                )
                return asked, sequence_length_from_sparse_tensor(ids)
            if isinstance(column, feature_column_v1._SequenceDenseColumn):
                return tuple(column._get_sequence_dense_tensor(self._inputs, **self._arguments))
            return tuple(
                column.get_sequence_dense_tensor(self._cache, None)
            )  # has no variables: sequence_numeric_column


patches.on_input_layer(
    _has_groups, lambda original, args, kwargs: _grouped_input_layer(_group_of, *args, **kwargs)
)
