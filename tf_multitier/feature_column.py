"""Feature columns over embedding variables, and TensorFlow's own names beside them.

Two layers of columns meet here. A *categorical* column turns a feature into ids; ours
(`categorical_column_with_embedding`) has no number of buckets, because an embedding variable takes
every 64-bit id. A *dense* column turns ids into numbers; TensorFlow's own dense columns are used
unchanged, in the stock `input_layer` and `linear_model`:

    ids = fc.categorical_column_with_embedding("item", dtype=tf.int64)
    net = tf.compat.v1.feature_column.input_layer(features, [
        fc.embedding_column(ids, dimension=16), fc.numeric_column("price")])

How the variable becomes an embedding variable: a stock dense column reads the categorical column's
`_num_buckets` and then, in the same variable scope, calls `get_variable` with that many rows. Ours
answers 0 and arms the scope: the scope's next `get_variable`, if it asks for 0 rows under a name that
columns give their variables, makes an embedding variable of that name; in any case the scope is as before after that one call.
`linear_model` makes its variables in another way, see `prepare_linear_weights`.

Variables are named as TensorFlow names them: `<input layer>/<key>_embedding/embedding_weights`,
`<linear model>/<key>/weights`.

Graphs are built by one thread at a time, as everywhere in TensorFlow.
"""

import collections
import collections.abc
import contextlib
import functools
import itertools
import sys
import threading

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as _v1_columns
from tensorflow.python.feature_column import feature_column_v2 as _v2_columns

from tf_multitier import lookup
from tf_multitier import nn
from tf_multitier import options
from tf_multitier import patches
from tf_multitier.lookup import refuse_eager
from tf_multitier.variable_scope import get_embedding_variable

_stock = tf.compat.v1.feature_column

# TensorFlow's names, unchanged: they take our columns as they are.
bucketized_column = _stock.bucketized_column
categorical_column_with_hash_bucket = _stock.categorical_column_with_hash_bucket
categorical_column_with_identity = _stock.categorical_column_with_identity
categorical_column_with_vocabulary_file = _stock.categorical_column_with_vocabulary_file
categorical_column_with_vocabulary_list = _stock.categorical_column_with_vocabulary_list
crossed_column = _stock.crossed_column
linear_model = _stock.linear_model
make_parse_example_spec = _stock.make_parse_example_spec
numeric_column = _stock.numeric_column
sequence_categorical_column_with_hash_bucket = _stock.sequence_categorical_column_with_hash_bucket
sequence_categorical_column_with_identity = _stock.sequence_categorical_column_with_identity
sequence_categorical_column_with_vocabulary_file = (
    _stock.sequence_categorical_column_with_vocabulary_file)
sequence_categorical_column_with_vocabulary_list = (
    _stock.sequence_categorical_column_with_vocabulary_list)
sequence_numeric_column = _stock.sequence_numeric_column

__all__ = [
    "bucketized_column", "categorical_column_with_embedding",
    "categorical_column_with_hash_bucket", "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file", "categorical_column_with_vocabulary_list",
    "crossed_column", "embedding_column", "group_embedding_column_scope", "indicator_column",
    "input_layer", "linear_model",
    "make_parse_example_spec", "numeric_column", "sequence_categorical_column_with_embedding",
    "sequence_categorical_column_with_hash_bucket", "sequence_categorical_column_with_identity",
    "sequence_categorical_column_with_vocabulary_file",
    "sequence_categorical_column_with_vocabulary_list", "sequence_input_layer",
    "sequence_numeric_column", "shared_embedding_columns", "weighted_categorical_column",
]

# Strings become ids in [0, 2**63 - 1).
_HASH_BUCKETS = 2**63 - 1

# "What TensorFlow drops from a dense tensor": -1, "" (None means: drop nothing).
_TENSORFLOW_PADDING = object()


# --- Categorical columns -------------------------------------------------------------------------

def categorical_column_with_embedding(key, dtype=tf.string, partition_num=None, ev_option=None,
                                      ignore_value=_TENSORFLOW_PADDING):
    """A categorical column whose ids index an embedding variable: no vocabulary, no bucket count.

    Semantics: DeepRec's `tf.feature_column.categorical_column_with_embedding`, but every int64 is
    an ordinary id. Goes under `embedding_column`, `shared_embedding_columns`,
    `weighted_categorical_column`, `crossed_column` and `linear_model`; not under
    `indicator_column`.

    The feature may be a `SparseTensor`, all of whose ids are ordinary (-1 too), or a dense tensor
    [batch] or [batch, n], from which `ignore_value` is dropped as padding.

    Strings are hashed to 64 bits (`tf.strings.to_hash_bucket_fast` with 2**63 - 1 buckets), so the
    same string is the same id in every process and release.

    Args:
      key: name of the feature in `features`, and of the column.
      dtype: of the feature: tf.string (the default), or an integer type, used as ids unchanged.
      partition_num: parts the variable is cut into by key; None takes the variable scope's
        partitioner, or one part.
      ev_option: `EmbeddingVariableOption`; None for its defaults. For embeddings, an initializer in
        its `InitializerOption` goes before the one of the dense column. `linear_model` starts its
        weights at 0, as TensorFlow does.
      ignore_value: value dropped from dense features. By default TensorFlow's: -1, "". None keeps
        everything. Does not concern sparse features.

    Returns:
      A categorical column.

    Raises:
      ValueError: `key` is not a string, `dtype` neither string nor integer, or `partition_num`
        below 1.
    """
    dtype = tf.as_dtype(dtype)
    if not isinstance(key, str) or not key:
        raise ValueError(f"key must be a non-empty string, got {key!r}")
    if dtype != tf.string and not dtype.is_integer:
        raise ValueError(f"column {key!r}: dtype must be tf.string or an integer type, "
                         f"got {dtype.name}")
    if partition_num is not None and partition_num < 1:
        raise ValueError(f"column {key!r}: partition_num must be at least 1, got {partition_num}")
    return _in_scope(EmbeddingCategoricalColumn(key, dtype, partition_num, ev_option, ignore_value))


def sequence_categorical_column_with_embedding(key, dtype=tf.string, partition_num=None,
                                               ev_option=None, ignore_value=_TENSORFLOW_PADDING):
    """`categorical_column_with_embedding` for a sequence of ids per example.

    Goes under `embedding_column` or `shared_embedding_columns` in `sequence_input_layer`. The
    feature is a `SparseTensor` [batch, time] or [batch, time, ids of a step], or a dense tensor
    [batch, time] whose padding stands at the end.

    Args and Raises: see `categorical_column_with_embedding`.

    Returns:
      TensorFlow's sequence column over ours.
    """
    return _v2_columns.SequenceCategoricalColumn(categorical_column_with_embedding(
        key, dtype, partition_num, ev_option, ignore_value))


class EmbeddingCategoricalColumn(
        _v1_columns._CategoricalColumn,
        collections.namedtuple("EmbeddingCategoricalColumn",
                               ("key", "dtype", "partition_num", "ev_option", "ignore_value"))):
    """What `categorical_column_with_embedding` returns; immutable, holds no tensor or variable."""

    def __hash__(self):  # options need not be hashable
        return hash((self.key, self.dtype, self.partition_num))

    def __eq__(self, other):
        return isinstance(other, EmbeddingCategoricalColumn) and tuple(self) == tuple(other)

    def __ne__(self, other):
        return not self == other

    @property
    def _is_v2_column(self):
        return False  # Keras' DenseFeatures would make a dense variable: let it refuse

    @property
    def name(self):
        return self.key

    @property
    def parse_example_spec(self):
        """`{key: VarLenFeature}`; integers are read as int64, the one such type in tf.Example."""
        return {self.key: tf.io.VarLenFeature(
            tf.string if self.dtype == tf.string else tf.int64)}

    @property
    def _parse_example_spec(self):
        return self.parse_example_spec

    @property
    def _num_buckets(self):
        if not tf.executing_eagerly():
            _asked.column = self
            _arm(tf.compat.v1.get_variable_scope())
        return 0

    @property
    def num_buckets(self):
        """What TensorFlow's newer, object-based columns ask for: NotImplementedError."""
        raise NotImplementedError(
            f"column {self.key!r} takes every 64-bit id and has no number of buckets: use it with "
            "input_layer, linear_model or sequence_input_layer; tf.feature_column."
            "shared_embeddings and Keras' DenseFeatures are not supported")

    def _transform_feature(self, inputs):
        """The feature as a SparseTensor of int64 ids."""
        feature = inputs.get(self.key)
        if (feature.dtype == tf.string) != (self.dtype == tf.string) or not (
                feature.dtype == tf.string or feature.dtype.is_integer):
            raise ValueError(f"column {self.key!r} expects {self.dtype.name} features, "
                             f"got {feature.dtype.name}")
        if not isinstance(feature, tf.SparseTensor):
            feature = self._to_sparse(feature)
        if self.dtype == tf.string:
            ids = tf.strings.to_hash_bucket_fast(feature.values, _HASH_BUCKETS, name="hash")
        else:
            ids = tf.cast(feature.values, tf.int64)
        return tf.SparseTensor(feature.indices, ids, feature.dense_shape)

    def _to_sparse(self, feature):
        if self.ignore_value is _TENSORFLOW_PADDING:
            padding = "" if self.dtype == tf.string else -1
        else:
            padding = self.ignore_value
        if padding is None:
            kept = tf.ones_like(feature, tf.bool)
        elif padding == -1 and feature.dtype.is_unsigned:
            kept = tf.ones_like(feature, tf.bool)
        else:
            kept = tf.not_equal(feature, tf.constant(padding, feature.dtype))
        indices = tf.where(kept)
        return tf.SparseTensor(indices, tf.gather_nd(feature, indices),
                               tf.shape(feature, out_type=tf.int64))

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        del weight_collections, trainable  # ids need no variables
        refuse_eager(f"column {self.key!r} of an embedding variable")
        return _v1_columns._CategoricalColumn.IdWeightPair(inputs.get(self), None)


def weighted_categorical_column(categorical_column, weight_feature_key, dtype=tf.float32):
    """TensorFlow's `weighted_categorical_column`; over our columns, dense weights follow their ids.

    Over a column of TensorFlow's own it is TensorFlow's. Over ours, a dense weight tensor gives
    each id the weight at its place, whatever that weight is, where the stock column drops zero
    weights and thereby shifts the others.

    Args:
      categorical_column: a categorical column.
      weight_feature_key: name of the weights in `features`: a SparseTensor with the indices of the
        ids, or a dense tensor of the shape of the dense ids.
      dtype: of the weights, floating or integer.

    Returns:
      A categorical column named `<key>_weighted_by_<weight_feature_key>`.

    Raises:
      ValueError: `dtype` does not convert to float.
    """
    column = _stock.weighted_categorical_column(categorical_column, weight_feature_key, dtype)
    if isinstance(categorical_column, EmbeddingCategoricalColumn):
        return WeightedEmbeddingCategoricalColumn(*column)
    return column


class WeightedEmbeddingCategoricalColumn(_v2_columns.WeightedCategoricalColumn):
    """What `weighted_categorical_column` returns over a column of ours."""

    def _get_sparse_tensors(self, inputs, weight_collections=None, trainable=None):
        refuse_eager(f"column {self.name!r} of an embedding variable")
        return super()._get_sparse_tensors(inputs, weight_collections, trainable)

    def _transform_feature(self, inputs):
        ids = inputs.get(self.categorical_column)
        weights = inputs.get(self.weight_feature_key)
        if weights.dtype.base_dtype != self.dtype:
            raise ValueError(f"column {self.name!r} expects {self.dtype.name} weights, "
                             f"got {weights.dtype.name}")
        if isinstance(weights, tf.SparseTensor):
            values = weights.values
            indices, shape = weights.indices, weights.dense_shape
        else:
            values = tf.gather_nd(weights, ids.indices)
            indices, shape = ids.indices, ids.dense_shape
        return ids, tf.SparseTensor(indices, tf.cast(values, tf.float32), shape)


# --- Groups of columns ---------------------------------------------------------------------------

# key: what columns of one group have in common. limit: lookups in one op.
_Group = collections.namedtuple("_Group", ["key", "limit"])

_scopes = threading.local()  # .groups: the scopes this thread is in, the innermost last
_unnamed = itertools.count()


@contextlib.contextmanager
def group_embedding_column_scope(name=None, params_num_per_group=sys.maxsize):
    """Columns made inside are looked up by one op in each `input_layer` call that has them.

    Semantics: DeepRec's `tf.feature_column.group_embedding_column_scope`. A group changes no value and
    no name of a variable. It takes columns over embedding variables: `embedding_column` and
    `shared_embedding_columns` of this module, and TensorFlow's over a categorical column that was made
    inside. Other columns may be made inside and are looked up as ever, as are sequence columns.

    Args:
      name: scopes of one name are one group; None: a group of its own.
      params_num_per_group: at most so many lookups in one op.
    """
    groups = _scopes.__dict__.setdefault("groups", [])
    groups.append(_Group(next(_unnamed) if name is None else str(name), params_num_per_group))
    try:
        yield
    finally:
        groups.pop()


def _in_scope(column):
    """`column`, of the group whose scope this is."""
    groups = getattr(_scopes, "groups", None)
    if groups:
        column.tf_multitier_group = groups[-1]
    return column


# Columns that do nothing with the result of their lookup but return it.
_GROUPABLE = (_v2_columns.EmbeddingColumn, _v1_columns._EmbeddingColumn, _v1_columns._SharedEmbeddingColumn)


def _group_of(column):
    """The _Group of a dense column, or None."""
    base = embedding_base(column)
    if base is None or type(column) not in _GROUPABLE:
        return None
    return getattr(column, "tf_multitier_group", getattr(base, "tf_multitier_group", None))


def _columns_of(feature_columns):
    if isinstance(feature_columns, dict):
        return feature_columns.values()
    return feature_columns if isinstance(feature_columns, (list, tuple, set, frozenset)) else [feature_columns]


def _has_groups(feature_columns):
    return any(_group_of(column) is not None for column in _columns_of(feature_columns))


def _grouped_input_layer(group_of, features, feature_columns, weight_collections=None, trainable=True, cols_to_vars=None,
                         scope=None, cols_to_output_tensors=None, from_template=False):
    """TensorFlow's `_internal_input_layer` with the lookups of each group in one op.

    Every column makes its variables under the name and in the order it always does; what it would look
    up is collected, looked up together, and takes its column's place.

    Args:
      group_of: function of a column giving its _Group or None.
      others: as TensorFlow's.
    """
    columns = _v1_columns._normalize_feature_columns(feature_columns)
    for column in columns:
        if not isinstance(column, _v1_columns._DenseColumn):
            raise ValueError(f"items of feature_columns must be dense columns, such as an embedding_column; got {column!r}")
    collections_of_weights = list(weight_collections or [])
    for name in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.MODEL_VARIABLES):
        if name not in collections_of_weights:
            collections_of_weights.append(name)
    if not from_template:  # a template has made the scope
        with tf.compat.v1.variable_scope(scope, default_name="input_layer", values=features.values()):
            return _grouped_input_layer(group_of, features, columns, collections_of_weights, trainable, cols_to_vars, None,
                                        cols_to_output_tensors, from_template=True)

    inputs = _v1_columns._LazyBuilder(features)
    columns = sorted(columns, key=lambda column: column.name)
    tensors, pending = [], collections.OrderedDict()
    for number, column in enumerate(columns):
        with tf.compat.v1.variable_scope(None, default_name=column._var_scope_name) as column_scope:
            group = group_of(column)
            with contextlib.nullcontext() if group is None else lookup.pending_lookups():
                tensors.append(column._get_dense_tensor(inputs, weight_collections=collections_of_weights, trainable=trainable))
            if isinstance(tensors[-1], lookup.PendingLookup):
                pending.setdefault(group.key, (group, []))[1].append(number)
            if cols_to_vars is not None:
                cols_to_vars[column] = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, scope=column_scope.name)
    for group, numbers in pending.values():
        asked = [tensors[number] for number in numbers]
        found = nn.group_embedding_lookup_sparse(
            [p.variable for p in asked], [p.ids for p in asked], [p.combiner for p in asked], [p.weights for p in asked],
            max_norms=[p.max_norm for p in asked], params_num_per_group=group.limit)
        for number, values in zip(numbers, found):
            tensors[number] = values
    outputs = []
    for column, tensor in zip(columns, tensors):
        outputs.append(tf.reshape(tensor, [tf.shape(tensor)[0], column._variable_shape.num_elements()]))
        if cols_to_output_tensors is not None:
            cols_to_output_tensors[column] = outputs[-1]
    _v1_columns._verify_static_batch_size_equality(outputs, columns)
    return tf.concat(outputs, 1)


def input_layer(features, feature_columns, weight_collections=None, trainable=True, cols_to_vars=None,
                cols_to_output_tensors=None):
    """TensorFlow's `tf.compat.v1.feature_column.input_layer`, with all columns over embedding variables looked up by one op.

    Columns made in a `group_embedding_column_scope` stay in its group. Values, names of variables and
    arguments are TensorFlow's.
    """
    if isinstance(feature_columns, collections.abc.Iterator):
        feature_columns = list(feature_columns)
    if not any(embedding_base(column) is not None for column in _columns_of(feature_columns)):
        return _stock.input_layer(features, feature_columns, weight_collections, trainable, cols_to_vars, cols_to_output_tensors)
    rest = _Group(object(), sys.maxsize)
    group_of = lambda column: _group_of(column) or (
        rest if type(column) in _GROUPABLE and embedding_base(column) is not None else None)
    return _grouped_input_layer(group_of, features, feature_columns, weight_collections, trainable, cols_to_vars,
                                cols_to_output_tensors=cols_to_output_tensors)


# --- Dense columns -------------------------------------------------------------------------------

@functools.wraps(_stock.embedding_column)
def embedding_column(categorical_column, *args, **kwargs):
    """TensorFlow's `embedding_column`, of the group whose scope it is made in."""
    return _in_scope(_stock.embedding_column(categorical_column, *args, **kwargs))



def shared_embedding_columns(categorical_columns, dimension, **kwargs):
    """TensorFlow's `shared_embedding_columns`, refusing columns of ours with unlike options.

    All columns read and train one embedding variable, made with the options they have in common.

    Args:
      categorical_columns: list of categorical columns of one kind; weighted and sequence columns
        count as what they wrap.
      dimension: of the embedding, at least 1.
      **kwargs: as TensorFlow's: combiner, initializer, shared_embedding_collection_name, max_norm,
        trainable, ...

    Returns:
      List of dense columns in the order of `categorical_columns`.

    Raises:
      ValueError: options differ, or as TensorFlow's.
    """
    categorical_columns = list(categorical_columns)
    ours = [base for base in map(embedding_base, categorical_columns) if base is not None]
    for column in ours[1:]:
        if (column.ev_option, column.partition_num) != (ours[0].ev_option, ours[0].partition_num):
            raise ValueError(
                f"shared embedding columns {ours[0].key!r} and {column.key!r} must have one "
                f"ev_option and partition_num (pass the same objects), got "
                f"{ours[0].ev_option!r}, {ours[0].partition_num} and "
                f"{column.ev_option!r}, {column.partition_num}")
    return [_in_scope(column)
            for column in _stock.shared_embedding_columns(categorical_columns, dimension, **kwargs)]


def indicator_column(categorical_column):
    """TensorFlow's `indicator_column`. ValueError over a column of ours: it has no bucket count."""
    base = embedding_base(categorical_column)
    if base is not None:
        raise ValueError(f"indicator_column needs a fixed number of ids; column {base.key!r} "
                         "takes every 64-bit id: use embedding_column")
    return _stock.indicator_column(categorical_column)


def sequence_input_layer(features, feature_columns, weight_collections=None, trainable=True):
    """Sequence columns as one tensor [batch, time, features], with each example's length.

    Semantics: `tf.contrib.feature_column.sequence_input_layer` of TensorFlow 1, which TensorFlow
    2.21 no longer has. Steps beyond an example's length are zeros.

    Args:
      features: dict of feature name to SparseTensor or dense tensor.
      feature_columns: list of `embedding_column` or `shared_embedding_columns` over sequence
        columns, `sequence_numeric_column`, or TensorFlow's `indicator_column` over sequence
        columns; their order does not matter, the result is in the order of their names.
      weight_collections: more collections for the variables.
      trainable: whether variables are trained.

    Returns:
      (tensor, lengths): float32 [batch, time, sum of dimensions] and int64 [batch].

    Raises:
      ValueError: no columns, two of one name, or one that gives no sequence.
      tf.errors.InvalidArgumentError: when run, if columns disagree about the lengths.
    """
    is_one = isinstance(feature_columns, (_v1_columns._SequenceDenseColumn,
                                          _v2_columns.SequenceDenseColumn))
    columns = sorted([feature_columns] if is_one else feature_columns, key=lambda c: c.name)
    if not columns:
        raise ValueError("feature_columns must not be empty")
    for column, following in zip(columns, columns[1:] + [None]):
        if not isinstance(column, (_v1_columns._SequenceDenseColumn,
                                   _v2_columns.SequenceDenseColumn)):
            raise ValueError("items of feature_columns must be sequence dense columns, such as an "
                             f"embedding_column over a sequence column; got {column!r}")
        if following is not None and column.name == following.name:
            raise ValueError(f"two feature columns are named {column.name!r}")
    collections_of_weights = list(weight_collections or [])
    for name in (tf.compat.v1.GraphKeys.GLOBAL_VARIABLES, tf.compat.v1.GraphKeys.MODEL_VARIABLES):
        if name not in collections_of_weights:
            collections_of_weights.append(name)

    with tf.compat.v1.variable_scope(None, default_name="sequence_input_layer"):
        inputs = _v1_columns._LazyBuilder(features)
        cache = _v2_columns.FeatureTransformationCache(features)
        outputs, lengths = [], []
        for column in columns:
            scope_name = getattr(column, "_var_scope_name", column.name)
            with tf.compat.v1.variable_scope(None, default_name=scope_name):
                if isinstance(column, _v1_columns._SequenceDenseColumn):
                    pair = column._get_sequence_dense_tensor(
                        inputs, weight_collections=collections_of_weights, trainable=trainable)
                    size = column._variable_shape.num_elements()
                else:  # has no variables: sequence_numeric_column
                    pair = column.get_sequence_dense_tensor(cache, None)
                    size = column.variable_shape.num_elements()
                shape = tf.shape(pair.dense_tensor)
                outputs.append(tf.reshape(pair.dense_tensor, [shape[0], shape[1], size]))
                lengths.append(pair.sequence_length)
        checks = [tf.debugging.assert_equal(
            lengths[0], other, message=f"sequence lengths of columns {columns[0].name} and "
            f"{column.name} differ") for other, column in zip(lengths[1:], columns[1:])]
        with tf.control_dependencies(checks):
            return tf.concat(outputs, axis=2), tf.identity(lengths[0])


# --- From a dense variable of 0 rows to an embedding variable ------------------------------------

def embedding_base(column):
    """The `EmbeddingCategoricalColumn` under weighted and sequence columns, or None."""
    while not isinstance(column, EmbeddingCategoricalColumn):
        column = getattr(column, "categorical_column", None)
        if column is None:
            return None
    return column


def prepare_linear_weights(column, scope):
    """Before `linear_model` makes the weights of `column`: arms `scope` if the column is ours.

    That layer makes its variable in a scope it captured before it asks the column anything, so
    reading `_num_buckets` comes too late; see patches.py.
    """
    base = embedding_base(column)
    if base is not None:
        refuse_eager(f"column {base.key!r} of an embedding variable")
        _arm(scope)


# .column: whose `_num_buckets` this thread read last. A request for 0 rows is that column's.
_asked = threading.local()


# What TensorFlow's dense columns and linear_model call the variable of a column.
_COLUMN_VARIABLES = ("embedding_weights", "weights")


class _ArmedGetter:
    """A variable scope's custom getter for one call, standing before the scope's own."""

    def __init__(self, scope):
        self._scope = scope
        self._outer = scope.custom_getter  # an armed one too, if no variable was made since

    def __call__(self, getter, *args, **kwargs):
        if self._scope.custom_getter is self:
            self._scope.set_custom_getter(self._outer)
        shape, name = kwargs.get("shape"), args[0] if args else kwargs.get("name")
        if name.rpartition("/")[2] in _COLUMN_VARIABLES and shape is not None and tf.TensorShape(shape)[:1].as_list() == [0]:
            getter = functools.partial(_embedding_weights, _asked.column)
        if self._outer is not None:
            return self._outer(getter, *args, **kwargs)
        return getter(*args, **kwargs)


def _arm(scope):
    """Lets the next `get_variable` of `scope`, if for 0 rows, make an embedding variable."""
    scope.set_custom_getter(_ArmedGetter(scope))


def _embedding_weights(column, name, shape=None, initializer=None, reuse=None, trainable=True,
                       collections=None, partitioner=None, **unused_kwargs):
    """The embedding variable of absolute name `name`; arguments as TensorFlow gives a getter."""
    ev_option = column.ev_option
    if name.endswith("/weights"):  # linear_model
        ev_option = _without_initializer(ev_option)
    if column.partition_num is not None:
        partitioner = tf.compat.v1.fixed_size_partitioner(column.partition_num)
    root = tf.compat.v1.VariableScope(reuse=reuse, name="")
    with tf.compat.v1.variable_scope(root, auxiliary_name_scope=False):
        return get_embedding_variable(
            name, embedding_dim=tf.TensorShape(shape).as_list()[1], initializer=initializer,
            trainable=trainable, collections=collections, partitioner=partitioner,
            ev_option=ev_option)


def _without_initializer(ev_option):
    """The same options, the initializer left to the caller."""
    if ev_option is None or ev_option.init_option.initializer is None:
        return ev_option
    init = ev_option.init_option
    return options.EmbeddingVariableOption(
        evict_option=ev_option.evict_option, filter_option=ev_option.filter_option,
        storage_option=ev_option.storage_option, init_option=options.InitializerOption(
            default_value_dim=init.default_value_dim,
            default_value_no_permission=init.default_value_no_permission))


patches.on_input_layer(_has_groups, lambda original, args, kwargs: _grouped_input_layer(_group_of, *args, **kwargs))
patches.on_linear_weights(prepare_linear_weights)
