"""Queries: the methods that EmbeddingVariable and PartitionedEmbeddingVariable share. They read or remove keys and rows.

`values_of_keys` is the dense lookup. The pooled lookups, and what TensorFlow's own lookup functions call, are in lookup.py.
"""

from __future__ import annotations

import math
import numbers
import typing

import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.options import key_types
from tf_multitier._src.options import option_record
from tf_multitier._src.options.key_types import as_keys
from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.processes import strategies
from tf_multitier._src.processes import world_keys
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import variable_accessed
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import keras_tracking
from tf_multitier._src.variable import statistics
from tf_multitier._src.variable import table_numbers
from tf_multitier.options import value_type


def on_device_of(part):
    """A context that places ops on the device of a part's `handle`, whatever device the caller is on."""
    return colocate_with(part.handle, ignore_existing=True)


def colocated(part):
    """`on_device_of`, for the use of a variable by a caller.

    Raises:
      RuntimeError: the part belongs to a v1 graph and the call is eager, or the reverse.
      NotImplementedError: see strategies.check_reached.
    """
    eager.check_world(part, "a use of embedding variable")
    strategies.check_reached(f"a use of embedding variable '{part.variable_name}'", [part])
    return on_device_of(part)


def partition_keys(keys, num_partitions):
    """Splits int64 keys [n] by the partition that owns them: ([int32 positions], [int64 keys]), one entry per partition."""
    return ops.multitier_partition_keys(keys, num_partitions=num_partitions)


_exchange = None  # see through_exchange


def through_exchange(values_of_keys):
    """Sets what looks up variables whose rows are elsewhere: its arguments are those of values_of_keys in exchange.py."""
    global _exchange
    _exchange = values_of_keys


def route(variable, keys, read, tail_shape=(), place=colocated, tables=()):
    """Calls `read(part, keys of that part)` for each part and puts the results back in the order of `keys`.

    Args:
      variable: an embedding variable. In a world of processes, all of them make the call.
      keys: int64, any shape.
      read: function of a part and int64 keys [m] (keys of any shape if there is one part). It returns keys.shape + tail_shape.
      tail_shape: static shape of the result for one key.
      tables: no or one tensor shaped as `keys`. read gets its elements after those of the keys.
      place: the context for the ops of a part. A gradient passes `on_device_of`: its lookup was checked.

    Returns:
      A tensor of shape keys.shape + tail_shape.
    """
    parts = variable.parts
    if variable.world is not None:
        return world_keys.ask(variable, keys, read, tail_shape, tables)
    if len(parts) == 1:
        with place(parts[0]):
            return read(parts[0], keys, *tables)
    flat = tf.reshape(keys, [-1])
    positions, part_keys = partition_keys(flat, len(parts))
    answers = []
    for part, its_keys, its_positions in zip(parts, part_keys, positions):
        its_tables = [tf.gather(tf.reshape(each, [-1]), its_positions) for each in tables]
        with place(part):
            answers.append(read(part, its_keys, *its_tables))
    return world_keys.stitched(positions, answers, keys, tail_shape)


def accessed(variable):
    """Tells TensorFlow that tapes, and the function that is being traced, read `variable`. Every lookup calls this first.

    Otherwise its gradient would silently be None. In v1 graphs, tf.custom_gradient and tf.recompute_grad would silently not train
    it; so they refuse it.

    Raises:
      RuntimeError, NotImplementedError: see eager.check_use and strategies.check_read.
      ValueError: see keras_tracking.looked_up.
    """
    eager.check_use(variable, "a lookup of embedding variable")
    strategies.check_read(f"a lookup of embedding variable '{variable.variable_name}'", [variable])
    keras_tracking.looked_up(variable)
    for part in variable.parts:
        if part.trainable:
            variable_accessed(part)


def training_attribute(training):
    """An argument `training` as the ops' attribute. TypeError if it is no bool."""
    return boolean("training", training)


def output_type(variable, output_dtype):
    """The type of what a lookup gives: the variable's, or the one that the caller asks for. TypeError if it is none of values."""
    if output_dtype is None:
        return variable.lookup_dtype or variable.dtype
    where = f"embedding variable '{variable.variable_name}': output_dtype"
    return value_type(where, output_dtype)


def typed(variable, values):
    """float32 values of rows in the variable's type. They have it already: nothing is rounded."""
    return values if variable.dtype == tf.float32 else tf.cast(values, variable.dtype)


def values_of_keys(variable, keys, training=True, tables=None):
    """The values of keys, each read from the part that owns it.

    Args:
      variable: an embedding variable, whole, partitioned, or a part of one.
      keys: int64 of any shape, whatever the variable's key_dtype: see as_keys.
      training: False: a key without a row reads as `eval_initializer` says.
      tables: integers of the shape of keys, or None: see lookup.embedding_lookup.

    Returns:
      float32 keys.shape + [embedding_dim], whatever the variable's type. A key without a row reads as its initial value; no key is
      created.

    Raises:
      RuntimeError: the variable belongs to a v1 graph and the call is eager, or the reverse.
      TypeError, ValueError: those of table_numbers.checked.
    """
    training = training_attribute(training)
    accessed(variable)
    tables = table_numbers.checked(variable, keys, tables)
    values = _exchange(variable, keys, training, tables)
    if values is not None:
        return values
    return route(
        variable,
        keys,
        lambda part, keys, *tables: ops.multitier_lookup(
            part.handle, keys, tables, training=training
        ),
        (variable.embedding_dim,),
        tables=tables,
    )


def timeout_us(timeout):
    """Seconds (a number > 0) as whole microseconds, at least 1.

    Raises:
      TypeError, ValueError: not a number, or out of range.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout: expected a number of seconds, found {timeout!r}")
    if not 0 < timeout <= MAX_TIMEOUT:
        raise ValueError(
            f"timeout: expected more than 0 and at most {MAX_TIMEOUT} seconds, found {timeout!r}"
        )
    return math.ceil(timeout * 1e6)


# Seconds: a year.
MAX_TIMEOUT = 365 * 24 * 3600


class Queries:
    """Methods of EmbeddingVariable and PartitionedEmbeddingVariable.

    In a v1 graph, each method builds ops; run the result in a Session. Eagerly, each method answers at once, and a method that is
    said to return an op returns None. No method needs an optimizer. Methods that take `ids` raise TypeError if
    the ids are not integers. A class that uses this mixin has `parts`, `variable_name`, `key_dtype`, `embedding_dim` and `handle`.
    """

    if typing.TYPE_CHECKING:

        @property
        def key_dtype(self) -> tf.DType: ...

    # The type that lookups give. None: that of the values. Variables of feature columns give float32.
    lookup_dtype: tf.DType | None = None
    # The World (processes/world.py) among whose processes the variable is divided: `parts` has that of this process. All processes call
    # the methods that take `ids`, at the same time; other methods tell of, and change, the rows of this process. None: in no world.
    world: typing.Any = None

    def _sum_over_parts(self, make, name):
        with tf.name_scope(name):
            answers = self._of_parts(make)
            return answers[0] if len(answers) == 1 else tf.add_n(answers)

    def _each_part(self, make, name):
        """One op that runs the op of each part."""
        with tf.name_scope(name):
            made = self._of_parts(make)
            return made[0] if len(made) == 1 else tf.group(*made)

    def _of_parts(self, make):
        made = []
        for part in self.parts:
            with colocated(part):
                made.append(make(part))
        return made

    def _sum_over_keys(self, make, keys):
        """The sum of `make(part, keys of that part)` over all parts, for int64 keys [n]."""
        if self.world is not None:
            return world_keys.sum_of(self, keys, make)
        split = [keys] if len(self.parts) == 1 else partition_keys(keys, len(self.parts)).part_keys
        answers = []
        for part, its_keys in zip(self.parts, split):
            with colocated(part):
                answers.append(make(part, its_keys))
        return answers[0] if len(answers) == 1 else tf.add_n(answers)

    def _ask_keys(self, make, ids, name):
        with tf.name_scope(name):
            return route(self, as_keys(self, ids), make)

    def total_count(self, name: str = "total_count") -> tf.Tensor:
        """The number of keys that have a row: an int64 scalar."""
        return self._count_rows(name)

    def get_dynamic_shape(self, name: str = "dynamic_shape") -> tf.Tensor:
        """[number of rows, embedding_dim]: int64 [2]. Source: DeepRec's `get_dynamic_shape`."""
        return tf.stack([self._count_rows(name), tf.constant(self.embedding_dim, tf.int64)])

    def _count_rows(self, name="rows"):
        return self._sum_over_parts(lambda p: ops.multitier_count(p.handle), name)

    def get_frequency(self, ids: typing.Any, name: str = "frequency") -> tf.Tensor:
        """How many occurrences of each id were trained on. Source: DeepRec's `get_frequency`.

        Returns:
          int64, shaped as `ids`. For a key without a row: its count if a filter counts it, else 0.
        """
        return self._ask_keys(lambda p, k: ops.multitier_frequency(p.handle, k), ids, name)

    def get_version(self, ids: typing.Any, name: str = "version") -> tf.Tensor:
        """The version that each id's last update has set: the global step. Source: DeepRec's `get_version`.

        In TensorFlow 2 it is the optimizer's `iterations`. Without either, it is the table's own count of updates. With the scores
        "time" and "custom" of `EmbeddingVariableOption`, it is the time in microseconds, or the number that `set_score` has set.

        Returns:
          int64, shaped as `ids`; -1 for a key without a row.
        """
        return self._ask_keys(lambda p, k: ops.multitier_version(p.handle, k), ids, name)

    def get_score(self, ids: typing.Any, name: str = "score") -> tf.Tensor:
        """The score of each id. `CacheStrategy.SCORE` keeps the rows of the highest score. See `EmbeddingVariableOption.score`.

        Returns:
          int64, shaped as `ids`: `get_frequency` if the score is "frequency", else `get_version`.
        """
        return self._ask_keys(lambda p, k: ops.multitier_score(p.handle, k), ids, name)

    def set_score(self, score: typing.Any, name: str = "set_score") -> tf.Operation:
        """An op that sets the score which updates give to their rows from now on, for `EmbeddingVariableOption(score="custom")`.

        A score may decrease; the first time, a warning is logged. A restore makes a new table: set the score again after it.

        Args:
          score: any int64: an integer or a scalar tensor.
          name: name of the op.

        Raises:
          TypeError: score is not an integer.
          ValueError: the variable has another score.
        """
        if self.parts[0].score != "custom":
            raise ValueError(
                f"embedding variable '{self.variable_name}': score: expected 'custom' for set_score, found "
                f"'{self.parts[0].score}'"
            )
        score = self._scalar(score, "score")
        return self._each_part(lambda p: ops.multitier_set_score(p.handle, score), name)

    def _scalar(self, value, what):
        """An integer as an int64 tensor."""
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return tf.constant(int(value), tf.int64)
        value = tf.convert_to_tensor(value)
        if value.dtype not in key_types.ACCEPTED[tf.int64]:
            raise TypeError(
                f"embedding variable '{self.variable_name}': {what}: expected an integer, found {value.dtype.name}"
            )
        return tf.cast(value, tf.int64)

    def peek(self, ids: typing.Any, name: str = "peek", tables: typing.Any = None) -> tf.Tensor:
        """Reads values without side effects. For tools that inspect a variable while it is in use.

        No row moves between tiers, no row counts as used, the statistics of lookups do not change, and there is no gradient.
        tables: see `tf_multitier.lookup.embedding_lookup`.

        Returns:
          ids.shape + [embedding_dim] in the variable's dtype: the values that a lookup returns.
        """
        with tf.name_scope(name):
            keys = as_keys(self, ids)
            values = route(
                self,
                keys,
                lambda p, k, *t: ops.multitier_peek(p.handle, k, t),
                (self.embedding_dim,),
                tables=table_numbers.checked(self, keys, tables),
            )
            return typed(self, values)

    def lookup_tier(self, ids: typing.Any, name: str = "tier") -> tf.Tensor:
        """The tier that holds each id's row. Source: DeepRec's `lookup_tier`.

        Tiers are numbered as the storage type names them, fastest first. Tier 0 is DRAM for DRAM_SSDHASH, and the disk for SSDHASH.
        A row that is being demoted is still in the tier that it leaves. After `drain()`, no row changes its tier until the next
        operation.

        Returns:
          int32, shaped as `ids`; -1 for a key without a row.
        """
        return self._ask_keys(lambda p, k: ops.multitier_lookup_tier(p.handle, k), ids, name)

    def export(self, name: str = "export") -> typing.Any:
        """Reads all rows, in increasing order of keys. Source: DeepRec's `export`.

        Returns:
          (keys [n], values [n, embedding_dim] in the variable's dtype, versions int64 [n], frequencies int64 [n]). Keys are uint64 or
          uint32 if that is the key_dtype, else int64. The rows of one partition are as of one moment.

        Raises:
          tf.errors.DataLossError, when run: a row in a file is damaged or missing.
        """
        with tf.name_scope(name):
            exports = []
            for part in self.parts:
                with colocated(part):
                    keys, values, *facts = ops.multitier_export(part.handle)
                    exports.append((keys, typed(self, values), *facts))
            if len(exports) == 1 and self.key_dtype != tf.uint64:
                keys, *others = exports[0]
                return (key_types.from_int64(self, keys), *others)
            keys, *others = [tf.concat(column, 0) for column in zip(*exports)]
            order = tf.argsort(key_types.in_order(self, keys))
            keys = key_types.from_int64(self, keys)
            return tuple(tf.gather(column, order) for column in (keys, *others))

    def remove(self, ids: typing.Any, name: str = "remove") -> tf.Tensor:
        """Removes keys with their slots, frequency and version.

        Args:
          ids: integers of any shape.
          name: name of the op.

        Returns:
          int64 scalar: the number of these keys that had a row.
        """
        with tf.name_scope(name):
            keys = tf.reshape(as_keys(self, ids), [-1])
            return self._sum_over_keys(lambda p, k: ops.multitier_remove(p.handle, k), keys)

    def expire(self, step: typing.Any = None, name: str = "expire") -> tf.Tensor:
        """Removes the rows that are expired at `step`, by GlobalStepEvict or L2WeightEvict.

        Args:
          step: an integer, or an integer scalar tensor: the current global step. With the score "time": microseconds since 1970;
            None: now.
          name: name of the op.

        Returns:
          int64 scalar: the number of removed rows.

        Raises:
          TypeError: step is not an integer, or is None and the score is not "time".
          ValueError: the variable has neither of these options.
        """
        where = f"embedding variable '{self.variable_name}': "
        if step is not None:
            step = self._scalar(step, "step")
        elif self.parts[0].score == "time":
            step = tf.cast(tf.timestamp() * 1e6, tf.int64)
        else:
            raise TypeError(
                f"{where}step: expected an integer, found None: only score='time' works without one"
            )
        option_record.check_expires(self.parts[0].table_options, where)
        return self._sum_over_parts(lambda p: ops.multitier_expire(p.handle, step), name)

    def prefetch(self, ids: typing.Any, timeout: float = 10.0, name: str = "prefetch") -> tf.Tensor:
        """Reads the rows of ids into the variable's first tier, DRAM or HBM, and pins them there until they are used.

        Prefetching affects speed only: it changes no value and creates no key. A row stays pinned until its next lookup or update,
        until `timeout` has passed, or until `release_prefetched()`. If it is prefetched again before that, the later timeout counts.
        At most a quarter of DRAM's rows are pinned; further ids are ignored. With HBM, at most a quarter of its rows are pinned there,
        and further rows in DRAM. A variable with one tier, DRAM or HBM, pins no row.

        Run it for the next batch while the current one trains, or use `tf_multitier.data.prefetch_embeddings`, which does that.

        Args:
          ids: integers of any shape, repeats allowed.
          timeout: seconds, > 0 and at most a year.
          name: name of the op.

        Returns:
          int64 scalar: the number of rows that are pinned now and were not pinned before.

        Raises:
          TypeError, ValueError: bad ids or timeout.
        """
        microseconds = timeout_us(timeout)
        with tf.name_scope(name):
            keys = tf.reshape(as_keys(self, ids), [-1])
            return self._sum_over_keys(
                lambda p, k: ops.multitier_prefetch(p.handle, k, timeout_us=microseconds), keys
            )

    def release_prefetched(self, name: str = "release_prefetched") -> tf.Operation:
        """An op that releases all rows that `prefetch` pinned."""
        return self._each_part(lambda p: ops.multitier_release_prefetched(p.handle), name)

    def stats(self, name: str = "stats") -> typing.Any:
        """Statistics of the table and its tiers, as a dict.

        The field "tiers" lists the tiers, fastest first: their rows and bytes, hits and misses, promotions and demotions, reads,
        writes and bytes of I/O. docs/statistics.md describes all fields with their units.

        Returns:
          A dict, eagerly; in a v1 graph, what `session.run` gives it for. That of a partitioned variable has the sums over its parts,
          and "parts", a list of their dicts. In a tf.function, a string scalar of JSON: the dict, or the list.
        """
        with tf.name_scope(name):
            texts = self._of_parts(lambda p: ops.multitier_stats(p.handle))
            if self.is_partitioned:
                texts = [tf.strings.join(["[", tf.strings.join(texts, ","), "]"])]
            return statistics.of(texts[0])

    def drain(self, name: str = "drain") -> tf.Operation:
        """An op that waits until the background work that is due when it starts has finished. It fails if that work failed."""
        return self._each_part(lambda p: ops.multitier_drain(p.handle), name)

    def flush(self, name: str = "flush") -> tf.Operation:
        """An op that makes all earlier changes durable, for `StorageOption(keep=True)`: it writes rows that are only in memory.

        The rows stay in memory, and training continues. If the last tier has a size, all rows move into it, and other operations
        wait. The op waits on a thread of its own.

        Raises:
          tf.errors.FailedPreconditionError, when run: the variable does not keep its rows.
          tf.errors.ResourceExhaustedError, when run: the disk is full. No row is lost.
        """
        return self._each_part(lambda p: ops.multitier_flush(p.handle), name)

    def reserve(self, rows: typing.Any, name: str = "reserve") -> tf.Operation:
        """An op that enlarges the index for this number of rows, and reserves address space for those that DRAM may hold.

        The rows themselves take memory when they are first used.

        Args:
          rows: rows of the whole variable: an integer or a scalar tensor, at least 0. Each of n parts prepares for an n-th.
          name: name of the op.

        Raises:
          TypeError: rows is not an integer.
          tf.errors.InvalidArgumentError, when run: rows is negative.
          tf.errors.ResourceExhaustedError, when run: memory is short.
        """
        rows = self._scalar(rows, "rows")
        parts = self.num_partitions if self.is_partitioned else 1
        # A negative number stays one: each part refuses it.
        share = rows if parts == 1 else tf.where(rows < 0, rows, (rows + parts - 1) // parts)
        return self._each_part(lambda p: ops.multitier_reserve(p.handle, share), name)

    def compact(self, name: str = "compact") -> tf.Operation:
        """An op that frees the disk space of removed and superseded rows now.

        It may read and write all stored data. It waits on a thread of its own, so training steps continue.
        """
        return self._each_part(lambda p: ops.multitier_compact(p.handle), name)

    def sparse_read(self, indices: typing.Any, name: str | None = None) -> tf.Tensor:
        """The values of keys: indices.shape + [embedding_dim], in the variable's dtype; float32 if a feature column made the variable.

        `tf.gather` and TensorFlow's lookups call this.
        """
        with tf.name_scope(name or "embedding_lookup"):
            values = values_of_keys(self, as_keys(self, indices))
            return values if self.lookup_dtype == tf.float32 else typed(self, values)
