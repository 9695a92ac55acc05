"""Ports for servers of tests."""

import socket

_HELD = []


def free_ports(number):
    """Ports that no other program gets from the system until this process ends, as tf_multitier.launch holds its own.

    TensorFlow's servers can bind them: their sockets, too, may reuse addresses.
    """
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("", 0))
    _HELD.extend(sockets)
    return [one.getsockname()[1] for one in sockets]
