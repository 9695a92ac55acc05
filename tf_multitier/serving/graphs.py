"""Turns the embedding variables of a saved graph into read-only ones."""

from __future__ import annotations

import typing

from tf_multitier import saved_objects
from tf_multitier.handle_attrs import HANDLE_OP_TYPES

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
                node.attr["read_only"].b = True
                if "in_place" in node.attr:  # the rows are those of the model's files
                    node.attr["in_place"].b = False
                if storage_path is not None and node.attr["storage_path"].s:
                    node.attr["storage_path"].s = storage_path.encode()
    for node in meta_graph.object_graph_def.nodes:
        saved_objects.make_read_only(node)
