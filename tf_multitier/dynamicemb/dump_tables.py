"""What dump.py, load.py and incremental.py ask of the tables of a model: which, their scores, the arguments of their optimizer."""

from __future__ import annotations

import collections.abc
import time
import typing

import numpy as np

from tf_multitier.dynamicemb import optimizers
from tf_multitier.dynamicemb.enums import EmbOptimType
from tf_multitier.dynamicemb.walk import find_collections

_NANOSECONDS = 1000  # of a microsecond, the unit of our versions by time
_MOST_OCCURRENCES = 2**32 - 1


class Score(typing.NamedTuple):
    """What the scores of a table are in a dump.

    Attributes:
      kind: "step", "time", "custom" or "frequency", as scores.Strategy.score.
      columns: "version" or "frequency", each of a pair in the user's order.
    """

    kind: str
    columns: tuple

    @property
    def are_ages(self) -> bool:
        """Whether they are ages in nanoseconds. Those of a pair are times in nanoseconds."""
        return self.kind == "time" and self.columns == ("version",)

    @property
    def eviction(self) -> str:
        """What the file of arguments calls it."""
        if "frequency" in self.columns:
            return "KLfu"
        return "KLru" if self.kind == "time" else "KCustomized"

    def in_file(
        self, frequencies: np.ndarray, versions: np.ndarray, time_of_dump: int
    ) -> np.ndarray:
        """The scores of rows: int64 [n, 1], [n, 2] of a pair."""
        if self.are_ages:
            versions = time_of_dump - versions
        if self.kind == "time":
            versions = versions * _NANOSECONDS
        by_name = {"frequency": frequencies, "version": versions}
        return np.stack([by_name[column] for column in self.columns], 1)

    def of_rows(
        self, scores: np.ndarray, time_of_load: int, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(frequencies, versions), int64 [n], of rows with these scores of a dump, [n, 1 or 2].

        A row without a frequency gets 1, and one without a version the step of the dump.

        Raises:
          ValueError: a frequency is negative.
        """
        by_name = {name: scores[:, i] for i, name in enumerate(self.columns)}
        frequencies = by_name.get("frequency", np.ones(len(scores), np.int64))
        if len(frequencies) and frequencies.min() < 0:
            raise ValueError(f"expected frequencies of at least 0, found {frequencies.min()}")
        versions = by_name.get("version", np.full(len(scores), step, np.int64))
        if self.kind == "time":
            versions = versions // _NANOSECONDS
            if self.are_ages:
                versions = time_of_load - versions
            versions = np.minimum(versions, time_of_load)
        return np.minimum(frequencies, _MOST_OCCURRENCES), np.ascontiguousarray(versions)


def same_eviction(found: typing.Any, expected: str) -> bool:
    """Whether a text names this eviction, as an enum's name or in its other writings."""
    return str(found).rsplit(".", 1)[-1].lower().removeprefix("k") == expected.lower().removeprefix(
        "k"
    )


class ModelTable(typing.NamedTuple):
    """A table of a model.

    Attributes:
      path: of its collection, from "model".
      collection: an EmbeddingCollection or EmbeddingBagCollection.
      name: of the table.
      table: a collection.Table.
    """

    path: str
    collection: typing.Any
    name: str
    table: typing.Any

    @property
    def variable(self) -> typing.Any:
        """The embedding variable."""
        return self.table.variable

    @property
    def score(self) -> Score:
        """What its scores are."""
        return Score(self.table.strategy.score, self.table.strategy.dump_by)

    @property
    def slots(self) -> list:
        """[(column, dim, initial value)] of the states of its optimizer."""
        if not self.table.trains:
            return []
        return optimizers.states(self.collection.row_optimizer, self.variable)


def tables_of(model: typing.Any, table_names: typing.Any, what: str) -> list[ModelTable]:
    """The tables of a model that have an embedding variable, in order.

    Args:
      model: anything that has collections: see find_collections.
      table_names: {collection: [table]}; None: all.
      what: starts messages.

    Raises:
      TypeError: table_names is something else.
      ValueError: the model has no collection, or no such table.
    """
    its = find_collections(model)
    found = {
        (path, name): ModelTable(path, collection, name, table)
        for path, collection in its
        for name, table in collection.tables_by_name.items()
        if not table.is_static
    }
    if table_names is None:
        return list(found.values())
    chosen = dict.fromkeys(_pairs(table_names, what))
    if not chosen:
        raise ValueError(
            f"{what}: table_names: expected one table or more, found {table_names!r}: None stands for all"
        )
    for path, name in chosen:
        if (path, name) not in found:
            names = ", ".join(f"'{name}' of '{path}'" for path, name in found)
            raise ValueError(
                f"{what}: table_names: expected tables of {names}; found '{name}' of '{path}'"
            )
    return [table for key, table in found.items() if key in chosen]


def world_of(tables: list, what: str) -> typing.Any:
    """The World among whose processes the tables are divided, or None. ValueError: some are, and others are not."""
    found = {id(table.variable.world): table for table in tables}
    if len(found) > 1:
        names = " and ".join(f"'{table.name}'" for table in found.values())
        raise ValueError(
            f"{what}: expected tables that were all made in strategy.scope(), or all outside of it, found {names}: pass table_names"
        )
    return tables[0].variable.world if tables else None


def _pairs(table_names, what):
    if not isinstance(table_names, collections.abc.Mapping):
        raise TypeError(
            f"{what}: table_names: expected a dict from collections to lists of tables, found {table_names!r}"
        )
    for path, names in table_names.items():
        if isinstance(names, str) or not isinstance(names, collections.abc.Iterable):
            raise TypeError(
                f"{what}: table_names: expected a list of tables of '{path}', found {names!r}"
            )
        for name in names:
            yield path, name


def now() -> int:
    """The time in microseconds."""
    return time.time_ns() // _NANOSECONDS


_SGD = {EmbOptimType.SGD, EmbOptimType.EXACT_SGD}
_HAVE_EPS = {
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def opt_type_of(collection: typing.Any) -> str:
    """What the file of arguments calls the optimizer of a collection."""
    kind = collection.fused_params["optimizer"]
    return EmbOptimType.SGD.value if kind in _SGD else kind.value


def same_optimizer(found: typing.Any, collection: typing.Any) -> bool:
    """Whether a file of arguments names the optimizer of a collection."""
    own = collection.fused_params["optimizer"]
    return found in {kind.value for kind in _SGD} if own in _SGD else found == own.value


def arguments_of(table: ModelTable) -> dict:
    """The file of arguments of a table."""
    fused, optimizer = table.collection.fused_params, table.collection.row_optimizer
    found: dict = {
        "opt_type": opt_type_of(table.collection),
        "lr": _shortest(optimizer._now(optimizer.learning_rate)),
    }
    if fused["optimizer"] is EmbOptimType.ADAM:
        found["iters"] = updates_of(optimizer)
        found.update({name: fused[name] for name in ("beta1", "beta2", "eps", "weight_decay")})
    elif fused["optimizer"] in _HAVE_EPS:
        found.update({name: fused[name] for name in ("eps", "initial_accumulator_value")})
    return {
        **found,
        "evict_strategy": table.score.eviction,
        "dist_type": table.table.options.dist_type,
        "step_score": int(optimizer.iterations.numpy()),
    }


def _shortest(value):
    """A float32 as the float of its shortest decimal, which is the same float32."""
    return float(str(np.float32(value)))


def updates_of(adam: typing.Any) -> int:
    """The updates of an Adam, which its power of beta_2 tells: it is a product of float32."""
    beta = np.float32(adam.hyperparameters["beta_2"].numpy())
    wanted, power, updates = np.float32(adam.beta_2_power.numpy()), beta, 0
    while power != wanted:
        power, before, updates = power * beta, power, updates + 1
        if (
            power == before
        ):  # it is less than float32 has, and no bit depends on the number of updates
            return max(updates, int(adam.iterations.numpy()) - 1)
    return updates


def set_updates(adam: typing.Any, updates: int) -> None:
    """Gives an Adam the powers that it has after this number of updates."""
    for name in ("beta_1", "beta_2"):
        beta = np.float32(adam.hyperparameters[name].numpy())
        power = beta
        for _ in range(updates):
            power, before = power * beta, power
            if power == before:
                break
        getattr(adam, f"{name}_power").assign(power)
