"""The version of the package. setup.py reads it too."""

VERSION = "0.1.0"
