"""A plugin of pytest for runs over HBM (build_tools/suites.py): a file fails if its cases made no variable or table with HBM.

Without it, a suite that ignores the environment's storage type would pass over DRAM.
"""

import collections
import functools
import os

_made: collections.Counter = (
    collections.Counter()
)  # handles of variables and tables of the engine with HBM, by file
_files = [""]  # whose cases ran, the last one now


def _counted(make):
    from tf_multitier._src.options import option_record

    @functools.wraps(make)
    def made(*args, **kwargs):
        attrs = next(a for a in (*args, *kwargs.values()) if isinstance(a, dict))
        if "HBM" in option_record.as_json(attrs["options"]).get("storage_type", ""):
            _made[_files[-1]] += 1
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
            _made[_files[-1]] += 1

    return initialize


def _on_hbm(check):
    """The check of DynamicEmbTableOptions. Tables in DRAM, of which their options say no more, are over HBM."""

    @functools.wraps(check)
    def checked(self):
        kind = getattr(self.storage_type, "name", self.storage_type)
        if kind in (None, "DRAM") and self.external_storage is None:
            vars(self)["storage_type"] = os.environ["TF_MULTITIER_STORAGE_TYPE"]
            vars(self)["storage_path"] = os.environ["TF_MULTITIER_STORAGE_PATH"]
        check(self)

    return checked


def _on_cuda(init):
    """The initializer of one_embedding.Embedding, with a cache on the device."""

    @functools.wraps(init)
    def initialize(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.to("cuda")

    return initialize


def pytest_collection_finish():
    # Not earlier: conftest.py sets TensorFlow up before the package is imported.
    from tf_multitier import dynamicemb
    from tf_multitier import engine
    from tf_multitier import one_embedding
    from tf_multitier._src.execution import placement

    placement.handle_op = _counted(placement.handle_op)
    placement.owned_handle = _counted(placement.owned_handle)
    engine.Table.__init__ = _with_hbm(engine.Table.__init__)
    tables = dynamicemb.DynamicEmbTableOptions
    tables.__post_init__ = _on_hbm(tables.__post_init__)
    embedding = one_embedding.Embedding
    embedding.__init__ = _on_cuda(embedding.__init__)


def pytest_runtest_logstart(location):
    file = os.path.basename(location[0])
    if file != _files[-1]:
        _files.append(file)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0 and not all(_made[file] for file in _files[1:]):
        session.exitstatus = 3


def pytest_terminal_summary(terminalreporter):
    for file in dict.fromkeys(_files[1:]):
        terminalreporter.write_line(f"{file}: {_made[file]} variables and tables with HBM")
