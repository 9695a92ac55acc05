"""The state of a row optimizer: its steps, hyperparameters and beta powers, as arrays with names.

Archives and the copies of `get_weights` keep it next to the rows. An optimizer takes the state of its own class only.
"""

from __future__ import annotations

import functools
import typing
import warnings

from tf_multitier import optimizers as row_optimizers
from tf_multitier.keras import loads


class OptimizerState(typing.NamedTuple):
    """The class of a row optimizer, and its variables as NumPy arrays."""

    optimizer: str
    variables: dict

    @classmethod
    def of(cls, optimizer: row_optimizers.RowOptimizer | None) -> OptimizerState | None:
        """The state of an optimizer; None for None."""
        if optimizer is None:
            return None
        arrays = {name: v.numpy() for name, v in optimizer.named_variables().items()}
        return cls(type(optimizer).__name__, arrays)

    def assign_to(self, optimizer: row_optimizers.RowOptimizer | None, where: str) -> None:
        """Gives the variables to an optimizer of the same class, by their names, at the end of the load that runs (loads.py).

        Warns about an optimizer of another class, and leaves it. A variable that only one of the two has is left, too: for example,
        the optimizer has a schedule, and the state has a number.

        Raises:
          ValueError: a variable has another shape or dtype.
        """
        if optimizer is None:
            return
        found = type(optimizer).__name__
        if found != self.optimizer:
            warnings.warn(
                f"{where}: expected the state of {found}, found that of {self.optimizer}: the rows are loaded, but iterations, learning "
                f"rate and the other variables of {found} stay as they are",
                stacklevel=2,
            )
            return
        own = {n: v for n, v in optimizer.named_variables().items() if n in self.variables}
        for name, variable in own.items():
            array = self.variables[name]
            if variable.dtype != array.dtype or not variable.shape.is_compatible_with(array.shape):
                raise ValueError(
                    f"{where}: {name} of {found}: expected {variable.dtype.name} of shape {variable.shape.as_list()}, found "
                    f"{array.dtype.name} of shape {list(array.shape)}"
                )
        with loads.together() as load:
            load.changes += [
                functools.partial(variable.assign, self.variables[name])
                for name, variable in own.items()
            ]
