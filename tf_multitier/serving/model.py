"""Model: a SavedModel that answers requests while it is replaced.

A version is a graph and a Session with its own dense variables and tables. `reload` loads the new version while the current one
answers requests, and then makes it the current one. A request uses the version that is current when it begins, and counts as its
user. A version is closed when it is not the current one and has no users. So a request sees the dense variables and the rows of one
version, even if it has many lookups.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.tensorflow.internals import SavedModelLoader
from tf_multitier._src.variable.object_checkpoint import has_objects
from tf_multitier.checkpoint.saved import find_prefix
from tf_multitier.serving.graphs import make_read_only
from tf_multitier.serving.objects import ObjectNames
from tf_multitier.serving.objects import read_by_names


class Version:
    """One version of a Model. `Model.pin` gives it.

    Attributes:
      path: the SavedModel's directory, or the checkpoint's prefix.
      signatures: {name: ({input: tf.DType}, {output: tf.DType})}.
      definitions: {name: SignatureDef} of the same signatures.
    """

    def __init__(self, path: str, tags: list, storage_path: str | None, config: typing.Any) -> None:
        loader = SavedModelLoader(path)
        self.path = path
        self._loader = loader
        self._tags = tags
        self._config = config
        self._users = 0
        self._graph = tf.Graph()
        meta_graph = loader.get_meta_graph_def_from_tags(tags)
        variables = os.path.join(path, "variables", "variables")
        has_variables = os.path.exists(variables + ".index")
        is_of_objects = has_variables and has_objects(tf.train.load_checkpoint(variables))
        self._objects = ObjectNames(variables, meta_graph) if is_of_objects else None
        make_read_only(meta_graph, storage_path)
        with self._graph.as_default():
            self._saver, _ = loader.load_graph(self._graph, tags)
        self._read_signatures(meta_graph)
        self._read_names: dict[str, str] = {}  # those that the graph reads in place of its own
        self._open(variables)

    def with_variables(self, prefix: str) -> Version:
        """A version with this graph and the variables of a checkpoint."""
        other = object.__new__(Version)
        other.__dict__.update(self.__dict__)
        other.path, other._users = prefix, 0
        if has_objects(tf.train.load_checkpoint(prefix)) != (self._objects is not None):
            kinds = ["a Saver, with names of a graph", "tf.train.Checkpoint, with objects"]
            expected, found = kinds if self._objects is None else kinds[::-1]
            raise ValueError(
                f"'{prefix}': expected a checkpoint of {expected}, as the SavedModel has them, found one of {found}: export a "
                "SavedModel from the program that writes the checkpoint"
            )
        if self._objects is not None:
            other._read_names = self._objects.in_checkpoint(prefix)
            if other._read_names != self._read_names:
                loader = copy.deepcopy(self._loader)
                graph = loader.get_meta_graph_def_from_tags(self._tags)
                read_by_names(graph, other._read_names, self._objects.path)
                other._graph = tf.Graph()
                with other._graph.as_default():
                    other._saver, _ = loader.load_graph(other._graph, self._tags)
        other._open(prefix)
        return other

    def run(
        self, inputs: Mapping[str, typing.Any], signature: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """See `Model.run`."""
        if signature not in self.signatures:
            hint = did_you_mean(signature, self.signatures)
            raise ValueError(
                f"'{self.path}': expected one of the signatures {', '.join(sorted(self.signatures))}; found {signature!r}{hint}"
            )
        feeds, fetches = self._names[signature]
        where = f"'{self.path}', signature '{signature}'"
        if set(inputs) != set(feeds):
            raise ValueError(
                f"{where}: expected the inputs {', '.join(sorted(feeds))}; found {', '.join(sorted(inputs)) or 'none'}"
            )
        dtypes = self.signatures[signature][0]
        given = {
            feeds[name]: _exact(f"{where}: input '{name}'", value, dtypes[name])
            for name, value in inputs.items()
        }
        return self._session.run(fetches, given)

    def _read_signatures(self, meta_graph):
        self.signatures, self.definitions, self._names = {}, {}, {}
        for name, signature in meta_graph.signature_def.items():
            if name.startswith("__"):
                continue
            sides = (signature.inputs, signature.outputs)
            if any(not info.name for side in sides for info in side.values()):
                continue  # sparse and composite tensors: not one tensor each
            self.definitions[name] = signature
            self._names[name] = tuple({k: info.name for k, info in s.items()} for s in sides)
            self.signatures[name] = tuple(
                {k: tf.as_dtype(info.dtype) for k, info in s.items()} for s in sides
            )

    def _open(self, prefix):
        session = tf.compat.v1.Session(graph=self._graph, config=self._config)
        try:
            with self._graph.as_default():
                if self._objects is not None:  # the Saver would take another road after an error
                    saver = self._saver.saver_def
                    session.run(saver.restore_op_name, {saver.filename_tensor_name: prefix})
                elif self._saver is not None:
                    self._saver.restore(session, prefix)
                self._loader.run_init_ops(session, self._tags)
        except BaseException:
            session.close()
            raise
        self._session = session

    def _close(self):
        self._session.close()
        del self._session  # frees the tables


def _exact(where, value, dtype):
    """The value of an input, which a Session would round and wrap to integers."""
    if not dtype.is_integer:
        return value
    array = np.asarray(value)
    if not array.size or array.dtype == dtype.as_numpy_dtype:
        return value
    if array.dtype.kind not in "iu":
        raise TypeError(f"{where}: expected integers ({dtype.name}), found {array.dtype}")
    for number in (array.min(), array.max()):
        if not dtype.min <= number <= dtype.max:
            raise ValueError(
                f"{where}: expected integers from {dtype.min} to {dtype.max}, found {number}"
            )
    return array


class Model:
    """A SavedModel that answers requests from any number of threads, and that can be replaced while it does.

    Its embedding variables are read-only, even if they were not when the model was saved. So models of one process that have the same
    rows share them (see `read_only`).

    Args:
      path: directory of a SavedModel.
      tags: tags of its meta graph.
      storage_path: directory for tiers that have files; None: the one that the model was saved with.
      config: tf.compat.v1.ConfigProto of the Sessions, or None.

    Raises:
      OSError, RuntimeError: there is no SavedModel with these tags.
      tf.errors.OpError: a file is missing or damaged. The message has the file.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        tags: Sequence[str] = ("serve",),
        storage_path: str | os.PathLike | None = None,
        config: typing.Any = None,
    ) -> None:
        self._tags, self._config = [tags] if isinstance(tags, str) else list(tags), config
        self._storage_path = None if storage_path is None else os.fspath(storage_path)
        self._process = os.getpid()
        self._lock = threading.Lock()  # of _current and of the versions' users
        self._reloading = threading.Lock()
        self._current: Version | None = self._load(os.fspath(path))

    def run(
        self, inputs: Mapping[str, typing.Any], signature: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """Answers a request, from one version.

        Args:
          inputs: {name of an input: array or value}.
          signature: name of a signature.

        Returns:
          {name of an output: array}.

        Raises:
          ValueError: there is no such signature or input, an integer does not fit, or the model is closed.
          TypeError: an input of integers has other values.
          RuntimeError: the process was forked since the model was loaded.
          tf.errors.OpError: the graph failed.
        """
        with self.pin() as version:
            return version.run(inputs, signature)

    @contextlib.contextmanager
    def pin(self) -> Iterator[Version]:
        """The current version, for several calls of its `run`. It stays loaded until the `with` block ends."""
        if (
            os.getpid() != self._process
        ):  # a Session would wait for threads that the process does not have
            raise RuntimeError(
                f"Model: expected the process {self._process}, which loaded it, found a fork of it: load it after the fork"
            )
        with self._lock:
            version = self._open_version()
            version._users += 1
        try:
            yield version
        finally:
            with self._lock:
                version._users -= 1
                unused = version._users == 0 and version is not self._current
            if unused:
                version._close()

    def reload(self, path: str | os.PathLike, variables: str | os.PathLike | None = None) -> None:
        """Loads another version and makes it the current one. Requests continue. If loading fails, the current version stays.

        While it loads, both versions are in memory. One reload runs at a time; others wait. Versions that continue one base share its
        rows: if the current version has the base of a delta, the reload of the delta reads only the deltas, and keeps only their rows
        in addition.

        Args:
          path: directory of a SavedModel; or a checkpoint (its prefix or its directory), whose variables the current graph then gets.
            The prefix of a delta gives its base with the deltas up to that one. A SavedModel of TensorFlow 2 takes checkpoints of
            tf.train.Checkpoint: their variables are found by the variables' own names, and lookup tables stay.
          variables: such a checkpoint for a SavedModel at `path`, in place of the SavedModel's own variables.

        Raises:
          As the constructor. ValueError: the model is closed, or the checkpoint lacks a variable or has another shape of it.
        """
        with self._reloading:
            path = os.fspath(path)
            if tf.saved_model.contains_saved_model(path):
                version = self._load(path)
                if variables is not None:
                    own = version
                    try:
                        version = own.with_variables(find_prefix(variables))
                    finally:
                        own._close()
            else:
                with self.pin() as current:
                    version = current.with_variables(find_prefix(path))
            self._replace(version)

    @property
    def path(self) -> str:
        """The path of the current version."""
        with self._lock:
            return self._open_version().path

    def close(self) -> None:
        """Refuses further requests. Those that run are answered, then everything is freed."""
        with self._reloading, contextlib.suppress(ValueError):
            self._replace(None)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _load(self, path):
        return Version(path, self._tags, self._storage_path, self._config)

    def _open_version(self):
        if self._current is None:
            raise ValueError("expected an open model, found a closed one")
        return self._current

    def _replace(self, version):
        with self._lock:
            try:
                old = self._open_version()
            except ValueError:
                if version is not None:
                    version._close()
                raise
            self._current = version
            unused = old._users == 0
        if unused:
            old._close()
