"""CheckpointFiles: the files of a new checkpoint, which exists once its index does (docs/formats/table_part.md).

part files      one for each part of a table, written and synced first
data files      dense tensors, a group of about 64 MiB at a time: only one group is in memory
index           last
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import json
import os
import random
import re
import shutil
import string
import tempfile
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tf_multitier import _engine
from tf_multitier._src.options.option_values import boolean
from tf_multitier.checkpoint.bundle import own_errors

_GROUP_BYTES = 64 << 20


class CheckpointFiles:
    """Collects what a checkpoint has in a `with` block, and writes its index at the end of it.

    After an exception in the block, or if the index cannot be written, there is no checkpoint, and its files are deleted.

    Args:
      path: the checkpoint's prefix. Its directory exists.
      latest: whether the directory's `checkpoint` file then names this checkpoint, and no other.

    Raises:
      AlreadyExistsError: there is a checkpoint of that prefix.
      ValueError: TensorFlow cannot restore from such a path.
      EngineError: at the end of the block, if the index cannot be written. ResourceExhaustedError if the disk is full.
    """

    def __init__(self, path: str | os.PathLike, latest: bool = True) -> None:
        self.path = os.fspath(path)
        pattern = sorted(set(self.path) & set("*?[\\"))
        if pattern:
            raise ValueError(
                f"checkpoint '{self.path}': expected a path without {pattern[0]!r}, which TensorFlow reads as a pattern"
            )
        if os.path.exists(self.path + ".index"):
            raise _engine.AlreadyExistsError(f"checkpoint '{self.path}' exists")
        self._latest = boolean("latest", latest)
        self._tensors: dict[str, tuple[int, Callable[[], np.ndarray]]] = {}  # bytes, value
        self._files: list[str] = []
        self._written = False

    def __enter__(self) -> CheckpointFiles:
        _engine.remove_abandoned_files(self.path)
        return self

    def __exit__(self, kind: type | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                with _locked(os.path.dirname(self.path) or "."):
                    self._write_index()
        finally:
            if not self._written:
                _remove(self._files)

    def add_name(self, name: str, of: str) -> None:
        """Gives the table `of`, which has been added, one more name. Its rows are not written again.

        Raises:
          ValueError: the name has been added.
        """
        self._check_new(name)
        own = re.compile(re.escape(of) + r"(/part_\d+-of-\d+/manifest|/partition_of_bucket)")
        for tensor in [t for t in self._tensors if own.fullmatch(t)]:
            size, value = self._tensors[tensor]
            self._add_tensor(name + tensor.removeprefix(of), size, value)

    def _check_new(self, name: str) -> None:
        if not name:
            raise ValueError(f"checkpoint '{self.path}': expected a name, found {name!r}")
        if name in self._tensors:
            raise ValueError(f"checkpoint '{self.path}': '{name}' was added before")

    def _add_tensor(self, name: str, size: int, value: Callable[[], np.ndarray]) -> None:
        """Adds a dense tensor of about `size` bytes. `value` gives it, when the block ends."""
        self._check_new(name)
        self._tensors[name] = (size, value)

    @contextlib.contextmanager
    def _parts(
        self, tensors: list[str], manifests: list[dict], matrix: np.ndarray
    ) -> Iterator[list]:
        """Gives one _engine.PartWriter for each part of one table, to write the rows in the block.

        Args:
          tensors: names of the tensors that get the manifests.
          manifests: one for each part.
          matrix: float32 [matrix_rows, dim], of initial values; [0, dim] without one.
        """
        for tensor in tensors:
            self._check_new(tensor)
        writers: list = []
        try:
            for manifest in manifests:
                text = json.dumps(manifest, ensure_ascii=False)
                writers.append(_engine.PartWriter(self.path, text, matrix))
            yield writers
            texts = [writer.finish() for writer in writers]
        except BaseException:
            for writer in writers:
                writer.discard()
            raise
        self._files += [f"{self.path}.{manifest['file']}" for manifest in manifests]
        for tensor, text in zip(tensors, texts):
            self._add_tensor(tensor, len(text), functools.partial(np.array, text.encode(), object))

    def _add_parts(
        self,
        tensors: list[str],
        manifests: list[dict],
        matrix: np.ndarray,
        write: Callable[[list], None],
    ) -> int:
        """Calls `write` with what `_parts` gives. Returns the number of rows."""
        with self._parts(tensors, manifests, matrix) as writers:
            write(writers)
        texts = [self._tensors[tensor][1]().item() for tensor in tensors]
        return sum(json.loads(text)["num_rows"] for text in texts)

    def _write_index(self):
        if not self._tensors:
            raise ValueError(f"checkpoint '{self.path}': nothing was added")
        if os.path.exists(self.path + ".index"):
            raise _engine.AlreadyExistsError(f"checkpoint '{self.path}' exists")
        groups = self._groups()
        try:
            if len(groups) == 1:
                self._save(self.path, groups[0])
            else:
                self._save_together(groups)
        finally:
            self._written = os.path.exists(self.path + ".index")
            if not self._written:
                # TensorFlow leaves its temporary file if it cannot write.
                _remove(glob.glob(glob.escape(self.path) + ".data-00000-of-00001.tempstate*"))
        if self._latest:
            tf.compat.v1.train.update_checkpoint_state(os.path.dirname(self.path) or ".", self.path)

    def _groups(self):
        """The names of the tensors, in groups that are in memory together."""
        groups: list[list[str]] = [[]]
        room = _GROUP_BYTES
        for name in sorted(self._tensors):
            size = self._tensors[name][0]
            if size > room and groups[-1]:
                groups.append([])
                room = _GROUP_BYTES
            groups[-1].append(name)
            room -= size
        return groups

    def _save_together(self, groups):
        """Saves each group by itself, makes one checkpoint of them, and gives it its name: the index last."""
        parent, name = os.path.split(self.path)
        directory = tempfile.mkdtemp(prefix=f".{name}.", dir=parent or ".")
        try:
            saved = [os.path.join(directory, f"group-{i}") for i in range(len(groups))]
            for prefix, names in zip(saved, groups):
                self._save(prefix, names)
            together = os.path.join(directory, "together")
            with self._session() as session:
                session.run(
                    tf.raw_ops.MergeV2Checkpoints(
                        checkpoint_prefixes=saved, destination_prefix=together
                    )
                )
            for data in sorted(glob.glob(glob.escape(together) + ".data-*")):
                target = self.path + data.removeprefix(together)
                self._files.append(target)
                os.rename(data, target)
            os.rename(together + ".index", self.path + ".index")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _save(self, prefix, names):
        # One text, such as the objects of tf.train.Checkpoint, is read as bytes.
        found = [self._tensors[name][1]() for name in names]
        arrays = [np.array(each, object) if isinstance(each, bytes) else each for each in found]
        with self._session() as session:
            # Fed, because a graph cannot hold constants of more than 2 GB.
            values = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
            session.run(
                tf.raw_ops.SaveV2(
                    prefix=prefix,
                    tensor_names=names,
                    shape_and_slices=[""] * len(names),
                    tensors=values,
                ),
                dict(zip(values, arrays)),
            )

    @contextlib.contextmanager
    def _session(self) -> Iterator[tf.compat.v1.Session]:
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with (
            own_errors(f"checkpoint '{self.path}'"),
            tf.Graph().as_default(),
            tf.compat.v1.Session(config=config) as session,
        ):
            yield session


def part_file_name() -> str:
    """A name like those of TensorFlow's data files, so that its savers delete and copy it with them. Never one of TensorFlow's own."""
    letters = [
        "".join(random.SystemRandom().choices(string.ascii_lowercase, k=5)) for _ in range(2)
    ]
    return f"data-{letters[0]}-of-{letters[1]}"


@contextlib.contextmanager
def _locked(directory):
    """Holds a lock that other writers of the directory respect. It ends with the process."""
    file = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _remove(paths):
    for path in paths:
        with contextlib.suppress(OSError):
            os.remove(path)
