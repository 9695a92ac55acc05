"""Checkpoints as files: the rows of embedding variables without a graph, a Session or a live table.

    saved = tf_multitier.checkpoint.load("/models/model-1000")
    user = saved.tables["user"]                    # dim, columns, num_rows, initializer, parts
    for rows in user.blocks():                     # engine.Rows of about 16 MiB
        ...

`tf.train.list_variables` and `tf.train.load_variable` read the dense variables of the same checkpoint.

`load_chain` reads a checkpoint with the deltas that continue it, as one, and `merge` makes one checkpoint of them.

`Writer` writes a checkpoint that a `Saver` restores: from rows of another system, or of another checkpoint. `load_deeprec`,
`load_parquet`, `load_npz` and `load_raw` read rows of others, `save_parquet`, `save_npz` and `save_raw` write them.
`python3 -m tf_multitier.checkpoint convert` does the same from the command line; `python3 -m tf_multitier.inspect` shows what a
checkpoint has. Paths are of local file systems.
"""

from tf_multitier.checkpoint.chain import Chain
from tf_multitier.checkpoint.chain import ChainTable
from tf_multitier.checkpoint.chain import Delta
from tf_multitier.checkpoint.chain import DeltaTable
from tf_multitier.checkpoint.chain import load
from tf_multitier.checkpoint.chain import load_chain
from tf_multitier.checkpoint.deeprec import DeepRecCheckpoint
from tf_multitier.checkpoint.deeprec import load_deeprec
from tf_multitier.checkpoint.merge import merge
from tf_multitier.checkpoint.progress import progress
from tf_multitier.checkpoint.row_files import load_npz
from tf_multitier.checkpoint.row_files import load_parquet
from tf_multitier.checkpoint.row_files import load_raw
from tf_multitier.checkpoint.row_files import save_npz
from tf_multitier.checkpoint.row_files import save_parquet
from tf_multitier.checkpoint.row_files import save_raw
from tf_multitier.checkpoint.saved import Checkpoint
from tf_multitier.checkpoint.saved import SavedPart
from tf_multitier.checkpoint.saved import SavedTable
from tf_multitier.checkpoint.source import RowSource
from tf_multitier.checkpoint.writer import Writer

__all__ = [
    "Chain",
    "ChainTable",
    "Checkpoint",
    "DeepRecCheckpoint",
    "Delta",
    "DeltaTable",
    "RowSource",
    "SavedPart",
    "SavedTable",
    "Writer",
    "load",
    "load_chain",
    "load_deeprec",
    "load_npz",
    "load_parquet",
    "load_raw",
    "merge",
    "progress",
    "save_npz",
    "save_parquet",
    "save_raw",
]


def __dir__():
    return sorted(__all__)
