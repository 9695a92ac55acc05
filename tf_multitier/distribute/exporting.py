"""SavedModels of a world: each process writes its rows into the model's folder, and rank 0 traces the model.

    <directory>/variables/variables.data-<random>      the rows of a part, written by its rank
    <directory>/variables/variables.index, ...         of rank 0: dense variables, and the manifests of all parts

While rank 0 traces, an embedding variable has its part, and empty tables for those of the others. So lookups are those of one process. The
manifests of the saved rows take the place of those that a save would write.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator

import keras
import tensorflow as tf

from tf_multitier._src.tensorflow.internals import saved_model_pb2
from tf_multitier._src.variable import object_checkpoint
from tf_multitier._src.variable import saved_model
from tf_multitier._src.variable.embedding_variable import make_eager_variable
from tf_multitier._src.variable.working_folders import sync
from tf_multitier.distribute import checkpoints
from tf_multitier.distribute import saving
from tf_multitier.distribute.keras_names import paths_as_names


def export(world: typing.Any, model: typing.Any, directory: str) -> None:
    """See CollectiveStrategy.export_saved_model."""
    what = f"export_saved_model to '{directory}'"
    if world.size > 1:
        _export_together(world, model, directory, what)
    else:
        _check_new(directory, what)
        _save(model, directory)


def _save(model, folder):
    with paths_as_names(tf.train.Checkpoint(model=model)):
        if isinstance(model, keras.Model):
            model.export(folder, verbose=False)
        else:
            tf.saved_model.save(model, folder)


def _check_new(directory, what):
    if os.path.lexists(directory):
        raise FileExistsError(f"{what}: expected a new folder, found one that exists")


def _export_together(world, model, directory, what):
    root = tf.train.Checkpoint(model=model)
    variables = object_checkpoint.variables_of(root)
    object_checkpoint.check_of_world(variables)
    parent = os.path.dirname(directory)
    check = lambda: _check_new(directory, what)
    with saving.working_folder_of_all(world, parent, what, check) as (made, together):
        prefix = os.path.join(made, "variables", "variables")
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
        together.done(
            names=[variable.variable_name for variable in variables],
            manifests=object_checkpoint.write_parts(variables, prefix),
            trainable=checkpoints.checksums(root),
        )
        if world.rank:
            together.wait_for_end()
            return
        reports = together.wait_for_others()
        saving.check_alike(what, [report["names"] for report in reports])
        checkpoints.check_trainable(what, [report["trainable"] for report in reports])
        with _of_one_process(world, variables):
            manifests = {
                id(part): manifest
                for variable, its in zip(variables, zip(*(r["manifests"] for r in reports)))
                for part, manifest in zip(variable.parts, its)
            }
            with object_checkpoint.written_already(manifests):
                _save(model, made)
        _name_no_task(made)
        os.rename(made, directory)
        sync(parent)


def _name_no_task(folder):
    """Takes the task of this process out of the devices of a SavedModel. Another process has none of that name."""
    path = os.path.join(folder, "saved_model.pb")
    saved = saved_model_pb2.SavedModel()
    with open(path, "rb") as file:
        saved.ParseFromString(file.read())
    for graph in (meta_graph.graph_def for meta_graph in saved.meta_graphs):
        for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
            for node in nodes:
                device = tf.DeviceSpec.from_string(node.device)
                node.device = device.replace(job=None, replica=None, task=None).to_string()
    with open(path, "wb") as file:
        file.write(saved.SerializeToString(deterministic=True))
    os.remove(os.path.join(folder, "fingerprint.pb"))  # of other bytes


@contextlib.contextmanager
def _of_one_process(world, variables) -> Iterator[None]:
    """A context in which lookups of variables of a world are those of one process. The parts of other ranks are empty."""
    own = [variable.parts[0] for variable in variables]
    for variable, part in zip(variables, own):
        variable._parts, variable.world = [part], None
        for index in range(1, world.size):
            attrs = {**saved_model.attributes_when_loaded(part), "partition_index": index}
            name = f"{variable.variable_name}/part_{index}"
            variable._parts.append(make_eager_variable(name, attrs, None, trainable=False))
    try:
        yield
    finally:
        for variable, part in zip(variables, own):
            variable._parts, variable.world = [part], world
