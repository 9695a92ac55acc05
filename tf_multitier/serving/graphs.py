"""Turns the embedding variables of a saved graph into read-only ones."""

from __future__ import annotations

import typing

from tf_multitier._src.options import option_record
from tf_multitier._src.options.handle_attrs import HANDLE_OP_TYPES
from tf_multitier._src.variable import saved_model

_OPS = {
    *HANDLE_OP_TYPES,
    "MultitierInitialize",
    "MultitierReadPart",
    "MultitierRestore",
}


def make_read_only(meta_graph: typing.Any, storage_path: str | None = None) -> None:
    """Changes a MetaGraphDef: its embedding variables become read-only, in functions and as objects of TensorFlow 2 too.

    Args:
      meta_graph: a MetaGraphDef.
      storage_path: the path of tiers that have files, if not None.
    """
    graph = meta_graph.graph_def
    for nodes in [graph.node, *(function.node_def for function in graph.library.function)]:
        for node in nodes:
            if node.op in _OPS:
                record = node.attr["options"].s or option_record.text_of(
                    {}
                )  # a default is not written
                node.attr["options"].s = _read_only(record, storage_path)
    for node in meta_graph.object_graph_def.nodes:
        saved_model.make_read_only(node)


def _read_only(record, storage_path):
    """The record of a variable that reads the rows of the model's files."""
    values = {"read_only": True, "in_place": False}
    if storage_path is not None and "storage_path" in option_record.as_json(record):
        values["storage_path"] = storage_path
    return option_record.changed(record, **values)
