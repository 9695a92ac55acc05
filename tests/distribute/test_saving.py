"""The folder by which the processes of a world do one save. Whole saves: test_world_checkpoints.py."""

import shutil
import types

import pytest
import tensorflow as tf

from tf_multitier.distribute import saving


def test_a_process_writes_nothing_into_the_folder_that_rank_0_removes(tmp_path):
    world = types.SimpleNamespace(rank=1, size=2, timeout=0.01)
    with saving.Together(world, str(tmp_path), 1, "a save") as together:
        together.done()
        said = [(path.name, path.read_bytes()) for path in tmp_path.iterdir()]
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
    assert [name for name, _ in said] == ["rank-1.json"] and not list(tmp_path.iterdir())


def test_a_process_is_told_that_the_folder_of_its_save_is_gone(tmp_path):
    world = types.SimpleNamespace(rank=1, size=2, timeout=60)
    with pytest.raises(tf.errors.AbortedError, match="a save: expected '.*' until the save ends"):
        with saving.Together(world, str(tmp_path / "folder"), 1, "a save") as together:
            shutil.rmtree(tmp_path / "folder")
            together.done()
