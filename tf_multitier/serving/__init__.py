"""Serving: read-only variables, models that are replaced while they answer requests, and smaller files (docs/serving.md).

    model = tf_multitier.serving.Model("/models/7")
    scores = model.run({"user": ["ann", "bob"]})["score"]
    model.reload("/models/8")                     # requests continue; each sees one version

`read_only()` makes variables that cannot be trained. `freeze` writes a SavedModel or a checkpoint that has only what serving needs,
and `freeze_delta` what changed since.
`shared_tables` lists the tables that the Sessions of this process share. `Server` answers HTTP requests; `python3 -m
tf_multitier.serving /models/click --name=click` runs one.
"""

from tf_multitier._src.variable.read_only import read_only
from tf_multitier.serving.freeze import freeze
from tf_multitier.serving.freeze import freeze_delta
from tf_multitier.serving.model import Model
from tf_multitier.serving.model import Version
from tf_multitier.serving.server import Server
from tf_multitier.serving.tables import shared_tables
from tf_multitier.serving.tables import SharedTable

__all__ = [
    "Model",
    "Server",
    "SharedTable",
    "Version",
    "freeze",
    "freeze_delta",
    "read_only",
    "shared_tables",
]


def __dir__():
    return sorted(__all__)
