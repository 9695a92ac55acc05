"""Embedding variables in `tf.saved_model.save` and `tf.saved_model.load`.

A SavedModel has, for an embedding variable:

    its object           registered name tf_multitier.EmbeddingVariable; name and options as JSON
    its handle           in the exported graph, an op with the record of the options, as in v1 graphs
    its rows             in variables/, as in every checkpoint of TensorFlow 2 (object_checkpoint.py)

A partitioned variable has a registered object of its own, tf_multitier.PartitionedEmbeddingVariable, which depends on those of its
parts. Its rows are saved as those of one variable.

Without this module, TensorFlow would save the variable as a dense one, and the loaded functions would fail.
"""

from __future__ import annotations

import itertools
import json
import typing

import tensorflow as tf

from tf_multitier._src.execution import placement
from tf_multitier._src.options import option_record
from tf_multitier._src.processes import strategies
from tf_multitier._src.tensorflow.internals import register_serializable
from tf_multitier._src.tensorflow.internals import StringValue

_NUMBERS = itertools.count()
_PACKAGE = "tf_multitier"
# The names of classes in a SavedModel.
VARIABLE, PARTITIONED = "EmbeddingVariable", "PartitionedEmbeddingVariable"


def register(name: str) -> typing.Callable:
    """A decorator that registers a class of saved objects."""
    return register_serializable(package=_PACKAGE, name=name)


def write_object_proto(proto: typing.Any) -> None:
    """Marks the object as one of tf_multitier, so that TensorFlow does not load it as a dense variable."""
    proto.user_object.identifier = _PACKAGE
    proto.user_object.version.producer = 1


def description(variable: typing.Any) -> typing.Any:
    """The name and options of a variable as a proto."""
    attrs = {
        **variable.handle_attrs,
        "shape": variable.shape.as_list(),
        "dtype": variable.dtype.name,
        "key_dtype": variable.key_dtype.name,
        "options": option_record.as_json(variable.handle_attrs["options"]),
    }
    return StringValue(value=json.dumps({"name": variable._shared_name, **attrs}))


# The rows that are kept belong to the program that trains.
_NOT_KEPT: dict = {"keep": False, "in_place": False}


def read_description(proto: typing.Any) -> tuple:
    """(name, {attribute: value}) of a description."""
    text = StringValue()
    proto.Unpack(text)
    name, attrs = _attributes(text)
    strategies.check_load(f"embedding variable '{name}' of a SavedModel")
    return name, attrs


def attributes_when_loaded(variable: typing.Any) -> dict:
    """{attribute: value} of the handle that a variable has in a program that loads it."""
    return _attributes(description(variable))[1]


def _attributes(text):
    attrs = json.loads(text.value)
    name = attrs.pop("name")
    attrs.update(dtype=tf.as_dtype(attrs["dtype"]), key_dtype=tf.as_dtype(attrs["key_dtype"]))
    values = dict(_NOT_KEPT)
    initializer = attrs["options"].get("initializer", {})
    if initializer.get("kind") == "matrix":  # the rows have it
        values["initializer"] = {"seed": initializer.get("seed", 0)}
    attrs["options"] = option_record.changed(option_record.from_json(attrs["options"]), **values)
    return name, attrs


def make_read_only(node: typing.Any) -> None:
    """Changes an object of a SavedObjectGraph: a variable becomes read-only when it is loaded. Other objects stay as they are."""
    if node.registered_name != f"{_PACKAGE}.{VARIABLE}":
        return
    text = StringValue()
    node.serialized_user_proto.Unpack(text)
    read = json.loads(text.value)
    read["options"]["read_only"] = True  # a record
    node.serialized_user_proto.Pack(StringValue(value=json.dumps(read)))


def exported_handle(variable: typing.Any) -> typing.Any:
    """The handle of a variable in the graph that is being exported. Variables of one name have different ones."""
    name = f"{variable.variable_name}_{next(_NUMBERS)}"
    return placement.handle_op(
        {
            **variable.handle_attrs,
            "options": option_record.changed(variable.handle_attrs["options"], **_NOT_KEPT),
        },
        shared_name=name,
    )
