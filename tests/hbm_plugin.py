"""A plugin of pytest for test_over_hbm.py: a run over HBM fails if it made no variable or table with HBM.

Without it, a suite that ignores the environment's storage type would pass over DRAM.
"""

import functools
import os

_made = []  # the storage type of each handle of a variable and each table of the engine that has HBM


def _counted(make):
    @functools.wraps(make)
    def made(*args, **kwargs):
        attrs = next(a for a in (*args, *kwargs.values()) if isinstance(a, dict))
        if "HBM" in attrs["storage_type"]:
            _made.append(attrs["storage_type"])
        return make(*args, **kwargs)

    return made


def _with_hbm(init):
    """The initializer of engine.Table. Without a storage type, which tables do not read from the environment, it takes that one."""

    @functools.wraps(init)
    def initialize(self, *args, **kwargs):
        if not any(name.startswith("storage_") for name in kwargs):
            kind = os.environ["TF_MULTITIER_STORAGE_TYPE"]
            kwargs |= dict(
                storage_type=kind,
                storage_path=os.environ["TF_MULTITIER_STORAGE_PATH"],
                storage_rows=[4] * kind.count("_"),
                device="emulated",
            )
        init(self, *args, **kwargs)
        if self.stats()["tiers"][0]["name"] == "hbm":
            _made.append(kwargs["storage_type"])

    return initialize


def pytest_collection_finish():
    # Not earlier: conftest.py sets TensorFlow up before the package is imported.
    from tf_multitier import engine
    from tf_multitier import placement

    placement.handle_op = _counted(placement.handle_op)
    placement.owned_handle = _counted(placement.owned_handle)
    engine.Table.__init__ = _with_hbm(engine.Table.__init__)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and not _made:
        session.exitstatus = 3


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"variables and tables with HBM: {len(_made)}")
