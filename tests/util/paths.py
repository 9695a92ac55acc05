"""Where the sources are, and what programs of tests can import."""

import os
import sys

UTIL = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.dirname(UTIL)
ROOT = os.path.dirname(TESTS)


def environment(**variables):
    """Of a program that can import what this process can: tf_multitier, the helpers, the test that starts it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
