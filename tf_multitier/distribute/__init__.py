"""Training in several processes. docs/distributed.md says which engine of TensorFlow to choose.

tf_multitier.distribute.serve()                  # the main program of a parameter server
strategy = tf_multitier.distribute.CollectiveStrategy()    # of each process of a world
"""

from tf_multitier._src.processes.wire_dtype import set_wire_dtype
from tf_multitier.distribute.checkpoints import CheckpointManager
from tf_multitier.distribute.collective import CollectiveStrategy
from tf_multitier.distribute.server import serve

__all__ = ["CheckpointManager", "CollectiveStrategy", "serve", "set_wire_dtype"]


def __dir__():
    return sorted(__all__)
