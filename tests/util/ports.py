"""Ports for servers of tests."""

import socket


def free_ports(number):
    """Different ports that are free. One looked for after another was given back may be the same."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
