"""`configure.py docs`: the site of the documents, in build/site/html. A broken link or reference is an error."""

import os
import re
import shutil

from build_tools import environment
from build_tools.steps import ROOT, logged, step

SITE = os.path.join(ROOT, "build", "site")
REQUIREMENTS = os.path.join(ROOT, "requirements_docs.txt")
_LINK = re.compile(r"\]\(([^)\s#]+)")


def build():
    """Builds the site from the documents and the built package. Returns its first page."""
    environment.install_more(REQUIREMENTS)
    with step("site"):
        _copy_pages(os.path.join(SITE, "pages"))
        logged(
            [environment.VENV_PYTHON, "-m", "mkdocs", "build", "--strict"],
            "mkdocs found errors in the documents",
            env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES=""),
            shown=lambda lines: lines,
        )
    return os.path.join(SITE, "html", "index.html")


def _copy_pages(target):
    """Copies the documents, and the files that they link to, at their places in the tree: links stay as they are."""
    shutil.rmtree(target, ignore_errors=True)
    for page in documents():
        _copy(page, target)
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            links = _LINK.findall(file.read())
        for link in links:
            linked = os.path.normpath(os.path.join(os.path.dirname(page), link))
            if not link.endswith(".md") and os.path.isfile(os.path.join(ROOT, linked)):
                _copy(linked, target)


def documents():
    """Paths, from the root, of all documents."""
    found = [name for name in os.listdir(ROOT) if name.endswith(".md")]
    for folder in ("benchmarks", "cc", "docs", "examples"):
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(".md"))


def _copy(path, target):
    os.makedirs(os.path.dirname(os.path.join(target, path)), exist_ok=True)
    shutil.copyfile(os.path.join(ROOT, path), os.path.join(target, path))
