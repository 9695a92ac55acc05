"""What is whole in the files of a table that cannot be opened."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from tf_multitier import _engine
from tf_multitier.engine.rows import Rows


@dataclasses.dataclass
class Salvaged:
    """What `salvage` found.

    Attributes:
      rows: `Rows`, of each key the newest that is whole.
      stale_keys: int64 [n], keys among them whose newest record is damaged: an older row is given.
      lost_keys: int64 [m], keys that are known to have had a row, and none of their records is whole.
      segments: number of files read.
      records: number of whole records in them, older ones and removals included.
      damaged_records: number of places that should hold a record and do not.
      damage: list of str, one for each file with damage.
    """

    rows: Rows
    stale_keys: np.ndarray
    lost_keys: np.ndarray
    segments: int
    records: int
    damaged_records: int
    damage: list


def salvage(path: str) -> Salvaged:
    """Reads what is whole in the SSDHASH files of an instance that `Table.open` refuses, or whose rows are damaged.

    Changes nothing. `Table.import_rows` of a new table takes the rows. (Of LEVELDB files:
    `plyvel.repair_db(..., paranoid_checks=True)`, then `Table.open`.)

    Args:
      path: an instance directory (`Table.path`), or its directory `ssdhash`.

    Raises:
      NotFoundError: no such files there.
      FailedPreconditionError: the instance is in use (names the process).
    """
    path = os.fspath(path)
    below = os.path.join(path, "ssdhash")
    instance = None
    if os.path.isdir(below):
        instance = _engine.Instance(path)
    try:
        found = _engine.salvage(below if instance else path)
    finally:
        if instance:
            instance.release()
    return Salvaged(**{**found, "rows": Rows(**found["rows"])})
