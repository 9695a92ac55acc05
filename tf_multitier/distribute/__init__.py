"""Training in several processes. docs/distributed.md says which engine of TensorFlow to choose.

tf_multitier.distribute.serve()    # the main program of a parameter server
"""

from tf_multitier.distribute.server import serve

__all__ = ["serve"]


def __dir__():
    return sorted(__all__)
