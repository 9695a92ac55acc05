"""Storage types and cache strategies.

DeepRec's module of them is generated, `tensorflow.core.framework.embedding.config_pb2`: its programs find this one by that name, or
with `from tf_multitier import config_pb2`.
`config_pb2.StorageType.DRAM_SSDHASH` and `config_pb2.DRAM_SSDHASH` are the same value. Types that DeepRec has keep DeepRec's
numbers.
"""

from __future__ import annotations

import enum
import typing

from tf_multitier import _engine
from tf_multitier._src.options.option_values import did_you_mean


class _ProtoEnum(enum.IntEnum):
    """An IntEnum with the methods of a protobuf enum wrapper."""

    @classmethod
    def Name(cls, number: int) -> str:
        """The name of `number`. ValueError if it has none."""
        return cls(number).name

    @classmethod
    def Value(cls, name: str) -> int:
        """The number of `name`. ValueError if there is no such name."""
        if name not in cls.__members__:
            raise ValueError(
                f"{cls.__name__}: expected one of {', '.join(cls.__members__)}; found {name!r}{did_you_mean(name, cls.__members__)}"
            )
        return cls[name]

    @classmethod
    def keys(cls) -> list[str]:
        return list(cls.__members__)

    @classmethod
    def values(cls) -> list[int]:
        return [int(v) for v in cls.__members__.values()]

    @classmethod
    def items(cls) -> list[tuple[str, int]]:
        return [(k, int(v)) for k, v in cls.__members__.items()]


# {name: (number, tiers)}, as the tiers register them (cc/options/tier_kind.h).
_STORAGE_TYPES = {name: (number, tuple(tiers)) for name, number, tiers in _engine.storage_types()}


class _FromEngine(enum.EnumMeta):
    if typing.TYPE_CHECKING:

        def __getattr__(cls, name: str) -> StorageType: ...


class StorageType(_ProtoEnum, metaclass=_FromEngine):
    """The tiers of an embedding variable. A name lists the tiers, fastest first, joined by underscores. DEFAULT means DRAM."""

    _ignore_ = "_each"
    for _each in _STORAGE_TYPES:
        vars()[_each] = _STORAGE_TYPES[_each][0]

    @property
    def tiers(self) -> tuple[str, ...]:
        """The names of the tiers, fastest first, for example ("DRAM", "SSDHASH")."""
        return _STORAGE_TYPES[self.name][1]


class CacheStrategy(_ProtoEnum):
    """Which rows leave a full tier first: the least recently used (LRU), the least frequently used (LFU), or those of the lowest score.

    SCORE is not in DeepRec. `EmbeddingVariableOption.score` says what the score of a row is.
    """

    LRU = 0
    LFU = 1
    SCORE = 2


globals().update(StorageType.__members__)
globals().update(CacheStrategy.__members__)


def __dir__():
    return sorted(
        ["CacheStrategy", "StorageType", *StorageType.__members__, *CacheStrategy.__members__]
    )
