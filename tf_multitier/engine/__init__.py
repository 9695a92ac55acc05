"""The embedding table engine for NumPy. The TensorFlow ops use the same engine. For tests and tools.

    from tf_multitier import engine

    table = engine.Table(dim=8, initializer="uniform", a=-0.1, b=0.1, seed=1)
    table.add_slots([("accumulator", 8, 0.1)])
    table.apply("adagrad", keys=[5, 7, 5], grads=np.ones((3, 8)), hyper={"learning_rate": 0.1}, slots=["accumulator"])
    table.lookup([5, 6])  # float32 [2, 8]; 6 reads as its initial value

A table with a file tier can be kept and opened by another process:

    with engine.Table(dim=8, storage_type="DRAM_SSDHASH", storage_path="/data", storage_size=[1 << 30], keep=True) as table:
        path = table.path
        ...
        table.flush()  # everything up to here survives a crash
    table = engine.Table.open(path, recover=True)

Exceptions: ValueError for a bad argument, NotImplementedError, and EngineError with these subclasses: NotFoundError (also a
FileNotFoundError), ResourceExhaustedError (also a MemoryError), AlreadyExistsError (also a ValueError), FailedPreconditionError and
DataLossError.
"""

from tf_multitier._engine import AlreadyExistsError
from tf_multitier._engine import DataLossError
from tf_multitier._engine import EngineError
from tf_multitier._engine import FailedPreconditionError
from tf_multitier._engine import NotFoundError
from tf_multitier._engine import ResourceExhaustedError
from tf_multitier.engine.group import Group
from tf_multitier.engine.rows import Rows
from tf_multitier.engine.rules import Rule
from tf_multitier.engine.rules import update_rules
from tf_multitier.engine.salvaged import Salvaged
from tf_multitier.engine.salvaged import salvage
from tf_multitier.engine.table import Table

__all__ = [
    "AlreadyExistsError",
    "DataLossError",
    "EngineError",
    "FailedPreconditionError",
    "Group",
    "NotFoundError",
    "ResourceExhaustedError",
    "Rows",
    "Rule",
    "Salvaged",
    "Table",
    "salvage",
    "update_rules",
]


def __dir__():
    return sorted(__all__)
