"""The variables of a tf.train.Checkpoint, for the graph of a SavedModel of TensorFlow 2.

Both name what they have by the way to it through the program's objects, and the ways differ:

    variables/1/.ATTRIBUTES/VARIABLE_VALUE                      a SavedModel of Keras
    model/_operations/2/_kernel/.ATTRIBUTES/VARIABLE_VALUE      tf.train.Checkpoint(model=model)

Both also have the variable's own name, such as `sequential/dense/kernel`. By it they are matched.
"""

from __future__ import annotations

import collections
import typing

import tensorflow as tf

from tf_multitier._src.options.option_values import did_you_mean
from tf_multitier._src.variable.object_checkpoint import OBJECT_GRAPH
from tf_multitier._src.variable.object_checkpoint import variable_names
from tf_multitier.checkpoint.chain import load


class ObjectNames:
    """The names in a checkpoint of objects.

    Args:
      prefix: of a checkpoint of tf.train.Checkpoint, or of a SavedModel's variables.
      meta_graph: of that SavedModel, else None.

    Attributes:
      path: the prefix.
    """

    def __init__(self, prefix: str, meta_graph: typing.Any = None) -> None:
        reader = tf.train.load_checkpoint(prefix)
        self.path = prefix
        self._variables = variable_names(reader)
        self._shapes = reader.get_variable_to_shape_map()
        self._tables = load(prefix).tables
        self._asked = set() if meta_graph is None else _read_by_signatures(meta_graph)

    def in_checkpoint(self, prefix: str) -> dict[str, str]:
        """{name of a dense tensor or a table here: that of the same variable in the checkpoint `prefix`}.

        What no signature reads, such as the state of a generator of random numbers, may be missing there, and then here.

        Raises:
          ValueError: the checkpoint has no variable of a name or shape, or several of a name.
        """
        other = ObjectNames(prefix)
        keys = collections.defaultdict(list)
        for key, name in other._variables.items():
            keys[name].append(key)
        found = {OBJECT_GRAPH: OBJECT_GRAPH}
        for key, name in self._variables.items():
            if name not in keys:
                if name not in self._asked:
                    continue
                raise ValueError(
                    f"'{prefix}': expected the variable '{name}' of '{self.path}', found none{did_you_mean(name, keys)}: "
                    "save by a strategy's CheckpointManager, and export by its export_saved_model"
                )
            if len(keys[name]) > 1:
                raise ValueError(
                    f"'{prefix}': expected one variable '{name}', found {' and '.join(sorted(keys[name]))}: give each its own name"
                )
            [found[key]] = keys[name]
            if other._shapes[found[key]] != self._shapes[key]:
                raise ValueError(
                    f"'{prefix}', variable '{name}': expected the shape {self._shapes[key]} of '{self.path}', found "
                    f"{other._shapes[found[key]]}"
                )
        for table in self._tables.values():
            if table.name not in other._tables:
                hint = did_you_mean(table.name, other._tables)
                raise ValueError(
                    f"'{prefix}': expected the embedding variable '{table.name}' of '{self.path}', found "
                    f"{', '.join(other._tables) or 'none'}{hint}"
                )
            found |= dict.fromkeys(table.names, table.name)
        return found


def _read_by_signatures(meta_graph):
    """The names of the dense variables that the functions of signatures read."""
    graph = meta_graph.object_graph_def
    root = {child.local_name: child.node_id for child in graph.nodes[0].children}
    names = []
    for child in graph.nodes[root["signatures"]].children:
        function = graph.nodes[child.node_id]
        if (kind := function.WhichOneof("kind")) != "bare_concrete_function":
            raise ValueError(
                f"signature '{child.local_name}': expected a bare concrete function, found {kind}: save the model by tf.saved_model.save "
                "or model.export of this version of TensorFlow"
            )
        names.append(function.bare_concrete_function.concrete_function_name)
    read = {number for name in names for number in graph.concrete_functions[name].bound_inputs}
    return {graph.nodes[number].variable.name for number in read}


def read_by_names(meta_graph: typing.Any, names: dict[str, str], own: str) -> None:
    """Changes a MetaGraphDef: its functions that restore read other tensors and tables.

    Args:
      names: {name of a tensor or a table: the name that is read in its place}.
      own: the prefix of which tensors without another name are read: lookup tables, which have no names of their own, and what no signature reads.
    """
    for function in meta_graph.graph_def.library.function:
        for node in list(function.node_def):
            if node.op == "RestoreV2":
                _read_from_two(function, node, names, own)
            elif node.op == "MultitierReadPart":
                name = node.attr["variable_name"].s.decode()
                node.attr["variable_name"].s = names[name].encode()


def _read_from_two(function, node, names, own):
    """Makes two of a RestoreV2: one reads what `names` has, and the other the rest, of the prefix `own`."""
    nodes = {each.name: each for each in function.node_def}
    values = [nodes[each.partition(":")[0]].attr["value"].tensor for each in node.input[1:]]
    texts, slices = ([t.decode() for t in tf.make_ndarray(value).tolist()] for value in values)
    dtypes, prefix = list(node.attr["dtypes"].list.type), node.input[0]
    moved = {}  # {output of the node: where it is now}
    function.node_def.remove(node)
    for suffix, chosen in (
        ("given", [i for i, text in enumerate(texts) if text in names]),
        ("own", [i for i, text in enumerate(texts) if text not in names]),
    ):
        name = f"{node.name}/{suffix}"
        inputs = [
            _constant(function, f"{name}/names", [names.get(texts[i], texts[i]) for i in chosen]),
            _constant(function, f"{name}/slices", [slices[i] for i in chosen]),
        ]
        where = prefix if suffix == "given" else _constant(function, f"{name}/prefix", own)
        if chosen:
            made = function.node_def.add(name=name, op=node.op, input=[where, *inputs])
            made.attr["dtypes"].list.type.extend(dtypes[i] for i in chosen)
        for place, i in enumerate(chosen):
            moved[f"{node.name}:tensors:{i}"] = f"{name}:tensors:{place}"
    for each in function.node_def:
        each.input[:] = [moved.get(text, text) for text in each.input]


def _constant(function, name, value):
    """Adds a constant of strings. Returns its output."""
    tensor = tf.make_tensor_proto(value, tf.string)
    node = function.node_def.add(name=name, op="Const")
    node.attr["dtype"].type = tensor.dtype
    node.attr["value"].tensor.CopyFrom(tensor)
    return f"{name}:output:0"
