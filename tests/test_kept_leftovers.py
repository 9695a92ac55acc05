"""Directories that a killed process leaves next to the kept one."""

import os

import numpy as np
import pytest
from kept_util import KEYS
from kept_util import Program


def leave_behind(path, name):
    """What a process leaves that was killed while it built another table."""
    left = path / "ev" / name
    os.makedirs(left / "ssdhash")
    for file in "instance.lock", "ssdhash/ssd-1":
        (left / file).write_bytes(b"")
    return left


@pytest.mark.parametrize("restores", [False, True])
def test_what_a_killed_restore_left_goes_when_the_kept_rows_are_opened(tmp_path, restores):
    with Program(tmp_path / "rows") as first:
        first.session.run(first.init)
        first.run(first.train, KEYS)
        saved = first.save(str(tmp_path / "model"))
        trained = first.table(KEYS)
    left = leave_behind(tmp_path / "rows", "instance-1-1")
    others = leave_behind(tmp_path / "rows", "something-else")
    with Program(tmp_path / "rows") as second:
        if restores:
            second.restore(saved)
        else:
            second.session.run(second.init)
        assert not left.exists()
        assert others.exists()
        np.testing.assert_array_equal(second.table(KEYS), trained)
