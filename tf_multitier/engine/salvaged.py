"""salvage: reads the undamaged records in the files of a table that cannot be opened."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from tf_multitier import _engine
from tf_multitier.engine import arguments
from tf_multitier.engine.rows import Rows


@dataclasses.dataclass
class Salvaged:
    """The result of `salvage`.

    Attributes:
      rows: `Rows`: for each key, the newest row that is undamaged.
      stale_keys: int64 [n]: keys in `rows` whose newest record is damaged, so that `rows` has an older row.
      lost_keys: int64 [m]: keys that had a row, but have no undamaged record.
      segments: number of files that were read.
      records: number of undamaged records in these files, including older ones and removals.
      damaged_records: number of places without an undamaged record where one is expected.
      missing_segments: number of files that the instance's list names and that are missing. The keys whose newest
        records were in them are not known: `rows` may have older rows of those keys, or none.
      damage: list of str: one message for each file that is damaged, missing or shorter than the list says.
    """

    rows: Rows
    stale_keys: np.ndarray
    lost_keys: np.ndarray
    segments: int
    records: int
    damaged_records: int
    missing_segments: int
    damage: list


def salvage(path: str) -> Salvaged:
    """Reads all undamaged records in the SSDHASH files of an instance. Use it if `Table.open` refuses the instance or rows are damaged.

    It changes nothing. Pass the rows to `Table.import_rows` of a new table. Their keys are int64: `import_rows` says how to change
    them for a table with unsigned keys. For LEVELDB files, use
    `plyvel.repair_db(..., paranoid_checks=True)` and then `Table.open`.

    Args:
      path: an instance directory (`Table.path`), or its directory `ssdhash`.

    Returns:
      A Salvaged.

    Raises:
      NotFoundError: the directory has no such files.
      FailedPreconditionError: a process uses the instance. The message names it.
    """
    path = arguments.path("path", path)
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
