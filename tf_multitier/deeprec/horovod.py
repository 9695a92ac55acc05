"""A stand-in for `horovod.tensorflow`, whose last release knows no TensorFlow 2.21, where Horovod is not installed.

    import horovod.tensorflow as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer)

`init` makes the `tf_multitier.distribute.CollectiveStrategy` of the process, and the rest of the program is in its scope. Names that are
not here are refused.
"""

import importlib.util
import sys
import types

import tensorflow as tf

from tf_multitier._src.processes import world as worlds
from tf_multitier.deeprec import collective

Average, Sum = "mean", "sum"


def _strategy():
    if worlds.connected() is None:
        raise ValueError("horovod.tensorflow: expected hvd.init() before other calls, found none")
    return collective.of_process()


def init(*unused_args, **unused_kwargs):
    """Connects the processes that TF_CONFIG names. Arguments are ignored."""
    collective.enter_scope(collective.of_process())


def rank():
    """The number of this process."""
    return _strategy().rank()


def size():
    """The number of processes."""
    return _strategy().world_size()


def _neighbours():
    """(the number of this process among those of its machine, their number)."""
    if size() == 1:
        return 0, 1
    hosts = [address.rpartition(":")[0] for address in _strategy()._world.addresses]
    mine = hosts[rank()]
    return hosts[: rank()].count(mine), hosts.count(mine)


def local_rank():
    """The number of this process among those of its machine."""
    return _neighbours()[0]


def local_size():
    """The number of processes on this machine."""
    return _neighbours()[1]


def _op(average, op):
    if average is not None:
        return Average if average else Sum
    if op not in (None, Average, Sum):
        raise NotImplementedError(f"horovod.tensorflow: op: expected Average or Sum, found {op!r}")
    return op or Average


def allreduce(tensor, average=None, name=None, op=None):
    """The mean, or the sum, of a float32 tensor over the processes. So is its gradient."""
    del name
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype != tf.float32 or not tensor.shape.is_fully_defined():
        raise ValueError(
            f"horovod.tensorflow.allreduce: expected a float32 tensor of known shape, found {tensor.dtype.name} {tensor.shape}: cast it"
        )
    op = _op(average, op)

    @tf.custom_gradient
    def reduced(tensor):
        back = lambda grad: _strategy().all_reduce(tf.ensure_shape(grad, tensor.shape), op)
        return _strategy().all_reduce(tensor, op), back

    return reduced(tensor)


def _check_root(root_rank):
    if root_rank != 0:
        raise NotImplementedError(f"horovod.tensorflow: root_rank: expected 0, found {root_rank}")


def broadcast(tensor, root_rank, name=None):
    """The tensor of rank 0."""
    del name
    _check_root(root_rank)
    return _strategy().broadcast(tensor)


def broadcast_global_variables(root_rank):
    """An op that gives dense variables the values of rank 0."""
    _check_root(root_rank)
    return _strategy().broadcast_variables()


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook that does nothing: sessions of MonitoredTrainingSession begin with the values of rank 0."""

    def __init__(self, root_rank, device=""):
        del device
        _check_root(root_rank)


def DistributedOptimizer(optimizer, name=None, use_locking=False, *, op=None, **others):
    """An optimizer of tf.compat.v1.train whose gradients are those of all processes."""
    del name, use_locking
    given = sorted(name for name, value in others.items() if value)
    if given:
        raise NotImplementedError(
            f"horovod.tensorflow.DistributedOptimizer: expected optimizer and op alone, found {', '.join(given)}: omit them"
        )
    return _strategy().optimizer(optimizer, _op(None, op))


_NAMES = """Average BroadcastGlobalVariablesHook DistributedOptimizer Sum allreduce broadcast broadcast_global_variables init local_rank
local_size rank size""".split()


def _refuse(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"horovod.tensorflow.{name} does not exist here: Horovod is not installed, and its stand-in has {', '.join(_NAMES)}"
    )


def install():
    """Adds the stand-in to sys.modules, where Horovod is not installed."""
    if "horovod" in sys.modules or importlib.util.find_spec("horovod") is not None:
        return
    package, module = types.ModuleType("horovod"), types.ModuleType("horovod.tensorflow", __doc__)
    package.__path__ = []
    package.tensorflow = module
    module.__dict__.update({name: globals()[name] for name in _NAMES})
    module.__getattr__ = _refuse
    sys.modules.update({"horovod": package, "horovod.tensorflow": module})
