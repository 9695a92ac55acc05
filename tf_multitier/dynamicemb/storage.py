"""Storage: the base class of a storage of the user, as the last tier (tf_multitier/external_storage.py)."""

from tf_multitier.external_storage import Storage

__all__ = ["Storage"]
