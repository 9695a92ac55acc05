"""Requests and answers of TensorFlow Serving's REST API: JSON to arrays, and back.

A body has `instances`, a list with one entry for each row, or `inputs`, whole arrays by name. Bytes are {"b64": "..."}.
An answer is made in pieces: json has the interpreter's lock while it makes one, and all other threads wait.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import reprlib
import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import each_once

if typing.TYPE_CHECKING:
    from tf_multitier.serving.model import Version

DEFAULT_SIGNATURE = "serving_default"

_PIECE = 4096  # values

_JSON_TYPES = {
    bool: "booleans",
    dict: "objects",
    float: "decimals",
    int: "integers",
    list: "lists that are uneven or too deep",
    str: "strings",
    type(None): "null",
}


class _Word(float):
    """NaN, Infinity or -Infinity. An infinite float of json that is none of them is a number that no float holds, such as 1e400."""


class RequestError(ValueError):
    """A body that a signature does not take."""


class LargeAnswerError(ValueError):
    """A body whose answer is too large."""


def predict(version: Version, body: bytes | bytearray, max_answer_bytes: int) -> bytes:
    """Answers a body with a version, in the form that the body has.

    Raises:
      RequestError: the body is wrong.
      LargeAnswerError: the outputs have more than max_answer_bytes.
    """
    request = _parse(body)
    name = request.get("signature_name", "")
    name = DEFAULT_SIGNATURE if name == "" else name
    if not isinstance(name, str) or name not in version.signatures:
        known = ", ".join(sorted(version.signatures))
        raise RequestError(f"signature_name: expected one of {known}; found {_short(name)}")
    inputs, outputs = version.signatures[name]
    if "instances" in request:
        columns, rows = _columns_of(request["instances"], inputs)
    else:
        columns, rows = _named(request["inputs"], inputs), None
    for key, dtype in outputs.items():
        if dtype.is_complex:
            raise RequestError(f"output '{key}': expected a type that JSON has, found {dtype.name}")
    arrays = {key: _array(key, value, inputs[key]) for key, value in columns.items()}
    answers = {key: _as_array(value) for key, value in version.run(arrays, name).items()}
    size = sum(map(_bytes_of, answers.values()))
    if size > max_answer_bytes:
        raise LargeAnswerError(
            f"answer: expected at most {max_answer_bytes} bytes (max_answer_bytes), found {size}: ask for fewer rows"
        )
    if rows is not None:
        for key, found in answers.items():
            if not found.ndim or len(found) != rows:
                raise RequestError(
                    f"output '{key}': expected {rows} rows, found the shape {list(found.shape)}: send `inputs` in place of `instances`"
                )
    values = {key: _printable(key, answers[key]) for key in outputs}
    if rows is not None and len(values) > 1:
        text = _json_of_rows(values, rows)
    elif len(values) == 1:
        text = _json_of(*values.values())
    else:
        text = (
            "{" + ", ".join(f"{json.dumps(key)}: {_json_of(v)}" for key, v in values.items()) + "}"
        )
    return f'{{"{"outputs" if rows is None else "predictions"}": {text}}}'.encode()


def _parse(body):
    try:
        request = json.loads(body, object_pairs_hook=each_once, parse_constant=_Word)
    except RecursionError:
        raise RequestError("body: expected JSON, found lists that are nested too deep") from None
    except ValueError as error:
        raise RequestError(f"body: expected JSON, found an error: {error}") from None
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise RequestError(
            "body: expected an object with either `instances` or `inputs`, found "
            + (
                f"the keys {_short(sorted(request))}"
                if isinstance(request, dict)
                else _short(request)
            )
        )
    return request


def _columns_of(instances, inputs):
    """({input: its values}, number of rows)."""
    if not isinstance(instances, list):
        raise RequestError(f"instances: expected a list, found {_short(instances)}")
    if len(inputs) == 1 and not any(_is_object(row) for row in instances):
        return _named(instances, inputs), len(instances)
    for number, row in enumerate(instances):
        if not _is_object(row) or set(row) != set(inputs):
            names = sorted(row) if _is_object(row) else row
            raise RequestError(
                f"instances[{number}]: expected an object with {', '.join(sorted(inputs))}; found {_short(names)}"
            )
    return {key: [row[key] for row in instances] for key in inputs}, len(instances)


def _named(values, inputs):
    """{input: its values} of an object, or of the value of the only input."""
    if not _is_object(values) and len(inputs) == 1:
        return dict.fromkeys(inputs, values)
    if not _is_object(values) or set(values) != set(inputs):
        names = sorted(values) if _is_object(values) else values
        raise RequestError(
            f"inputs: expected an object with {', '.join(sorted(inputs))}; found {_short(names)}"
        )
    return values


def _is_object(value):
    return isinstance(value, dict) and set(value) != {"b64"}


def _array(name, value, dtype):
    """The array of an input. Python objects first: NumPy would make text of [1, "a"], and pad short strings to long ones."""
    found = np.array(value, dtype=object)
    kinds = set(map(type, found.ravel()))  # .flat: at most 32 dimensions
    if _Word in kinds:
        kinds = kinds - {_Word} | {float}
    if dtype == tf.string:
        expected, right = 'strings or {"b64": ...}', kinds <= {str, dict}
    elif dtype == tf.bool:
        expected, right = "booleans", kinds <= {bool}
    elif dtype.is_integer:
        expected, right = f"integers ({dtype.name})", kinds <= {int}
    elif dtype.is_floating:
        expected, right = f"numbers ({dtype.name})", kinds <= {int, float}
    else:
        expected, right = "a type that JSON has", False
    if not right:
        names = ", ".join(sorted(_JSON_TYPES[kind] for kind in kinds))
        raise RequestError(f"input '{name}': expected {expected}, found {names or dtype.name}")
    if dtype == tf.string:
        return np.array([_bytes(name, each) for each in found.ravel()], object).reshape(found.shape)
    if dtype.is_integer and found.size:
        # NumPy 1 makes other numbers of those that do not fit.
        for value in (min(found.ravel()), max(found.ravel())):
            if not dtype.min <= value <= dtype.max:
                raise RequestError(
                    f"input '{name}': expected {expected} from {dtype.min} to {dtype.max}, found {_short(value)}"
                )
    if not dtype.is_floating:
        return found.astype(dtype.as_numpy_dtype)
    try:
        wide = found.astype(np.float64)
    except OverflowError as error:
        raise RequestError(f"input '{name}': expected {expected}, found others: {error}") from None
    if any(type(value) is float and math.isinf(value) for value in found[np.isinf(wide)]):
        raise RequestError(
            f"input '{name}': expected {expected}, found one that is too large, such as 1e400: write Infinity for it"
        )
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype.as_numpy_dtype)
    large = wide[np.isinf(narrow) & np.isfinite(wide)]
    if large.size:
        raise RequestError(
            f"input '{name}': expected {expected} up to {dtype.max}, found {_short(large[0].item())}"
        )
    return narrow


def _bytes(name, value):
    try:
        if isinstance(value, str):
            return value.encode()
        return base64.b64decode(value["b64"], validate=True)
    except (KeyError, TypeError, UnicodeEncodeError, binascii.Error):
        raise RequestError(
            f"input '{name}': expected text or {{\"b64\": base64}}, found {_short(value)}"
        ) from None


def _as_array(value):
    """Of an output. A Session gives a scalar string as bytes."""
    return np.asarray(value, object if isinstance(value, bytes) else None)


def _bytes_of(array):
    """An empty row counts as one value: JSON writes it."""
    size = array.itemsize * math.prod(max(length, 1) for length in array.shape)
    return size + sum(map(len, array.ravel())) if array.dtype.kind == "O" else size


def _printable(name, array):
    """An array whose `tolist` json takes. Strings are {"b64": ...} if the name ends with _bytes, or if one is not UTF-8."""
    if array.dtype.kind not in "OS":
        return array.astype(np.float32) if array.dtype.kind == "V" else array
    try:
        if name.endswith("_bytes"):
            raise UnicodeError
        return _each(bytes.decode, array)
    except UnicodeError:
        return _each(lambda value: {"b64": base64.b64encode(value).decode()}, array)


def _each(function, array):
    result = np.empty(array.shape, object)
    for index, value in np.ndenumerate(array):
        result[index] = function(value)
    return result


def _json_of(array):
    if array.size <= _PIECE or not array.ndim:
        return json.dumps(array.tolist())
    rows = _PIECE // (array.size // len(array))
    if not rows:
        return "[" + ", ".join(map(_json_of, array)) + "]"
    blocks = (array[start : start + rows].tolist() for start in range(0, len(array), rows))
    return "[" + ", ".join(json.dumps(block)[1:-1] for block in blocks) + "]"


def _json_of_rows(arrays, rows):
    """A list with an object for each row."""
    step = max(1, _PIECE * rows // max(1, sum(array.size for array in arrays.values())))
    pieces = []
    for start in range(0, rows, step):
        columns = [array[start : start + step].tolist() for array in arrays.values()]
        pieces.append(json.dumps([dict(zip(arrays, row)) for row in zip(*columns)])[1:-1])
    return "[" + ", ".join(pieces) + "]"


def _short(value):
    return reprlib.repr(value)  # whatever its size and depth
