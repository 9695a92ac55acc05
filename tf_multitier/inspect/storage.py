"""Reads what a storage directory has (docs/formats/instance.md), without opening or locking a table."""

from __future__ import annotations

import json
import os
import re

from tf_multitier import _engine
from tf_multitier import engine
from tf_multitier._engine import EngineError
from tf_multitier._engine import FailedPreconditionError
from tf_multitier._src.options.storage_option import TIERS_WITH_FILES
from tf_multitier.engine import kept

_VARIABLE_FILE = "instance.variable"
_CLAIM = re.compile(r"instance\.claim-(\d+)-(\d+)-(\w+)")


def is_storage(path: str) -> bool:
    """Whether `path` is a storage directory, the directory of a table's name in one, or an instance."""
    return bool(_instances(path))


def describe(path: str, verify: bool) -> dict:
    """What a storage directory has: one entry for each instance of a table."""
    return {
        "kind": "storage directory",
        "path": path,
        "instances": [_instance(instance, verify) for instance in _instances(path)],
    }


def _instances(path):
    """The instances at or below a path, at most two levels down."""
    if _is_instance(path):
        return [path]
    found = []
    for name in _directories(path):
        below = os.path.join(path, name)
        if _is_instance(below):
            found.append(below)
        else:
            found += [
                os.path.join(below, i)
                for i in _directories(below)
                if _is_instance(os.path.join(below, i))
            ]
    return found


def _directories(path):
    if not os.path.isdir(path):
        return []
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir())


def _is_instance(path):
    return os.path.basename(os.path.normpath(path)).startswith("instance-") and os.path.isdir(path)


def _instance(path, verify):
    user = _user(path)
    described = {
        "path": path,
        "kept": os.path.exists(os.path.join(path, "instance.keep")),
        "in_use_by": user,
        "tiers": {
            tier: _files(os.path.join(path, tier))
            for tier in map(str.lower, TIERS_WITH_FILES)
            if os.path.isdir(os.path.join(path, tier))
        },
    }
    try:
        if os.path.exists(os.path.join(path, _VARIABLE_FILE)):
            described["variable"] = _of_variable(path)
        elif described["kept"]:
            described["options"] = kept.decode_options(path)[0]
    except (EngineError, NotImplementedError) as error:
        described["damage"] = str(error.args[-1])
    if verify and "ssdhash" in described["tiers"]:
        described["ssdhash"] = _salvageable(path, user)
    return described


def _of_variable(path):
    """What instance.variable says of the rows that a variable keeps.

    Raises:
      DataLossError: the file is damaged.
    """
    name = os.path.join(path, _VARIABLE_FILE)
    with open(name, "rb") as file:
        _, _, text = file.read().partition(b"\n")
    read = lambda manifest: json.loads(_engine.check_manifest(f"'{name}'", manifest))
    with kept.as_damage(name):
        facts = json.loads(text)
        options = kept.options_in(facts)
        checkpoint = read(facts["checkpoint"])["file"] if facts["checkpoint"] else None
        found = {"dim": options["dim"], "closed": bool(facts["closed"])}
        if found["closed"]:
            slots = [column["name"] for column in options["slots"]]
            found |= {"slots": slots, "rows": facts["num_rows"], "checkpoint_file": checkpoint}
        return found


def _salvageable(path, user):
    if user is not None:
        return {"skipped": f"process {user} uses it"}
    damage, unknown = [], {}
    try:
        try:
            found = engine.salvage(path)
        except FailedPreconditionError as error:
            # No file says the type of the keys. It does not change how many there are.
            found = engine.salvage(path, "int64")
            damage, unknown = [str(error.args[-1])], {"unknown": ["the type of the keys"]}
    except EngineError as error:
        return {"damage": [str(error.args[-1])]}
    counts = {"rows": len(found.rows), "records": found.records}
    return counts | unknown | {"damage": damage + found.damage}


def _files(directory):
    sizes = []
    for name in os.listdir(directory):
        try:
            sizes.append(os.path.getsize(os.path.join(directory, name)))
        except FileNotFoundError:  # deleted since
            continue
    return {"files": len(sizes), "bytes": sum(sizes)}


def _user(path):
    """The process that uses an instance, or None. It reads names only: opening the lock file could drop this process's own lock."""
    for name in sorted(os.listdir(path)):
        match = _CLAIM.fullmatch(name)
        if match and _start_of(match[1]) == match[2] and _boot_id() == match[3]:
            return int(match[1])
    return None


def _start_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _boot_id():
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read()[:8]
