"""The configs of tables and of communication."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import re
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.options.option_values import integer
from tf_multitier.dynamicemb.enums import CommType
from tf_multitier.dynamicemb.enums import DataType
from tf_multitier.dynamicemb.enums import member
from tf_multitier.dynamicemb.enums import PoolingType

# What TensorFlow allows as the name of a scope, and file systems as part of a file's name.
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.-]*")


def listed(where: str, values: typing.Any, kind: typing.Any = object) -> list:
    """The values of a list or another iterable, all of a class. TypeError: they are not."""
    found = None
    if isinstance(values, collections.abc.Iterable) and not isinstance(values, (str, bytes)):
        # A tensor of Keras says that it can be iterated over, and refuses.
        with contextlib.suppress(NotImplementedError):
            found = None if tf.is_tensor(values) else list(values)
    if found is None or not all(isinstance(each, kind) for each in found):
        of = "" if kind is object else " of strings" if kind is str else f" of {kind.__name__}"
        raise TypeError(f"{where}: expected a list{of}, found {values!r}")
    return found


class Fields:
    """Base class of dataclasses: setting a field checks all of them, as the constructor does. Other names are AttributeErrors."""

    def __setattr__(self, name, value):
        names = [field.name for field in dataclasses.fields(typing.cast(typing.Any, self))]
        if name not in names:
            raise AttributeError(
                f"{type(self).__name__}: expected one of {', '.join(names)}, found {name!r}{did_you_mean(name, names)}"
            )
        if len(vars(self)) < len(names):  # the constructor
            super().__setattr__(name, value)
        else:
            vars(self).update(vars(self._with(name, value)))

    def _with(self, name, value):
        return dataclasses.replace(typing.cast(typing.Any, self), **{name: value})

    def _where(self, name):
        return f"{type(self).__name__}.{name}"


@dataclasses.dataclass
class QCommsConfig(Fields):
    """The types of values between processes. One process has no effect of it."""

    forward_precision: CommType = CommType.FP32
    backward_precision: CommType = CommType.FP32

    def __post_init__(self):
        for name in ("forward_precision", "backward_precision"):
            member(self._where(name), getattr(self, name), CommType)


def get_qcomm_codecs_registry(qcomms_config: QCommsConfig) -> dict[str, QCommsConfig]:
    """What a sharder takes as `qcomm_codecs_registry`. TypeError: no QCommsConfig."""
    if not isinstance(qcomms_config, QCommsConfig):
        raise TypeError(f"qcomms_config: expected a QCommsConfig, found {qcomms_config!r}")
    return {"qcomms_config": qcomms_config}


@dataclasses.dataclass
class EmbeddingConfig(Fields):
    """A table of an EmbeddingCollection.

    Attributes:
      name: of the table: letters, digits, '_', '.' and '-'. It is part of the names of dump files.
      embedding_dim: elements of a row.
      num_embeddings: rows of the table, in all processes of a world.
      feature_names: the features that are looked up in it.
      data_type: of the values.

    Raises:
      TypeError, ValueError: a bad value.
    """

    name: str
    embedding_dim: int
    num_embeddings: int
    feature_names: list[str]
    data_type: DataType = DataType.FP32

    def __post_init__(self):
        values = vars(self)
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise (ValueError if isinstance(self.name, str) else TypeError)(
                f"{self._where('name')}: expected a name of letters, digits, '_', '.' and '-', found {self.name!r}"
            )
        for name in ("embedding_dim", "num_embeddings"):
            values[name] = integer(f"table '{self.name}': {name}", values[name], 1)
        where = f"table '{self.name}': feature_names"
        found = values["feature_names"] = listed(where, self.feature_names, str)
        if not found or len(set(found)) != len(found):
            raise ValueError(f"{where}: expected one or more different names, found {found!r}")
        member(f"table '{self.name}': data_type", self.data_type, DataType)


@dataclasses.dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """A table of an EmbeddingBagCollection: `pooling` is SUM or MEAN. See EmbeddingConfig."""

    pooling: PoolingType = PoolingType.SUM

    def __post_init__(self):
        super().__post_init__()
        where = f"table '{self.name}': pooling"
        if member(where, self.pooling, PoolingType) is PoolingType.NONE:
            raise ValueError(
                f"{where}: expected SUM or MEAN, found NONE: an EmbeddingCollection gives a row for each id"
            )
