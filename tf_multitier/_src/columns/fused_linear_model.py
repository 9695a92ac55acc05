"""linear_model with the weights of all its categorical columns looked up by one op.

TensorFlow's `linear_model` has about 25 ops for each categorical column in each direction. Here every column's layer makes its
variable as TensorFlow does, under the same name and in the same order, and notes what it would look up; then one grouped lookup
(column_lookups.py, nn.py) gives the weights of all columns side by side, and one sum their part of the prediction.

Results are TensorFlow's up to rounding: the columns' weights are added in another order.
"""

from __future__ import annotations

import sys
import typing

import tensorflow as tf

from tf_multitier import nn
from tf_multitier._src.columns import column_lookups
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.tensorflow.internals import feature_column_v1

_v1 = tf.compat.v1


def linear_model(
    features: typing.Any,
    feature_columns: typing.Any,
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: typing.Any = None,
    trainable: bool = True,
    cols_to_vars: dict | None = None,
) -> tf.Tensor:
    """TensorFlow's `tf.compat.v1.feature_column.linear_model`, with the weights of all categorical columns looked up by one op.

    Args:
      features: dict of feature name to SparseTensor or dense tensor.
      feature_columns: dense and categorical columns.
      units: size of the output, at least 1.
      sparse_combiner: "sum", "mean" or "sqrtn", of an example's weights in a categorical column.
      weight_collections: names of more collections for the variables.
      trainable: whether variables are trained.
      cols_to_vars: None, or a dict to be filled: {column: list of its variables, "bias": that of the bias}.

    Returns:
      float32 [batch, units].

    Raises:
      ValueError: an item is no such column; otherwise as TensorFlow's.
    """
    trainable = boolean("linear_model: trainable", trainable)
    with _v1.variable_scope(None, default_name="linear_model") as scope:
        name = scope.name.rpartition("/")[2]
    model = _FusedLinearModel(
        feature_columns=feature_columns,
        units=units,
        sparse_combiner=sparse_combiner,
        weight_collections=weight_collections,
        trainable=trainable,
        name=name,
    )
    result = model(features)
    if cols_to_vars is not None:
        cols_to_vars.update(model.cols_to_vars())
    return result


class _AskingLayer(feature_column_v1._FCLinearWrapper):
    """The layer of one categorical column: makes the column's variable, and in place of a lookup sets `asked`.

    Attributes:
      asked: what the column would look up, a column_lookups.Asked; a tensor where that cannot be collected.
    """

    asked: typing.Any = None

    @tf.autograph.experimental.do_not_convert
    def call(self, builder):
        column = self._feature_column
        ids, weights = column._get_sparse_tensors(
            builder, weight_collections=self._weight_collections, trainable=self.trainable
        )
        ids, weights = _flat(ids), None if weights is None else _flat(weights)
        self.asked = column_lookups.ask_for(
            column, self._weight_var, ids, weights, self._sparse_combiner
        )
        return tf.zeros([0, self._units])  # a layer must give a tensor: nothing uses this one


class _FusedLinearModel(feature_column_v1._LinearModel):
    """TensorFlow's layer, with another `call`."""

    def _add_layers(self, layers):
        for name, layer in layers.items():
            if isinstance(layer._feature_column, feature_column_v1._CategoricalColumn):
                layers[name] = _AskingLayer(
                    layer._feature_column,
                    layer._units,
                    layer._sparse_combiner,
                    layer._weight_collections,
                    layer.trainable,
                    name,
                )
        return super()._add_layers(layers)

    @tf.autograph.experimental.do_not_convert
    def call(self, features):
        with _v1.variable_scope(self.name):
            for column in self._feature_columns:
                if not isinstance(
                    column, (feature_column_v1._DenseColumn, feature_column_v1._CategoricalColumn)
                ):
                    raise ValueError(
                        f"feature_columns: expected dense or categorical columns, found {column!r}"
                    )
            builder = feature_column_v1._LazyBuilder(features)
            sums, columns, asked = [], [], []
            for layer in sorted(self._column_layers.values(), key=lambda layer: layer.name):
                column, found = layer._feature_column, layer(builder)
                if isinstance(layer, _AskingLayer):
                    found = layer.asked
                if isinstance(found, tf.Tensor):
                    sums.append(found)
                    columns.append(column)
                else:
                    asked.append((column, found))
                self._cols_to_vars[column] = _v1.get_collection(
                    _v1.GraphKeys.GLOBAL_VARIABLES, scope=layer.scope_name
                )
            if asked:
                sums.append(_sum_of([found for _, found in asked], self._bias_layer._units))
                columns.append(asked[0][0])
            return self._with_bias(sums, columns, builder)

    def _with_bias(self, sums, columns, builder):
        feature_column_v1._verify_static_batch_size_equality(sums, columns)
        no_bias = tf.add_n(sums, name="weighted_sum_no_bias")
        bias = self._bias_layer(builder, scope=_v1.get_variable_scope())
        self._cols_to_vars["bias"] = feature_column_v1._get_expanded_variable_list(
            self._bias_layer.variables[0]
        )
        return tf.nn.bias_add(no_bias, bias, name="weighted_sum")


def _flat(ids):
    """SparseTensor [batch, any] of one of any rank."""
    if ids.dense_shape.shape.num_elements() == 2:
        return ids
    return tf.sparse.reshape(ids, tf.stack([ids.dense_shape[0], -1]))


def _sum_of(asked, units):
    """float32 [batch, units]: the sum of what columns asked for."""
    values = nn.group_embedding_lookup_sparse(
        [a.variable for a in asked],
        [a.ids for a in asked],
        [a.combiner for a in asked],
        [a.weights for a in asked],
        partition_strategy="div",
        params_num_per_group=sys.maxsize,
        concat=True,
        output_dtype=tf.float32,
    )
    return (
        values if len(asked) == 1 else tf.reduce_sum(tf.reshape(values, [-1, len(asked), units]), 1)
    )
