"""Links between the documents: files exist, and so do the headings that links name."""

import os
import re

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def documents():
    """Paths, from the root, of all documents."""
    found = [name for name in os.listdir(ROOT) if name.endswith(".md")]
    for folder in ("docs", "benchmarks", "examples", "cc"):
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(".md"))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """What a link may name after '#': each heading in lower case, spaces as hyphens, without punctuation."""
    headings = re.findall(
        r"^#+ +(.*?) *$",
        re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL),
        re.MULTILINE,
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path, text, exists=os.path.exists, read=read):
    """The links of a document that lead nowhere, as sentences."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        leads_to = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not exists(os.path.join(ROOT, leads_to)):
            found.append(f"{path}: {target}: there is no {leads_to}")
        elif anchor and anchor not in anchors(text if not file else read(leads_to)):
            found.append(f"{path}: {target}: {leads_to} has no heading #{anchor}")
    return found


@pytest.mark.parametrize("path", documents())
def test_links_of_a_document_lead_somewhere(path):
    assert broken_links(path, read(path)) == []


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("[a](none.md)", "there is no docs/none.md"),
        ("[a](a.md#none)", "docs/a.md has no heading #none"),
        ("# Here\n[a](#there)", "docs/x.md has no heading #there"),
    ],
)
def test_a_broken_link_is_found(text, complaint):
    exists = {os.path.join(ROOT, path) for path in ("docs/a.md", "docs/x.md")}.__contains__
    [found] = broken_links("docs/x.md", text, exists, lambda path: "# Some heading")
    assert complaint in found


def test_a_good_link_and_code_pass():
    text = "# One heading: `two`\n[a](#one-heading-two) [b](https://none) `[c](none.md)`\n```\n[d](none.md)\n```\n"
    assert broken_links("docs/x.md", text, lambda path: True) == []
