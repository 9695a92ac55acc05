"""Prints what `collect`, `storage` and `rows` found as tables for people."""

from __future__ import annotations

import json
import math
import os

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def size(count: int | None) -> str:
    """Bytes for people: 1.2 GiB. "?" if they are not known."""
    if count is None:
        return "?"
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def as_json(described: dict) -> str:
    """JSON text. Floats that JSON lacks are strings: NaN, Infinity, -Infinity."""
    return json.dumps(_plain(described), allow_nan=False)


def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def table(head: list[str], lines: list[list]) -> str:
    """Columns of equal width, the first one left-aligned and the others right-aligned."""
    text = [[str(cell) for cell in line] for line in [head, *lines]]
    widths = [max(len(line[i]) for line in text) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in text
    )


def checkpoint(described: dict) -> str:
    """A checkpoint, as `collect.describe` gives it."""
    lines = [f"{described['kind']} {described['path']}", ""]
    tables = described["tables"]
    if tables:
        rows = [
            [
                f"{name} ({', '.join(t['names'][1:])})" if t["names"][1:] else name,
                t["dim"],
                "?" if t["rows"] is None else f"{t['rows']:,}",
                len(t["columns"]) - 1,
                t.get("partitions") or len(t.get("parts", [])) or "-",
                size(t.get("bytes")),
                t.get("damage") or t.get("verified") or "",
            ]
            for name, t in tables.items()
        ]
        head = ["embedding variable", "dim", "rows", "slots", "parts", "bytes", ""]
        lines += [table(head, rows), ""]
    else:
        lines += ["no embedding variables", ""]
    dense = described["dense"].values()
    lines.append(f"{len(dense)} dense tensors, {size(sum(d['bytes'] or 0 for d in dense))}")
    lines += [f"damaged: {text}" for text in described.get("damage") or []]
    if described.get("deltas"):
        lines += ["", _deltas(described["deltas"])]
    for name, t in tables.items():
        if "histograms" in t:
            lines += ["", name, *_details(t), *_histograms(t["histograms"])]
    return "\n".join(lines)


def _deltas(found):
    head = ["delta", "embedding variable", "changed rows", "removed keys", "bytes", ""]
    lines = [
        [
            os.path.basename(delta["path"]),
            name,
            f"{t['rows']:,}",
            f"{t['removed']:,}",
            size(t["bytes"]),
            t.get("damage") or t.get("verified") or "",
        ]
        for delta in found
        for name, t in delta["tables"].items()
    ]
    return table(head, lines)


def _details(described):
    columns = ", ".join(
        f"{c['name']} [{c['dim']}] from {c['initial_value']:g}" for c in described["columns"][1:]
    )
    lines = [f"  keys: {described['key_dtype']}", f"  values: {described['value_dtype']}"]
    lines.append(f"  slots: {columns or 'none'}")
    if described.get("initializer"):
        lines.append(f"  initializer: {json.dumps(described['initializer'])}")
    return lines


def _histograms(found):
    lines = []
    for name, histogram in found.items():
        most = max(histogram["rows"]) or 1
        cells = [
            [f"    {low:.6g} to {high:.6g}", f"{rows:,}", "#" * -(-rows * 40 // most)]
            for low, high, rows in zip(
                histogram["edges"], histogram["edges"][1:], histogram["rows"]
            )
        ]
        width = max(len(cell[0]) for cell in cells)
        count = max(len(cell[1]) for cell in cells)
        lines.append(f"  {name}")
        lines += [f"{a:<{width}}  {b:>{count}}  {c}".rstrip() for a, b, c in cells]
        if histogram.get("not_finite"):
            lines.append(f"    NaN or infinite  {histogram['not_finite']:,}")
    return lines


def storage(described: dict) -> str:
    """A storage directory, as `storage.describe` gives it."""
    lines = [f"{described['kind']} {described['path']}", ""]
    for instance in described["instances"]:
        state = "kept" if instance["kept"] else "temporary"
        if instance["in_use_by"] is not None:
            state += f", in use by process {instance['in_use_by']}"
        elif not instance["kept"]:
            state += ", a leftover: the next table of its name deletes it"
        lines.append(f"{instance['path']}: {state}")
        for tier, found in instance["tiers"].items():
            lines.append(f"  {tier}: {found['files']} files, {size(found['bytes'])}")
        options = instance.get("options")
        if options:
            names = ("dim", "storage_type", "storage_size", "initializer", "slots")
            lines.append("  " + ", ".join(f"{name} {options[name]}" for name in names))
        if "variable" in instance:
            lines.append("  " + _variable(instance["variable"]))
        found = instance.get("ssdhash", {})
        if "rows" in found:
            lines.append(
                f"  verified: {found['rows']:,} rows in {found['records']:,} whole records"
            )
        lines += [f"  not known: {text}" for text in found.get("unknown", [])]
        if "skipped" in found:
            lines.append(f"  not verified: {found['skipped']}")
        lines += [f"  damaged: {text}" for text in _damage(instance)]
    return "\n".join(lines)


def _variable(facts):
    described = f"of an embedding variable: dim {facts['dim']}, "
    if not facts["closed"]:
        return described + "not closed: a restore reads its checkpoint"
    described += f"slots {facts['slots']}, closed with {facts['rows']:,} rows"
    if facts["checkpoint_file"] is None:
        return described + ", which are those of no checkpoint"
    return described + f", those of the checkpoint with the file {facts['checkpoint_file']}"


def _damage(instance):
    return [instance[name] for name in ("damage",) if name in instance] + list(
        instance.get("ssdhash", {}).get("damage", [])
    )


def rows(found: list[dict]) -> str:
    """Rows, as `rows.of_keys` and `rows.hottest` give them."""
    lines = []
    for row in found:
        if "frequency" not in row:
            lines.append(f"  {row['key']}: no row")
            continue
        lines.append(f"  {row['key']}: frequency {row['frequency']}, version {row['version']}")
        for name, values in row.items():
            if isinstance(values, list):
                shown = " ".join(f"{v:.6g}" for v in values[:8])
                more = f" ... ({len(values)})" if len(values) > 8 else ""
                lines.append(f"    {name}: {shown}{more}")
    return "\n".join(lines)


def difference(found: dict) -> str:
    """{table: difference}, as `rows.difference` gives them."""
    head = ["embedding variable", "rows here", "there", "only here", "only there", "other value"]
    lines = []
    for name, d in found.items():
        if isinstance(d, str):
            lines.append([name, d, "", "", "", "", ""])
            continue
        numbers = [*d["rows"], d["only_here"], d["only_there"], d["other_value"], d["other_row"]]
        if "key_dtype" in d:
            name = f"{name} (keys: {d['key_dtype'][0]} here, {d['key_dtype'][1]} there)"
        lines.append([name, *("other dims" if n is None else f"{n:,}" for n in numbers)])
    return table([*head, "other slot, frequency or version"], lines)
