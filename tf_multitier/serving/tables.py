"""Lists the tables that Sessions share."""

from __future__ import annotations

import dataclasses

from tf_multitier._src.variable.process_state import ProcessState


@dataclasses.dataclass(frozen=True)
class SharedTable:
    """A table of read-only variables.

    Attributes:
      variable: name of the variable or part.
      checkpoint: the prefix from which it was restored.
      rows: number of rows.
      users: number of variables (one in each Session) and running operations that hold it.
    """

    variable: str
    checkpoint: str
    rows: int
    users: int


def shared_tables() -> list[SharedTable]:
    """The tables of read-only variables in this process, sorted by variable and checkpoint."""
    state = ProcessState()
    try:
        found = [SharedTable(**table) for table in state.read()["shared_tables"]]
    finally:
        state.close()
    return sorted(found, key=lambda table: (table.variable, table.checkpoint))
