"""The names of deltas: `<base>.delta-0001` continues the checkpoint `<base>`, `<base>.delta-0002` continues that one, and so on."""

from __future__ import annotations

import glob
import re

import tensorflow as tf

DELTA = re.compile(r"^(.*)\.delta-(\d{4,})$")


def deltas(base: str) -> list[str]:
    """The prefixes of the deltas that continue the checkpoint `base`, in order.

    Raises:
      tf.errors.DataLossError: one is missing between two others.
    """
    found = sorted(
        (int(match[2]), match[0])
        for path in glob.glob(glob.escape(base) + ".delta-*.index")
        if (match := DELTA.match(path.removesuffix(".index"))) and match[1] == base
    )
    for expected, (number, prefix) in enumerate(found, 1):
        if number != expected:
            raise tf.errors.DataLossError(
                None, None, f"checkpoint {base}: expected delta-{expected:04d}, found {prefix}"
            )
    return [prefix for _, prefix in found]
