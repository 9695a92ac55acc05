"""BasePath: the folder of versions that a server looks through."""

import errno
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from test_serving_deltas import KEYS
from test_serving_deltas import Training
from test_serving_http import export

from tf_multitier.serving.base_path import BasePath
from tf_multitier.serving.model import Model


def test_a_version_that_was_renamed_has_its_rows_or_fails(tmp_path):
    base, new = tmp_path / "click", tmp_path / "new"
    with tf.Graph().as_default():
        training = Training(tmp_path)
        training.save()
        shutil.copytree(training.model(), base / "1")
        shutil.copytree(base / "1", new)
        os.mkdir(new / "rows")
        training.saver.save(training.session, str(new / "rows" / "train"), 1)
        training.save()
        os.rename(new, base / "2")
        versions = BasePath(str(base), None)
        keys = np.arange(KEYS)
        assert training.check(versions.model.run({"ids": keys}), keys) == 2
        for number, missing, message in [
            ("3", "checkpoint", "expected a file `checkpoint`, which names the newest save"),
            ("4", "train-1.index", "expected 'train-1.index', which its file `checkpoint` names"),
        ]:
            shutil.copytree(base / "2", new)
            os.remove(new / "rows" / missing)
            os.rename(new, base / number)
            versions.check()
            assert message in versions.errors()[int(number)]
            assert training.check(versions.model.run({"ids": keys}), keys) == 2
        shutil.rmtree(base / "2" / "rows")  # it is being deleted: its graph has other rows
        versions.check()
        assert "rows': expected the checkpoint that is served" in versions.errors()[2]
        assert training.check(versions.model.run({"ids": keys}), keys) == 2
        shutil.rmtree(base / "2")
        versions.check()
        assert training.check(versions.model.run({"ids": keys}), keys) == 1
        assert sorted(versions.errors()) == [3, 4]
        versions.model.close()
        training.session.close()


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.index"])
def test_a_version_with_a_file_that_could_block_its_reader_is_left_out(tmp_path, name):
    export(tmp_path / "1", tmp_path)
    versions = BasePath(str(tmp_path), None)
    shutil.copytree(tmp_path / "1", tmp_path / "new")
    os.remove(tmp_path / "new" / name)
    os.mkfifo(tmp_path / "new" / name)
    os.rename(tmp_path / "new", tmp_path / "2")
    versions.check()
    assert f"2/{name}': expected a regular file, found a FIFO" in versions.errors()[2]
    assert versions.model.path == str(tmp_path / "1")
    versions.model.close()


def test_a_version_that_failed_is_tried_again_after_waits_that_double(tmp_path, monkeypatch):
    export(tmp_path / "1", tmp_path)
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    now, tries, original = [0.0], [], Model.reload

    def reload(*arguments):
        tries.append(now[0])
        if len(tries) < 9:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return original(*arguments)

    os.rename(tmp_path / "2", tmp_path / "next")
    versions = BasePath(str(tmp_path), None, lambda: now[0])
    monkeypatch.setattr(Model, "reload", reload)
    os.rename(tmp_path / "next", tmp_path / "2")
    while versions.model.path != str(tmp_path / "2"):
        versions.check()
        now[0] += 1
        assert now[0] < 1000
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert versions.failures == 1 and versions.errors() == {}
    versions.model.close()
