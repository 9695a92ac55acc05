"""Criteo display-advertising rows: read from text files, or generated.

One row is 40 tab-separated fields: a label (0 or 1), thirteen integers, twenty-six categories as
hexadecimal strings. Any field but the label may be empty. Integers may carry a decimal point
("1.0"), as some copies of the data do; those copies also write a missing category as "0", which is
read like an empty one.

Both sources give a `tf.data.Dataset` of `(features, labels)`:
  features: dict of "I1".."I13" -> float32 [batch], 0 where missing, and
            "C1".."C26" -> string [batch], "" where missing;
  labels:   float32 [batch].
"""

import contextlib
import glob
import gzip
import math
import os
import re

import numpy as np
import tensorflow.compat.v1 as tf

INT_NAMES = tuple(f"I{i}" for i in range(1, 14))
CAT_NAMES = tuple(f"C{i}" for i in range(1, 27))
NUM_FIELDS = 1 + len(INT_NAMES) + len(CAT_NAMES)

_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


# --- Files ---------------------------------------------------------------------------------------


def find_files(patterns):
    """Files named by `patterns`, in a fixed order.

    Args:
      patterns: list of file names, folders (every file in them that is not hidden) and globs.

    Returns:
      List of file names, sorted within each pattern.

    Raises:
      ValueError: a pattern names no file.
    """
    files = []
    for pattern in patterns:
        if os.path.isdir(pattern):
            found = [
                os.path.join(pattern, name)
                for name in sorted(os.listdir(pattern))
                if not name.startswith(".")
            ]
            found = [name for name in found if os.path.isfile(name)]
        else:
            found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern))
        if not found:
            raise ValueError(f"no files at {pattern!r}")
        files.extend(found)
    return files


def read(files, batch_size, keep=None, shuffle_rows=0, epochs=1, seed=1):
    """Rows of text files, plain or gzip (by the ending .gz), as a dataset.

    A malformed row ends the iteration with InvalidArgumentError; run the loop inside
    `naming_bad_line(files)` to have it named. Decoding runs in TensorFlow's C++ operations.

    Args:
      files: list of file names.
      batch_size: rows in a batch; the last one may be shorter.
      keep: function from the row's number over all files (int64 scalar tensor, from 0) to a bool
        tensor. None keeps every row.
      shuffle_rows: size of the shuffle buffer in rows; 0 keeps the order.
      epochs: how often to read the files; None for ever.
      seed: of the shuffle.

    Returns:
      A dataset of (features, labels) as at the top of this file.
    """

    def lines_of(name):
        compression = tf.where(tf.strings.regex_full_match(name, r".*\.gz"), "GZIP", "")
        return tf.data.TextLineDataset(name, compression_type=compression, buffer_size=1 << 20)

    lines = tf.data.Dataset.from_tensor_slices(list(files)).flat_map(lines_of)
    if keep is not None:
        lines = lines.enumerate().filter(lambda row, _: keep(row)).map(lambda _, line: line)
    if shuffle_rows:
        lines = lines.shuffle(shuffle_rows, seed=seed)
    if epochs != 1:
        lines = lines.repeat(epochs)
    return lines.batch(batch_size).map(decode, num_parallel_calls=2).prefetch(4)


def decode(lines):
    """Parses rows. lines: string [batch]. Returns (features, labels) as at the top of this file."""
    required = tf.constant([], tf.float32)
    fields = tf.io.decode_csv(
        lines,
        field_delim="\t",
        use_quote_delim=False,
        record_defaults=[required] + [[0.0]] * len(INT_NAMES) + [[""]] * len(CAT_NAMES),
    )
    labels, ints = fields[0], tf.stack(fields[1 : 1 + len(INT_NAMES)])
    is_label = tf.reduce_all(tf.equal(labels, 0.0) | tf.equal(labels, 1.0))
    is_finite = tf.reduce_all(tf.math.is_finite(ints))
    checks = [
        tf.debugging.Assert(is_label, ["label is neither 0 nor 1"]),
        tf.debugging.Assert(is_finite, ["an integer is not finite"]),
    ]
    with tf.control_dependencies(checks):
        labels, ints = tf.identity(labels), tf.identity(ints)
    features = dict(zip(INT_NAMES, tf.unstack(ints)))
    for name, column in zip(CAT_NAMES, fields[1 + len(INT_NAMES) :]):
        features[name] = tf.where(tf.equal(column, "0"), tf.zeros_like(column), column)
    return features, labels


@contextlib.contextmanager
def naming_bad_line(files):
    """Turns InvalidArgumentError raised inside into a ValueError that names file and line.

    Decoding does not know where a row came from; on an error, and only then, the files are read
    again to find it. An error that no row explains passes through unchanged.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for name in files:
            explanation = _first_bad_line(name)
            if explanation:
                raise ValueError(explanation) from error
        raise


def _first_bad_line(name):
    opener = gzip.open if name.endswith(".gz") else open
    with opener(name, "rt", encoding="utf-8", errors="replace", newline="\n") as stream:
        for number, line in enumerate(stream, start=1):
            fault = _fault(line.rstrip("\r\n").split("\t"))
            if fault:
                return f"{name}:{number}: {fault}"
    return None


def _fault(fields):
    """A description of the error in one row, or None."""
    if len(fields) != NUM_FIELDS:
        return f"expected {NUM_FIELDS} tab-separated fields, found {len(fields)}"
    for position, (name, text) in enumerate(zip(("label",) + INT_NAMES, fields)):
        value = float(text) if _NUMBER.fullmatch(text) else None
        if name == "label":
            if value not in (0.0, 1.0):
                return f"label: expected 0 or 1, found {text!r}"
        elif text and value is None:
            return f"field {position + 1} ({name}) is not a number: {text!r}"
        elif text and abs(value) > float(np.finfo(np.float32).max):
            return f"field {position + 1} ({name}) does not fit float32: {text!r}"
    return None


# --- Generated rows ------------------------------------------------------------------------------


class ClickModel:
    """A source of Criteo-like rows whose clicks follow a hidden model.

    Categories are drawn from Zipf distributions over vocabularies of 10 to 200,000 ids, so that a
    few ids are seen all the time and new ones keep appearing. The log odds of a click are a sum of
    hidden weights of ids, of products of hidden vectors of some pairs of columns (what a cross
    network is for), and of the logarithms of some integers. One `seed` fixes the hidden model; rows
    depend on it and on the stream's own seed.
    """

    MISSING = 0.03  # share of fields left empty
    PAIRS = ((2, 11), (3, 15), (7, 20), (9, 23))  # columns that interact
    VECTOR = 4  # size of the hidden vectors

    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        sizes = np.geomspace(10, 200_000, len(CAT_NAMES)).astype(np.int64)
        self._sizes = rng.permutation(sizes)
        self._cumulative, self._weights, self._vectors = [], [], {}
        for size in self._sizes:
            mass = np.arange(1, size + 1, dtype=np.float64) ** -rng.uniform(1.0, 1.3)
            cumulative = np.cumsum(mass)
            self._cumulative.append(cumulative / cumulative[-1])
            self._weights.append(rng.normal(0.0, 0.35, size).astype(np.float32))
        for pair in self.PAIRS:
            for column in pair:
                shape = (self._sizes[column], self.VECTOR)
                self._vectors[column] = rng.normal(0.0, 0.6, shape).astype(np.float32)
        self._int_weights = rng.normal(0.0, 0.15, len(INT_NAMES)).astype(np.float32)

    def expected_ids(self, rows):
        """The mean number of distinct ids of each column in batches of this number of rows: float64 [26]."""
        drawn = rows * (1.0 - self.MISSING)
        share = [np.diff(cumulative, prepend=0.0) for cumulative in self._cumulative]
        return np.array([np.sum(-np.expm1(drawn * np.log1p(-p))) for p in share])

    def draw(self, rows, rng):
        """Draws rows.

        Args:
          rows: how many.
          rng: numpy.random.Generator.

        Returns:
          labels: float32 [rows]; ints: float32 [rows, 13], NaN where missing;
          cats: bytes [rows, 26], b"" where missing.
        """
        return self._draw(rows, rng)[:3]

    def _draw(self, rows, rng):
        """The result of `draw`, and the hidden model's log odds of a click: float32 [rows]."""
        log_odds = np.full(rows, -1.4, np.float32)
        ids = np.empty((rows, len(CAT_NAMES)), np.int64)
        for column in range(len(CAT_NAMES)):
            ids[:, column] = np.searchsorted(self._cumulative[column], rng.random(rows))
            log_odds += self._weights[column][ids[:, column]]
        for left, right in self.PAIRS:
            log_odds += np.sum(
                self._vectors[left][ids[:, left]] * self._vectors[right][ids[:, right]], axis=1
            )
        ints = np.floor(rng.lognormal(1.0, 1.5, (rows, len(INT_NAMES)))).astype(np.float32)
        log_odds += (np.log1p(ints) - 1.2) @ self._int_weights
        labels = (rng.random(rows) < 1.0 / (1.0 + np.exp(-log_odds))).astype(np.float32)
        cats = _hexadecimal(ids)
        ints[rng.random(ints.shape) < self.MISSING] = np.nan
        cats[rng.random(cats.shape) < self.MISSING] = b""
        return labels, ints, cats, log_odds

    def _batches(self, batch_size, stream_seed, rows):
        """`_draw`'s answers for the batches of a stream."""
        rng = np.random.default_rng(stream_seed)
        left = math.inf if rows is None else rows
        while left > 0:
            batch = self._draw(int(min(batch_size, left)), rng)
            left -= batch[0].size
            yield batch

    def labels_and_log_odds(self, batch_size, stream_seed, rows):
        """The labels of `dataset` with these arguments, and the odds they were drawn with.

        The hidden model knows its weights and the fields that are missing in the rows, so no
        trained model can be expected to rank the rows better.

        Returns:
          labels, log odds: float32 [rows] each.
        """
        drawn = list(self._batches(batch_size, stream_seed, rows))
        return (
            np.concatenate([batch[0] for batch in drawn]),
            np.concatenate([batch[3] for batch in drawn]),
        )

    def dataset(self, batch_size, stream_seed, rows=None):
        """Rows as a dataset of (features, labels), as at the top of this file.

        Args:
          batch_size: rows in a batch.
          stream_seed: int; another one gives other rows of the same hidden model.
          rows: total; None for an endless stream.
        """

        def batches():
            for labels, ints, cats, _ in self._batches(batch_size, stream_seed, rows):
                yield labels, np.nan_to_num(ints), cats

        def named(labels, ints, cats):
            features = {name: ints[:, i] for i, name in enumerate(INT_NAMES)}
            features.update({name: cats[:, i] for i, name in enumerate(CAT_NAMES)})
            return features, labels

        signature = (
            tf.TensorSpec([None], tf.float32),
            tf.TensorSpec([None, len(INT_NAMES)], tf.float32),
            tf.TensorSpec([None, len(CAT_NAMES)], tf.string),
        )
        stream = tf.data.Dataset.from_generator(batches, output_signature=signature)
        return stream.map(named).prefetch(4)


def write_tsv(path, labels, ints, cats):
    """Writes rows as `ClickModel.draw` returns them; uses gzip if `path` ends in .gz."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "wt", encoding="ascii", newline="\n") as stream:
        for label, row_ints, row_cats in zip(labels, ints, cats):
            fields = [str(int(label))]
            fields += ["" if np.isnan(value) else str(int(value)) for value in row_ints]
            fields += [text.decode() for text in row_cats]
            stream.write("\t".join(fields) + "\n")


_HEX_DIGITS = np.frombuffer(
    "".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8
).reshape(256, 2)


def _hexadecimal(ids):
    """ids: int64 [rows, columns]. Eight hex digits of a hash of (column, id): bytes, same shape."""
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.arange(1, ids.shape[1] + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    words = (mixed >> np.uint64(32)).astype(np.uint32)
    digits = _HEX_DIGITS[words.reshape(-1, 1).view(np.uint8)]  # [fields, 4 bytes, 2 digits]
    return digits.reshape(-1, 8).view("S8").reshape(ids.shape)
