"""merge: a base and its deltas become one checkpoint of all rows."""

from __future__ import annotations

import json
import os

import numpy as np

from tf_multitier._engine import NotFoundError
from tf_multitier.checkpoint.chain import ChainTable
from tf_multitier.checkpoint.chain import load_chain
from tf_multitier.checkpoint.files import CheckpointFiles
from tf_multitier.checkpoint.files import part_file_name


def merge(source: str | os.PathLike, target: str | os.PathLike) -> int:
    """Writes a base and the deltas that continue it as one checkpoint of all rows.

    A restore of the target gives what a restore of the chain gives, bit for bit: rows, slots, frequencies, versions, counted keys,
    Bloom filters, dense tensors. It has as many parts as the chain. The source stays as it is.

    The rows stream through memory a block at a time. In addition, at most 4 Mi keys of the deltas are in memory (about 100 MiB; if
    a part has more, its files are read several times), and 64 MiB of dense tensors or the largest one.

    If the target's directory has no `checkpoint` file, it gets one that names the target. An existing one stays as it is.

    Args:
      source: prefix of the base, or the directory of its `checkpoint` file: with all deltas. Prefix of a delta: with those up to it.
      target: prefix of the new checkpoint. Its directory exists.

    Returns:
      The number of rows of all embedding variables.

    Raises:
      AlreadyExistsError: there is a checkpoint of that prefix.
      NotFoundError: there is no checkpoint at `source`, or a file of it is missing.
      DataLossError: a save is damaged or missing, or continues another save. The message has its path.
      ValueError: no delta continues the source.
      ResourceExhaustedError: the disk is full.
      After an error there is no target, and the files that were written of it are deleted.
    """
    chain = load_chain(source)
    if not chain.deltas:
        raise ValueError(f"'{chain.path}': expected deltas that continue it, found none")
    _check_files(chain)
    target = os.fspath(target)
    state = os.path.join(os.path.dirname(target) or ".", "checkpoint")
    with _Merged(target, latest=not os.path.exists(state)) as files:
        return files.add_chain(chain)


def _check_files(chain):
    for table in chain.tables.values():
        for save in (table.base, *table.deltas):
            for part in save.parts:
                for path in part.files:
                    if not os.path.exists(path):
                        raise NotFoundError(f"checkpoint part {path}: expected a file, found none")


class _Merged(CheckpointFiles):
    def __enter__(self):
        return self

    def add_chain(self, chain):
        rows = sum(self._add_table(table) for table in chain.tables.values())
        newest = chain.deltas[-1]
        for name, (dtype, shape) in newest.all_tensors().items():
            size = int(np.prod(shape)) * (dtype.size or 64)
            self._add_tensor(name, size, lambda name=name: newest.all_tensor(name))
        for table in chain.tables.values():
            for name in table.names[1:]:
                self.add_name(name, table.name)
        return rows

    def _add_table(self, table: ChainTable) -> int:
        parts = [table.part(index) for index in range(table.num_partitions)]
        dim, matrix = table.dim, table.matrix()

        def write(writers):
            for part, writer in zip(parts, writers):
                for rows in part.blocks():
                    writer.add(vars(rows))
                writer.add_filter_counters(part.filter_counters)

        return self._add_parts(
            [f"{table.name}/part_{i}-of-{len(parts)}/manifest" for i in range(len(parts))],
            [_manifest(part) for part in parts],
            np.zeros([0, dim], np.float32) if matrix is None else matrix,
            write,
        )


def _manifest(part):
    """That of the newest save, so that deltas may continue the merged one as they would have continued that save."""
    manifest = json.loads(part.manifest)
    for name in ("since", "num_removed"):
        manifest.pop(name, None)
    return manifest | {"file": part_file_name(), "num_rows": 0}
