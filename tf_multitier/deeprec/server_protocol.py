"""Makes `tf.distribute.Server` accept DeepRec's protocols, such as "grpc++". It uses "grpc" instead and logs that once.

DeepRec's "grpc++" and "star_server" send the same tensors faster between hundreds of machines. TensorFlow 2.21 has only "grpc".
"""

import functools

import tensorflow as tf

from tf_multitier._src.tensorflow.internals import tensorflow_server_pb2

_DEEPRECS = ("grpc++", "star_server", "star_server_lite")


def _known(protocol):
    if protocol not in _DEEPRECS:
        return protocol
    tf.compat.v1.logging.log_first_n(
        tf.compat.v1.logging.WARN,
        f"Server: protocol '{protocol}' is served by 'grpc'. Results are the same.",
        1,
    )
    return "grpc"


def _server_init(original):
    """A Server.__init__ that accepts DeepRec's protocols, as an argument or in a ServerDef."""

    @functools.wraps(original)
    def init(
        self,
        server_or_cluster_def,
        job_name=None,
        task_index=None,
        protocol=None,
        config=None,
        start=True,
    ):
        if isinstance(server_or_cluster_def, tensorflow_server_pb2.ServerDef):
            given, server_or_cluster_def = server_or_cluster_def, tensorflow_server_pb2.ServerDef()
            server_or_cluster_def.CopyFrom(given)
            server_or_cluster_def.protocol = _known(given.protocol)
        original(self, server_or_cluster_def, job_name, task_index, _known(protocol), config, start)

    return init


def install():
    """Makes servers of this process accept DeepRec's protocols."""
    tf.distribute.Server.__init__ = _server_init(tf.distribute.Server.__init__)
