"""Options, optimizers, storage types and tiers are on the pages that CONTRIBUTING.md says."""

import inspect
import os
import re

from paths import ROOT

from tf_multitier import optimizers
from tf_multitier import options
from tf_multitier._src.options.storage_types import StorageType


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def section(text, heading):
    """The text below a heading of level 2, up to the next one."""
    [found] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def undocumented_arguments(function, text):
    """Arguments that have no row in the table of the section that is named after the function."""
    rows = re.findall(r"^\| `(\w+)` \|", section(text, function.__name__), re.MULTILINE)
    return sorted(set(inspect.signature(function).parameters) - set(rows))


def unnamed(names, text):
    """Names that no inline code of the text has as a word."""
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    return sorted(name for name in names if not re.search(rf"\b{name}\b", code))


def test_every_option_of_a_variable_has_a_row_in_its_table():
    found = undocumented_arguments(options.EmbeddingVariableOption, read("docs/options.md"))
    assert found == []


def test_every_optimizer_is_named():
    assert unnamed(set(optimizers.__all__) - {"RowOptimizer"}, read("docs/tensorflow2.md")) == []


def test_every_storage_type_is_named():
    kinds = {kind.name for kind in StorageType if kind is not StorageType.DEFAULT}
    below_hbm = {kind for kind in kinds if kind.startswith("HBM_DRAM_")}  # one row for all of them
    text = section(read("docs/options.md"), "StorageOption")
    assert unnamed(kinds - below_hbm, text) == []


def test_every_tier_is_in_the_page_of_operations():
    tiers = {tier for kind in StorageType for tier in kind.tiers}
    text = read("docs/operations.md")
    assert sorted(tier for tier in tiers if not re.search(rf"\b{tier}\b", text)) == []


def test_every_tier_of_files_has_a_page_about_its_format():
    folders = {entry.name for entry in os.scandir(os.path.join(ROOT, "cc/tier")) if entry.is_dir()}
    folders.remove("test_tiers")  # writes no files
    pages = os.listdir(os.path.join(ROOT, "docs/formats"))
    assert sorted(folder for folder in folders if f"{folder}.md" not in pages) == []


def test_what_a_page_lacks_is_found():
    def Option(a=1, b=2):
        pass

    page = "## Option\n\n| `a` | 1 |\n\n## Other\n\n| `b` | 2 |\n"
    assert undocumented_arguments(Option, page) == ["b"]
    assert unnamed(["Adam", "AdamW"], "Adam and `AdamW`") == ["Adam"]
