"""A dump that is killed leaves no manifest, and no table that is not whole; the next dump goes on."""

import json
import os
import shutil
import signal
import textwrap
import zlib

import forks
import numpy as np
import pytest
from paths import environment

from dynamicemb_dump_util import make
from dynamicemb_dump_util import train
from tf_multitier import dynamicemb as de
from tf_multitier.dynamicemb import dump_files
from worlds import needs_eager

pytestmark = needs_eager

CHILD = """
    import os, signal, sys
    import numpy as np
    from dynamicemb_dump_util import make, train
    from tf_multitier import dynamicemb as de

    model = make()
    train(model, np.arange(500))
    left, rename = int(sys.argv[2]), os.rename

    def killed(*names):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        rename(*names)

    os.rename = killed
    de.DynamicEmbDump(sys.argv[1], model, optim=True, allow_overwrite=True)
"""


class Killed(BaseException):
    """The end of the process."""


def check(path, model):
    """A manifest is that of a whole dump; without one, the load is refused or loads whole tables of one dump."""
    if (path / "manifest.json").exists():
        with open(path / "manifest.json") as file:
            for name, entry in json.load(file)["files"].items():
                data = (path / name).read_bytes()
                assert entry == {"size": len(data), "crc32": zlib.crc32(data)}
    try:
        de.DynamicEmbLoad(path, model)
    except ValueError as error:
        assert not (path / "manifest.json").exists() and "emb_keys" in str(error)
        return 0
    counts = {int(table.variable.total_count()) for table in model.tables_by_name.values()}
    assert len(counts) == 1  # the old dump has 1 row a table, and the new one 500
    return counts.pop()


def test_each_point_at_which_a_dump_may_end(tmp_path, monkeypatch):
    """Every change of the folder once it begins to move its files, as the last one."""
    old, new, other = make(), make(), make()
    train(old, [1])
    train(new, np.arange(500))
    real = {name: getattr(os, name) for name in ("rename", "remove")}
    found = []
    for point in range(100):
        path = tmp_path / str(point)
        de.DynamicEmbDump(path, old)
        left = point

        def at_point(name):
            def change(*names):
                nonlocal left
                if (left := left - 1) < 0:
                    raise Killed
                real[name](*names)

            return change

        def publish(*args, really=dump_files.publish):
            for name in real:
                monkeypatch.setattr(dump_files.os, name, at_point(name))
            try:
                really(*args)
            finally:
                for name, function in real.items():
                    monkeypatch.setattr(dump_files.os, name, function)

        with monkeypatch.context() as patches:
            patches.setattr(dump_files, "publish", publish)
            try:
                de.DynamicEmbDump(path, new, allow_overwrite=True)
                is_whole = True
            except Killed:
                is_whole = False
        found.append(check(path, other))
        if is_whole:
            break
        shutil.rmtree(path)
    assert is_whole and found[0] == 1 and found[-1] == 500
    assert found == sorted(found, key=[1, 0, 500].index)


@pytest.mark.parametrize("renames", [0, 5])
def test_a_killed_process(renames, tmp_path):
    path = tmp_path / "dump"
    run = ["-c", textwrap.dedent(CHILD), path, renames]
    assert forks.run(run, env=environment()).returncode == -signal.SIGKILL
    model = make()
    assert check(path, model) == 0
    left = [name for name in os.listdir(path) if dump_files.is_working_folder(name)]
    assert len(left) == 1
    train(model, [1])
    de.DynamicEmbDump(path, model, allow_overwrite=renames > 0)
    assert sorted(os.listdir(path)) == ["manifest.json", "model"]
    assert check(path, model) == 1
