"""The exchange: a lookup, of one variable or a group, asks each home of rows once, for all tables that it keeps.

A home is a device with parts of embedding variables: in another process than the caller, such as a parameter server, or one of several.

    the caller                                      each home
    MultitierRoute  ---- keys, counts: int64 ---->  MultitierServe: looks up, keeps a plan
    MultitierPool   <--- rows --------------------
    MultitierPoolGrad -- sums ------------------->  MultitierServeGrad, then the gradient and the update of a grouped lookup

A distinct key crosses once each way, with the number of its occurrences and of its table. Rows are pooled by the caller in the order of
occurrence, by the code of the local group: the bits do not depend on the number of homes. A table whole at its home is pooled there
where that is fewer bytes. Nothing else of a lookup crosses. TensorFlow sends the tensors.

Rows and their gradients cross as float32, or rounded to the type of processes/wire_dtype.py.
"""

import typing

import numpy as np
import tensorflow as tf

from tf_multitier._src.execution import eager
from tf_multitier._src.execution import origins
from tf_multitier._src.execution import placement
from tf_multitier._src.lookup import gradients
from tf_multitier._src.lookup import group_tape
from tf_multitier._src.lookup.lookup_member import Member
from tf_multitier._src.options import option_record
from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.processes.wire_dtype import wire_dtype
from tf_multitier._src.tensorflow.internals import colocate_with
from tf_multitier._src.tensorflow.internals import device_of_new_ops
from tf_multitier._src.tensorflow.internals import FuncGraph
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable import queries
from tf_multitier._src.variable import table_numbers
from tf_multitier._src.variable.queries import on_device_of


class _Home(typing.NamedTuple):
    """The parts at one home, in order of members and parts. members: the number of the member of each."""

    parts: list
    members: list

    @property
    def place(self):
        """A context for ops at this home."""
        if origins.is_v1_graph():
            return on_device_of(self.parts[0])
        return tf.device(self.parts[0].handle.device)


class _Servers:
    """The way to homes on other devices: each is asked by itself, and TensorFlow sends the tensors.

    homes: list of _Home. of_parts: the number of the home of each part, in order of members and parts.
    """

    def __init__(self, members):
        found = {}
        self.of_parts = []
        for number, member in enumerate(members):
            for part in member.parts:
                device = part.handle.device
                home = found.setdefault(device, _Home([], []))
                home.parts.append(part)
                home.members.append(number)
                self.of_parts.append(list(found).index(device))
        self.homes = list(found.values())
        self.units = [len(member.parts) for member in members]
        self.num_homes = len(self.homes)

    def to_homes(self, tensors, unused_elements=None):
        """What each of `homes` gets of the callers: a list with a tensor of each caller. tensors: one for each home."""
        return [[tensor] for tensor in tensors]

    def to_caller(self, answers):
        """What this caller gets of each home. answers: of each of `homes`, a list with a tensor for each caller."""
        return [answer for (answer,) in answers]


class _Processes:
    """The way to the processes of a world, each of which is home to a part of every variable. One collective brings all requests, one all
    rows, and one all gradients.

    Before them, sizes and digests of what is looked up are swapped: all pad to the largest, and processes that look up other variables
    get an error.
    """

    def __init__(self, members):
        self._world = world = members[0].variable.world
        self._members = members
        self.homes = [_Home([member.parts[0] for member in members], list(range(len(members))))]
        self.units = [world.size] * len(members)
        self.of_parts = list(range(world.size)) * len(members)
        self.num_homes = world.size
        self._number = world.new_exchange()
        self._largest = None  # number of wire elements

    def to_homes(self, tensors, elements=None):
        if elements is None:  # gradients
            return [self._world.swap(tensors, self._largest, worlds.GRADIENTS, self._number)]
        what = repr((wire_dtype().name, [_described(member) for member in self._members]))
        where = ", ".join(member.where for member in self._members)
        sizes = [tf.size(request, tf.int64) for request in tensors]
        words, self._largest = self._world.agreed(sizes, elements, what, where, self._number)
        return [self._world.swap(tensors, words, worlds.REQUESTS, self._number)]

    def to_caller(self, answers):
        return self._world.swap(answers[0], self._largest, worlds.ROWS, self._number)


# The options that all ranks share. Where rows are stored, and how many are in memory, is a rank's own.
_ALIKE = (
    *("initializer", "initializers", "default_value_no_permission", "eval_initializer", "filter"),
    *("steps_to_live", "l2_weight_threshold", "score", "stochastic_rounding"),
)


def _described(member):
    """What must be the same on all ranks."""
    variable = member.variable
    options = option_record.as_json(variable.handle_attrs["options"])
    return (
        *(member.where, member.dim, member.form, member.combiner, member.max_norm),
        *(variable.dtype.name, variable.key_dtype.name),
        [(name, options.get(name)) for name in _ALIKE],
    )


class _Looked(typing.NamedTuple):
    """What the gradient of an exchange on a tape needs. requests, served: of each of the way's `homes`."""

    requests: list
    served: list
    finished: typing.Any


def is_needed(variable):
    """Whether lookups of an embedding variable go through an exchange: its parts are on several devices, or in another process than the
    caller."""
    if variable.world is not None:
        return True
    parts = variable.parts
    devices = {part.handle.device for part in parts}
    if len(devices) > 1:
        return True
    (device,) = devices
    if "/job:" not in device or device.startswith(
        "/job:localhost/"
    ):  # in microseconds: each eager lookup asks
        return False
    if placement.may_be_on_gpu(parts[0]):
        return False
    process = tf.DeviceSpec.from_string(device)
    caller = tf.DeviceSpec.from_string(_device_of_caller())
    return (caller.job, caller.task) != (process.job, process.task)


def _device_of_caller():
    if not origins.is_v1_graph():
        with tf.init_scope():
            return tf.constant(0).device
    return device_of_new_ops()


def _on_cpu():
    """A context for the ops of the caller, which have kernels for the CPU alone. The process stays that of the caller's scope."""
    return tf.device("/device:CPU:0")


def values_of_keys(variable, keys, training, tables):
    """float32 keys.shape + [dim] of an embedding variable, or None if its rows are here. keys: int64 of any shape.

    tables: no or one tensor of table numbers, int64, shaped as `keys`.
    """
    if not is_needed(variable):
        return None
    member = _member(variable, keys, "dense")._replace(tables=tables[0] if tables else None)
    return look_up([member], [1], training)[0]


queries.through_exchange(values_of_keys)


def pool(variable, keys, rows, weights, batch, combiner, max_norm, training):
    """float32 [batch, dim]: see lookup._pool."""
    member = _member(variable, keys, "sparse")._replace(
        combiner=combiner,
        max_norm=max_norm,
        indices=tf.stack([rows, tf.zeros_like(rows)], 1),
        shape=tf.stack([batch, 1]),
        weights=weights,
    )
    return look_up([member], [1], training)[0]


def _member(variable, keys, form):
    name, dim = variable.variable_name, variable.embedding_dim
    member = Member(f"'{name}'", "table", variable.parts, variable, dim, *[None] * 8)
    return member._replace(form=form, combiner="sum", max_norm=-1.0, keys=keys)


def look_up(members, joins, training):
    """The values of members that are embedding variables. joins: the number of consecutive members in each tensor of values."""
    way = (_Servers if members[0].variable.world is None else _Processes)(members)

    def run():
        with _on_cpu():
            return _run(members, way, joins, training)

    if origins.is_v1_graph():
        return gradients.checked_in_loops(run()[0])
    handles = [part.handle for member in members for part in member.parts]
    weights = [member.weights for member in members if member.weights is not None]

    def gradient(looked, used, grads):
        return _gradient(members, way, joins, looked, used, grads)

    return group_tape.recorded("MultitierExchange", handles + weights, run, gradient)


def _run(members, way, joins, training):
    """(values, _Looked)."""
    names = [member.where for member in members]
    forms = [member.form for member in members]
    dims = [member.dim for member in members]
    entries = (
        [member.keys for member in members],
        [member.indices for member in members if member.indices is not None],
        [member.shape for member in members if member.shape is not None],
        [member.weights for member in members if member.weights is not None],
    )
    routed = ops.multitier_route(
        *entries,
        [member.tables for member in members if member.tables is not None],
        members=names,
        units=way.units,
        homes=way.of_parts,
        forms=forms,
        combiners=[member.combiner for member in members],
        dims=dims,
        weighted=[member.weights is not None for member in members],
        max_norms=[member.max_norm for member in members],
        num_tables=_numbers_of_tables(members),
        T=wire_dtype(),
        H=way.num_homes,
    )
    requests = way.to_homes(list(routed.requests), routed.elements)
    served = []
    for home, its_requests in zip(way.homes, requests):
        with home.place:
            served.append(
                ops.multitier_serve(
                    [part.handle for part in home.parts],
                    its_requests,
                    names=[names[member] for member in home.members],
                    dims=[dims[member] for member in home.members],
                    training=training,
                    T=wire_dtype(),
                )
            )
    pooled = ops.multitier_pool(
        routed.plan,
        way.to_caller([list(its.rows) for its in served]),
        *entries,
        members=names,
        forms=forms,
        dims=dims,
        joins=joins,
        N=len(joins),
    )
    return list(pooled.values), _Looked(requests, served, pooled.finished)


def _numbers_of_tables(members):
    """For each member, the number of its tables; 0: its keys have no table numbers. Empty: no member's have."""
    numbers = [0 if each.tables is None else each.variable.num_tables for each in members]
    return numbers if any(numbers) else []


# ---- gradients


def _pool_gradient(finished, used, grads, joins, dtype, num_homes, weighted):
    """(the numbers of the members that have a gradient, MultitierPoolGrad's result)."""
    ends = np.cumsum([0] + list(joins))
    members = [member for i in used for member in range(ends[i], ends[i + 1])]
    result = ops.multitier_pool_grad(
        finished,
        [tf.convert_to_tensor(grads[i]) for i in used],
        members=members,
        joins=[joins[i] for i in used],
        weighted=[weighted[member] for member in members],
        W=sum(weighted[member] for member in members),
        H=num_homes,
        T=dtype,
    )
    return members, result


def _home_gradient(handles, dims, tabled, requests, plan, op, used, sums):
    """The gradients of the handles at one home.

    tabled: the numbers of its units whose keys have table numbers. used: those of the units that have a gradient. op: the Serve; None
    eagerly.
    """
    grads = ops.multitier_serve_grad(requests, sums, dims=dims, U=len(dims))
    lookup = gradients.GroupLookup.of_tables(handles + requests, plan, op, dims)
    found = gradients.group_gradient(lookup, used, grads)[: len(handles)]
    tabled = [unit for unit in tabled if unit in used]
    if tabled:
        tables = ops.multitier_plan_tables(plan, units=tabled, N=len(tabled))
        for unit, its in zip(tabled, tables):
            # Entries after those of the distinct keys repeat them.
            indices = found[unit].indices
            more = tf.size(indices) - tf.size(its)
            its = tf.pad(its, [[0, more]], constant_values=-1)
            table_numbers.record(indices, its, handles[unit])
    return found


def _gradient(members, way, joins, looked, used, grads):
    """The gradients of all handles, in order of members and parts, and of all weights, for a tape."""
    weighted = [member.weights is not None for member in members]
    of_weights = [None] * sum(weighted)
    of_homes = {home.parts[0].handle.device: iter([None] * len(home.parts)) for home in way.homes}
    if used:
        dtype = looked.served[0].rows[0].dtype
        with _on_cpu():
            trained, result = _pool_gradient(
                looked.finished, used, grads, joins, dtype, way.num_homes, weighted
            )
        for member, its in zip((m for m in trained if weighted[m]), result.weights_grads):
            of_weights[sum(weighted[:member])] = its
        sums = way.to_homes(list(result.sums))
        for home, requests, served, its_sums in zip(
            way.homes, looked.requests, looked.served, sums
        ):
            its = [unit for unit, member in enumerate(home.members) if member in trained]
            if not its:
                continue
            op = None if tf.executing_eagerly() else served.plan.op
            dims = [members[member].dim for member in home.members]
            tabled = [u for u, m in enumerate(home.members) if members[m].tables is not None]
            handles = [part.handle for part in home.parts]
            with home.place:
                found = _home_gradient(
                    handles, dims, tabled, requests, served.plan, op, its, its_sums
                )
            of_homes[handles[0].device] = iter(found)
    of_handles = [next(of_homes[part.handle.device]) for m in members for part in m.parts]
    if members[0].variable.world is not None:
        reduced_gradients.mark_raw(of_handles)
    return of_handles + of_weights


def _grad_of_pool(op, *grads):
    """The gradient of MultitierPool as an operation of a graph."""
    gradients.refuse_control_flow(op)
    num_values, num_homes = op.get_attr("N"), op.get_attr("H")
    used = [i for i in range(num_values) if not gradients.is_no_gradient(op, i, grads[i])]
    found = [None] * len(op.inputs)
    if not used:
        return found
    weighted, joins = (
        _source(op.inputs[0], "MultitierRoute")[0].get_attr("weighted"),
        op.get_attr("joins"),
    )
    with _at(op):
        trained, result = _pool_gradient(
            op.outputs[num_values], used, grads, joins, op.get_attr("T"), num_homes, weighted
        )
        sums = list(result.sums)
        if op.inputs[1].op.type != "MultitierServe":  # rows of a world have padding
            padding = [tf.size(rows) - tf.size(its) for rows, its in zip(op.inputs[1:], sums)]
            sums = [tf.pad(its, [[0, more]]) for its, more in zip(sums, padding)]
    found[1 : 1 + num_homes] = sums
    first = len(found) - sum(weighted)  # the weights are the last inputs
    for member, its in zip((m for m in trained if weighted[m]), result.weights_grads):
        found[first + sum(weighted[:member])] = its
    return found


def _grad_of_serve(op, *grads):
    """The gradient of MultitierServe as an operation of a graph."""
    number, askers = op.get_attr("U"), op.get_attr("A")
    none = [None] * len(op.inputs)
    if all(grad is None for grad in grads[:askers]):
        return none
    its_members, route = _members_of(op)
    trained = _source(grads[0], "MultitierPoolGrad")[0].get_attr("members")
    used = [unit for unit, member in enumerate(its_members) if member in trained]
    if not used:
        return none
    numbers = route.get_attr("num_tables")
    tabled = [unit for unit, member in enumerate(its_members) if numbers and numbers[member]]
    _refuse_tape_outside(op)
    handles, requests = list(op.inputs[:number]), list(op.inputs[number:])
    dims = op.get_attr("dims")
    with _at(op):
        plan = op.outputs[askers]
        if op.graph is not tf.compat.v1.get_default_graph():
            # The gradient of a branch, or of a function, takes the plan from the caller's process, which it cannot enter. So the home
            # plans again.
            attrs = {name: op.get_attr(name) for name in ("names", "dims", "training", "T")}
            plan = ops.multitier_serve(handles, requests, **attrs).plan
        sums = list(grads[:askers])
        found = _home_gradient(handles, dims, tabled, requests, plan, op, used, sums)
    return found + none[number:]


def _refuse_tape_outside(op):
    """NotImplementedError for a tape outside of the function that has the lookup: the plan would have to leave the server's process."""
    if not eager.is_outside_of_graphs() or tf.DeviceSpec.from_string(op.device).job != "ps":
        return
    graph = tf.compat.v1.get_default_graph()
    if op.graph is not graph and not isinstance(graph.outer_graph, FuncGraph):
        raise NotImplementedError(
            f"the gradient of a lookup of embedding variables on servers ('{op.name}'): expected a tape in the tf.function that looks "
            "up, found one outside of it: let the function compute and apply the gradient"
        )


def _members_of(serve):
    """(the number of the member of each unit of a home, the MultitierRoute)."""
    route, request = _source(serve.inputs[serve.get_attr("U")], "MultitierRoute")
    if serve.get_attr("A") > 1:  # a process of a world, which has a part of each member
        return list(range(serve.get_attr("U"))), route
    member_of = np.repeat(np.arange(len(route.get_attr("units"))), route.get_attr("units"))
    return [m for m, home in zip(member_of, route.get_attr("homes")) if home == request], route


def _source(tensor, op_type):
    """The op of this type that a tensor comes from, and the number of its output."""
    waiting, seen = [tensor], set()
    for each in waiting:
        if each.op.type == op_type:
            return each.op, each.value_index
        if each.op.name not in seen:
            seen.add(each.op.name)
            waiting += each.op.inputs
    raise AssertionError(f"'{tensor.name}' comes from no {op_type}")


def _at(op):
    """A context for ops on the device of an op of a graph."""
    if origins.is_v1_graph():
        return colocate_with(op, ignore_existing=True)
    return tf.device(op.device)


def _refuse_second_derivative(op, *unused_grads):
    """LookupError: TensorFlow's error for an operation without a gradient."""
    name = op.name if isinstance(op, tf.Operation) else op.type
    raise LookupError(
        f"the gradient of a lookup of embedding variables in other processes, or on several devices, ('{name}') has no gradient of "
        "its own: end second derivatives with tf.stop_gradient"
    )


tf.no_gradient("MultitierRoute")
tf.RegisterGradient("MultitierPool")(_grad_of_pool)
tf.RegisterGradient("MultitierServe")(_grad_of_serve)
for _name in ("MultitierPoolGrad", "MultitierServeGrad"):
    tf.RegisterGradient(_name)(_refuse_second_derivative)
