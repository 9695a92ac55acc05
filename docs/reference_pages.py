"""The reference of the site: pages that mkdocs makes from docstrings and from the record of options. Runs in mkdocs, with .venv's Python.

mkdocs calls on_config and on_files (mkdocs.yml: hooks). Filled is an extension of its reader of docstrings.
"""

import importlib
import types

import griffe
from mkdocs.structure.files import File

import tf_multitier
from tf_multitier._src.options import option_record

# Their names are also names of tf_multitier, or are DeepRec's.
_NOT_PAGES = {"config_pb2", "options"}

# The theme puts the text of a cell on one line.
_WRAPPED_TABLES = (
    ".wy-table-responsive table td, .wy-table-responsive table th { white-space: normal; }\n"
)


def on_config(config):
    """Puts the reference into the table of contents."""
    for section in config.nav:
        if "Reference" in section:
            section["Reference"] += [{title: path} for title, (path, _) in _pages().items()]
    return config


def on_files(files, config):
    """Adds the pages of the reference."""
    for path, text in _pages().values():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "tables.css", content=_WRAPPED_TABLES))
    return files


def _pages():
    """{title: (path, text)}."""
    pages = {"Options of a table": ("reference/option_record.md", _options())}
    modules = ["tf_multitier", "tf_multitier.external_storage"]
    modules += [
        "tf_multitier." + name
        for name in dir(tf_multitier)
        if name not in _NOT_PAGES and isinstance(getattr(tf_multitier, name), types.ModuleType)
    ]
    for name in modules:
        pages[name] = (f"reference/{name}.md", _module(name))
    return pages


def _module(name):
    """The text of the page of a module: its docstring and its names, without modules."""
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
    members = [n for n in public if not isinstance(getattr(module, n), types.ModuleType)]
    options = f"    options:\n      members: {members}\n"
    return f"# {name}\n\n::: {name}\n{options}"


def _options():
    """The text of the page of the record of options."""
    rows = [
        f"| `{name}` | {each['type']} | `{each['default']!r}` | {_cell(each['text'])} |"
        for name, each in option_record.DESCRIPTIONS.items()
        if each["in_table"]
    ]
    return (
        "# Options of a table\n\nWhat `engine.Table` takes. `StorageOption` and `EmbeddingVariableOption` take those of them"
        " that have their names.\n\n| Option | Type | Default | Meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _cell(text):
    return text.replace("|", "\\|")


class Filled(griffe.Extension):
    """Docstrings as they are at run time, where a module has put the words of the record into them."""

    def on_object(self, *, obj, **_):
        if obj.docstring and "{options}" in obj.docstring.value:
            found = importlib.import_module(obj.module.path)
            for name in obj.path[len(obj.module.path) + 1 :].split("."):
                found = getattr(found, name)
            obj.docstring.value = found.__doc__
