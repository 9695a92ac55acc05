"""Uses of an embedding variable that need a dense value, as tf.Variable has one: each raises NotImplementedError and says what to do.

`EmbeddingVariable` and `PartitionedEmbeddingVariable` inherit NoDenseValue, and add the special methods with `no_dense`.
"""

from __future__ import annotations

import typing

from tf_multitier._src.tensorflow.internals import conversion_asked_by


def dense_use(variable, what):
    """The error for a use of `variable` that needs a dense value."""
    return NotImplementedError(
        f"embedding variable '{variable.variable_name}' is a hash table and has no dense value, so {what} is not possible: "
        "look ids up with layer(ids) of its Keras layer, or with tf.nn.embedding_lookup or embedding_lookup_sparse; train it with an "
        "optimizer of tf_multitier.optimizers (in v1 graphs of tf.compat.v1.train); read everything with "
        "export(), or with candidates() of its Keras layer"
    )


# The uses in the messages of dense_use. TensorFlow's scatter_update and similar functions read a variable before they make an op.
SCATTER = "an assignment or scatter operation (tf.compat.v1.scatter_update and its siblings)"
CONVERSION = "conversion to a dense tensor"
_ASSERTION = "tf.compat.v1.assert_variables_initialized (tf.compat.v1.report_uninitialized_variables says whether it is initialized)"


def conversion(variable, asked_by):
    """The error for a conversion to a dense tensor. asked_by: of conversion_asked_by."""
    return dense_use(
        variable, _ASSERTION if asked_by == "assert_variables_initialized" else CONVERSION
    )


def no_dense(what):
    """A method that raises dense_use."""

    def refuse(self, *unused_args: typing.Any, **unused_kwargs: typing.Any) -> typing.NoReturn:
        raise dense_use(self, what)

    refuse.__doc__ = (
        f"NotImplementedError: {what} needs a dense value. An embedding variable has none."
    )
    return refuse


class NoDenseValue:
    """The methods of a tf.Variable that need its dense value. Each raises NotImplementedError and names what is not possible."""

    def __tf_tracing_type__(self: typing.Any, unused_context: typing.Any) -> typing.NoReturn:
        """TensorFlow calls this for an argument of a tf.function.

        Raises:
          NotImplementedError: always. The handle alone does not say which options, slots and parts the variable has.
        """
        raise NotImplementedError(
            f"embedding variable '{self.variable_name}' cannot be an argument of a tf.function: use it from the enclosing scope, or as "
            "an attribute of an object"
        )

    def __tf_tensor__(self, dtype: typing.Any = None, name: str | None = None) -> typing.Any:
        """NotImplementedError: always."""
        raise conversion(self, conversion_asked_by())

    def __copy__(self) -> typing.Any:
        return self

    def __deepcopy__(self, memo: dict) -> typing.NoReturn:
        raise self._no_copy()

    def __reduce__(self) -> typing.NoReturn:
        raise self._no_copy()

    def _no_copy(self: typing.Any) -> NotImplementedError:
        return NotImplementedError(
            f"embedding variable '{self.variable_name}' cannot be copied or pickled, because its rows are in a table outside of Python: "
            "make another variable, and restore a checkpoint of this one into it"
        )

    # Keras' optimizers read this before they update a variable.
    overwrite_with_gradient = property(no_dense("an update by an optimizer of Keras"))
    value = no_dense("value()")
    read_value = no_dense("read_value()")
    read_value_no_copy = no_dense("reading its value")
    initialized_value = no_dense("initialized_value()")
    numpy = no_dense("numpy()")
    assign = no_dense("assign()")
    assign_add = no_dense("assign_add()")
    assign_sub = no_dense("assign_sub()")
    batch_scatter_update = no_dense("batch_scatter_update()")
    count_up_to = no_dense("count_up_to()")
    gather_nd = no_dense("gather_nd()")
    load = no_dense("load()")
    scatter_add = no_dense("scatter_add()")
    scatter_div = no_dense("scatter_div()")
    scatter_max = no_dense("scatter_max()")
    scatter_min = no_dense("scatter_min()")
    scatter_mul = no_dense("scatter_mul()")
    scatter_nd_add = no_dense("scatter_nd_add()")
    scatter_nd_sub = no_dense("scatter_nd_sub()")
    scatter_nd_update = no_dense("scatter_nd_update()")
    scatter_sub = no_dense("scatter_sub()")
    scatter_update = no_dense("scatter_update()")
    __array__ = no_dense("conversion to an array")
    _lazy_read = property(no_dense(SCATTER))
