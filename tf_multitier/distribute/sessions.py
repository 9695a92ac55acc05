"""Worlds in v1 graphs: the Sessions of a graph with variables or collectives of a world run in the server of their process.

tf.compat.v1.Session()     without a target: connects to the server
MonitoredTrainingSession   rank 0 is the chief; others initialize variables too; then all get the dense values of rank 0
the end of the process     waits for that of the others: rank 0 may still save their parts. Not while they wait for this one in a step
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import time
import typing
import weakref

import tensorflow as tf

from tf_multitier._src.execution import graph_state
from tf_multitier._src.processes import reduced_gradients
from tf_multitier._src.processes import world as worlds
from tf_multitier._src.processes import world_steps
from tf_multitier._src.tensorflow.internals import BaseSession
from tf_multitier._src.tensorflow.internals import creator_arguments
from tf_multitier._src.tensorflow.internals import explain_errors
from tf_multitier._src.tensorflow.internals import Optimizer
from tf_multitier._src.tensorflow.internals import wrap_method
from tf_multitier._src.tensorflow.library import ops
from tf_multitier._src.variable.partitioned import is_embedding_variable

_v1 = tf.compat.v1


def _task(device):
    return (
        tf.DeviceSpec.from_string(device).replace(device_type=None, device_index=None).to_string()
    )


def server(resolver: typing.Any) -> tf.distribute.Server:
    """The server of this process, in a program without eager execution."""
    jobs = resolver.cluster_spec().as_dict()
    cluster = {job: jobs[job] for job in ("chief", "worker") if job in jobs}
    config = _v1.ConfigProto()
    leader = "chief" if "chief" in cluster else "worker"
    config.experimental.collective_group_leader = f"/job:{leader}/replica:0/task:0"
    return tf.distribute.Server(cluster, resolver.task_type, resolver.task_id, config=config)


def connect(world: worlds.World, resolver: typing.Any) -> None:
    """Lets the Sessions of this process use the collectives of the world."""
    address = resolver.cluster_spec().task_address(resolver.task_type, resolver.task_id)
    wrap_method(
        BaseSession, "__init__", lambda original: _init(original, world, f"grpc://{address}")
    )
    wrap_method(Optimizer, "apply_gradients", lambda original: _apply(original, world))
    wrap_method(_v1.train.Scaffold, "finalize", lambda original: _finalize(original, world))
    wrap_method(
        _v1.train.ChiefSessionCreator, "create_session", lambda original: _chief(original, world)
    )
    wrap_method(
        _v1.train.WorkerSessionCreator, "create_session", lambda original: _worker(original, world)
    )
    wrap_method(_v1.train, "MonitoredTrainingSession", lambda original: _monitored(original, world))
    wrap_method(_v1.train.Saver, "save", lambda original: _save(original, world))
    explain_errors(lambda session, error: _lost(world, session, error))


def _lost(world, session, error):
    """What the message of a Session's error begins with, if it has lost a process of the world."""
    if not isinstance(error, tf.errors.UnavailableError) or not world.is_used_in(session.graph):
        return None
    return (
        f"collective training: rank {world.rank} of {world.size}: expected all ranks to stay connected, found one that has ended: end all "
        "ranks, and start them again from the last checkpoint"
    )


def _init(original, world, target_of_process):
    def init(self, target="", graph=None, config=None):
        if not target and world.is_used_in(graph or _v1.get_default_graph()):
            target, config = target_of_process, _config(world, config)
            self._session = None  # __del__ asks for it if this raises
            _expect_all(world)
            _wait_at_exit(world)
        original(self, target, graph, config=config)

    return init


def _expect_all(
    world,
    what="a session",
    cure="start all ranks, or make CollectiveStrategy with a longer timeout",
):
    """Rank 0 waits for the other ranks: TensorFlow would wait for ever for one that does not come, or is dead."""
    until = time.monotonic() + world.timeout
    for rank in range(1, world.size) if not world.rank else ():
        while not _answers(world, rank):
            if time.monotonic() > until:
                raise tf.errors.DeadlineExceededError(
                    None,
                    None,
                    f"{what}: rank {rank} of {world.size} does not answer within {world.timeout:g} s: {cure}",
                )
            time.sleep(_PAUSE)


def _answers(world, rank):
    try:
        with _progress(world, rank) as theirs:
            theirs()
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError):
        return False
    return True


def _config(world, config):
    """Rank 0 sees the devices of all ranks, whose parts it initializes, saves and restores. Others see their own."""
    made = _v1.ConfigProto() if config is None else type(config)()
    if config is not None:
        made.CopyFrom(config)
    made.experimental.collective_group_leader = _task(world.devices[0])
    if not made.device_filters:
        made.device_filters.extend(map(_task, [world.device] if world.rank else world.devices))
    return made


def _apply(original, world):
    """Refuses gradients of dense variables that were not reduced. Those of rows are checked where they are applied."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = list(grads_and_vars)
        if not world.is_used_in(worlds.outermost_graph()):
            return original(self, pairs, *args, **kwargs)
        dense = [(g, v) for g, v in pairs if g is not None and not is_embedding_variable(v)]
        for grad, variable in dense:
            values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
            reduced_gradients.check(f"gradient of variable '{variable.name}'", values)
        alike = [_check_alike(world, [variable for _, variable in dense])] if dense else []
        with tf.control_dependencies(alike):
            train = original(self, pairs, *args, **kwargs)
        return world_steps.counted(world, train)

    return apply_gradients


def _finalize(original, world):
    def finalize(self):
        graph = _v1.get_default_graph()
        if world.is_used_in(graph) and graph not in _begins and not graph.finalized:
            _begins[graph] = broadcast_variables(world).name
        return original(self)

    return finalize


def _chief(original, world):
    def create_session(self):
        _expect_first(self, world)
        session = original(self)
        if world.is_used_in(session.graph):
            _connected.add(self)
            for act in graph_state.state_of(session.graph).before_broadcast:
                act(session)
            session.run(session.graph.get_operation_by_name(_begins[session.graph]))
        return session

    return create_session


def _worker(original, world):
    def create_session(self):
        if not world.is_used_in(_v1.get_default_graph()):
            return original(self)
        _expect_first(self, world)
        creator = _v1.train.ChiefSessionCreator(*creator_arguments(self))
        session = creator.create_session()
        _connected.add(self)
        return session

    return create_session


def _expect_first(creator, world):
    """MonitoredSession makes another session when it has lost a process, and would wait for ever until that is back."""
    if creator in _connected:
        raise tf.errors.FailedPreconditionError(
            None,
            None,
            f"collective training: rank {world.rank} of {world.size}: expected all ranks to stay connected, found one that has ended, or a "
            "SessionCreator that is used again: end all ranks, and start them again from the last checkpoint, or make a new SessionCreator",
        )


def _monitored(original, world):
    signature = inspect.signature(original)

    def session(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if world.rank and world.is_used_in(_v1.get_default_graph()):
            given["is_chief"] = False
        return original(**given)

    return session


def _save(original, world):
    """First looks for the other ranks, whose rows rank 0 saves."""

    def save(self, sess, *args, **kwargs):
        if world.is_used_in(sess.graph):
            _expect_all(
                world, "a save", "end all ranks, and start them again from the last checkpoint"
            )
        return original(self, sess, *args, **kwargs)

    return save


_begins: typing.Any = weakref.WeakKeyDictionary()  # {graph: the name of its broadcast_variables}
_connected: typing.Any = weakref.WeakSet()  # creators of sessions that have made one
_waits: list = []  # the world of this process, if it waits at its end
_PAUSE = 0.2  # seconds between two looks at another rank
_LONGEST_ANSWER = 10  # seconds after which a rank is asked again


def _wait_at_exit(world):
    if not _waits:
        _waits.append(world)
        atexit.register(_wait_for_all, world)


def _wait_for_all(world):
    """Rank 0 may still save the parts of this rank. So it waits for the ends of all, and they for its.

    If one waits for this rank in a step, the steps of all end with an error.
    """
    with _progress(world, world.rank, ends=world.rank > 0) as mine:
        _, succeeded, _, _, is_late = mine()
    if not is_late:  # else an error has ended a step of all
        _wait_for_others(world, succeeded)
    if world.rank == 0:  # last: the others end when they see it
        with _progress(world, 0, ends=True) as mine:
            mine()


def _wait_for_others(world, succeeded):
    until = time.monotonic() + world.timeout
    others = [rank for rank in range(world.size) if rank != world.rank]
    for rank in others if world.rank == 0 else [0]:
        with (
            contextlib.suppress(tf.errors.OpError),
            _progress(world, rank) as theirs,
        ):  # it has ended
            while True:
                begun, _, is_ended, waiting, _ = theirs()
                if waiting and begun > succeeded:
                    return _end(world, others)
                if is_ended or time.monotonic() > until:
                    break
                time.sleep(_PAUSE)
    return None


def _end(world, others):
    error = (
        f"collective training: rank {world.rank} of {world.size} has ended, and others wait for it in a step: let all ranks make the same "
        "steps"
    )
    _v1.logging.warning(error)
    for rank in others:
        with contextlib.suppress(tf.errors.OpError), _progress(world, rank, error=error) as theirs:
            theirs()


@contextlib.contextmanager
def _progress(world, rank, **attrs):
    """Gives a function: the numbers of the op MultitierProgress in the process of a rank."""
    task = _task(world.devices[rank])
    with tf.Graph().as_default(), tf.device(world.devices[rank]):
        progress = ops.multitier_progress(**attrs)
        timeout = int(1000 * min(_LONGEST_ANSWER, world.timeout)) or 1
        config = _v1.ConfigProto(device_filters=[task], operation_timeout_in_ms=timeout)
        with _v1.Session(f"grpc://{world.addresses[rank]}", config=config) as session:
            yield lambda: session.run(progress).tolist()


# ---- dense variables


def broadcast_variables(world: worlds.World, variables: typing.Any = None) -> tf.Operation:
    """See CollectiveStrategy.broadcast_variables."""
    variables = [
        each
        for each in (_v1.global_variables() if variables is None else variables)
        if not is_embedding_variable(each)
    ]
    if world.size == 1 or not variables:
        return tf.no_op()
    for each in variables:
        if not each.shape.is_fully_defined() or each.dtype.base_dtype in worlds.NOT_SENT:
            raise ValueError(
                f"variable '{each.name}': expected a known shape and a type of numbers, because all ranks get the values of rank 0, found "
                f"{each.shape} {each.dtype.name}"
            )
    values = world.broadcast([tf.identity(each) for each in variables])
    if world.rank == 0:
        return tf.group(*values)
    return tf.group(*[_v1.assign(each, value) for each, value in zip(variables, values)])


def _number(variable):
    """A number that differs for other bits, on the whole."""
    value = tf.reshape(tf.identity(variable), [-1])
    if value.dtype.size < 4:
        value = tf.cast(value, tf.float32 if value.dtype.is_floating else tf.int32)
    bits = tf.reshape(tf.bitcast(value, tf.int32), [-1])
    return tf.reduce_sum(bits * (2 * tf.range(tf.size(bits)) + 1))


def _check_alike(world, variables):
    """An op that fails at the first step if dense variables differ from those of other ranks."""
    exchange = world.new_exchange()

    def check():
        number = tf.add_n([_number(each) * (2 * i + 1) for i, each in enumerate(variables)])
        number = tf.cast(number, tf.int64)
        message = (
            "expected the dense variables of rank 0 on all ranks, found others: let all ranks run strategy.broadcast_variables() once, after "
            "initializers and restores"
        )
        every = world.of_all(number, exchange)
        return tf.debugging.Assert(tf.reduce_all(tf.equal(every, number)), [message])

    return world_steps.once(world, exchange, check)


# ---- gradients


_all_reduced: list = []  # the world of reduce_all
_inside: list = []  # whether a WorldOptimizer computes gradients, and reduces them itself


def _of_world(strategy, pairs, op):
    """Pairs of a gradient and its variable with the gradients of the world."""
    grads = strategy.reduce_gradients([_given(grad, variable) for grad, variable in pairs], op)
    return [(grad, variable) for grad, (_, variable) in zip(grads, pairs)]


class WorldOptimizer(Optimizer):
    """An optimizer of tf.compat.v1.train whose gradients are those of the world."""

    def __init__(self, strategy, world, optimizer, op):
        super().__init__(False, f"{optimizer.get_name()}OfWorld")
        self._strategy, self._world, self._optimizer, self._op = strategy, world, optimizer, op

    def minimize(
        self,
        loss,
        global_step=None,
        var_list=None,
        gate_gradients=Optimizer.GATE_OP,
        aggregation_method=None,
        colocate_gradients_with_ops=False,
        name=None,
        grad_loss=None,
        **kwargs,
    ):
        """See tf.compat.v1.train.Optimizer.minimize. kwargs: more arguments of the optimizer's apply_gradients."""
        pairs = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        return self.apply_gradients(pairs, global_step, name, **kwargs)

    def compute_gradients(self, *args, **kwargs):
        """See tf.compat.v1.train.Optimizer.compute_gradients. The gradients are those of the world."""
        _inside.append(True)
        try:
            pairs = self._optimizer.compute_gradients(*args, **kwargs)
        finally:
            _inside.pop()
        return _of_world(self._strategy, pairs, self._op)

    def apply_gradients(self, *args, **kwargs):
        """See apply_gradients of the optimizer."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, var, name):
        """See tf.compat.v1.train.Optimizer.get_slot."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        """See tf.compat.v1.train.Optimizer.get_slot_names."""
        return self._optimizer.get_slot_names()

    def variables(self):
        """See tf.compat.v1.train.Optimizer.variables."""
        return self._optimizer.variables()


def reduce_all(strategy: typing.Any, world: worlds.World) -> None:
    """From now on, all optimizers of tf.compat.v1.train use the gradients of the world, in its scope and in graphs that use it."""

    def wrapped(original):
        def compute_gradients(self, *args, **kwargs):
            pairs = original(self, *args, **kwargs)
            is_used = world.is_used_in(worlds.outermost_graph()) or worlds.current() is world
            return _of_world(strategy, pairs, "mean") if is_used and not _inside else pairs

        return compute_gradients

    if world not in _all_reduced:
        _all_reduced.append(world)
        wrap_method(Optimizer, "compute_gradients", wrapped)


def _given(grad, variable):
    """A gradient as reduce_gradients takes it: that of a dense variable is dense."""
    return grad if grad is None or is_embedding_variable(variable) else tf.convert_to_tensor(grad)
