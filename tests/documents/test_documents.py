"""The documents: links lead to files and headings that exist, named files exist, and prose lines are
short. The documents and the Python package: no word that readers had to read twice. No file has the
marks of an unresolved merge. README.md and the guide are short."""

import os
import re

import pytest
from paths import ROOT

from build_tools.site import documents


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """The valid names after '#' in a link: each heading in lower case, spaces as hyphens, without punctuation."""
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


def test_the_site_has_all_documents():
    with open(os.path.join(ROOT, "mkdocs.yml"), encoding="utf-8") as file:
        assert sorted(re.findall(r": (\S+\.md)$", file.read(), re.MULTILINE)) == documents()


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


SOURCE_PATH = r"`((?:benchmarks|build_tools|cc|docs|examples|tests|tf_multitier)/[\w/.-]+\.\w+)`"


def missing_files(text, exists=os.path.exists):
    """The files of the repository that a document names and that do not exist.

    Libraries (.so) are not asked for: a build makes them, and this also runs before one.
    """
    named = [path for path in re.findall(SOURCE_PATH, text) if not path.endswith(".so")]
    return [path for path in named if not exists(os.path.join(ROOT, path))]


@pytest.mark.parametrize("path", documents())
def test_files_that_a_document_names_exist(path):
    assert missing_files(read(path)) == []


def test_a_missing_file_is_found():
    text = "`tests/none.py` `tests/documents/test_documents.py` tests/a.py `tf_multitier/none.so`"
    assert missing_files(text) == ["tests/none.py"]


# Words that readers had to read twice, and what to write instead. Only words that no sentence
# needs: others ("who", "meanwhile", "stands") are left to review.
UNCLEAR = {
    "beside": "next to, compared with",
    "whoever": "a caller, a process",
    "somebody": "a caller, a process",
    "nobody": "no caller, no process",
    "but for": "except",
    "so many": "this number of",
    "told": "returned, set, reported",
    "gone": "deleted, missing, lost",
}
COLUMNS = 100


def unclear_words(text):
    """Lines of the text with such a word, as sentences. Code in Markdown counts too: it is read as well."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        for word, better in UNCLEAR.items():
            if re.search(rf"\b{word}\b", line, re.IGNORECASE):
                found.append(
                    f"line {number}: '{word}': write for example: {better}: {line.strip()}"
                )
    return found


def long_lines(text):
    """Numbers of lines of prose with more than COLUMNS columns. Tables, code and lines that begin with a link may be longer."""
    blank = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block.group(0).count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    lines = enumerate(blank.split("\n"), 1)
    return [n for n, line in lines if len(line) > COLUMNS and not re.match(r" *\||    |\[", line)]


def package_files():
    found = []
    for path, _, names in os.walk(os.path.join(ROOT, "tf_multitier")):
        found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith((".py", ".pyi")))


@pytest.mark.parametrize("path", documents() + package_files())
def test_texts_have_no_unclear_words(path):
    assert unclear_words(read(path)) == []


def comments_only(text):
    """The C++ text with everything before `//` left out, line by line."""
    return re.sub(r"^(?:(?!//).)*", "", text, flags=re.MULTILINE)


def test_comments_of_cpp_have_no_unclear_words():
    found = {}
    for path in sources():
        if path.endswith((".h", ".cc", ".cu")) and path.startswith(("cc/", "benchmarks/")):
            words = unclear_words(comments_only(read(path)))
            if words:
                found[path] = words
    assert found == {}


def test_only_comments_of_cpp_count():
    text = comments_only("int gone;  // it is gone\nint told = 1;\n// nobody\n")
    assert [line.split(":")[0] for line in unclear_words(text)] == ["line 1", "line 3"]


@pytest.mark.parametrize("path", documents())
def test_prose_has_short_lines(path):
    assert long_lines(read(path)) == []


def test_an_unclear_word_and_a_long_line_are_found():
    [found] = unclear_words("A row\nstands Beside it.")
    assert "line 2: 'beside': write for example: next to" in found
    assert unclear_words("besides, mistold, so much") == []
    assert long_lines("x" * 101 + "\n```\n" + "y" * 101 + "\n```\n| " + "z" * 101) == [1]


# ---- unresolved merges

SOURCES = (".md", ".py", ".pyi", ".h", ".cc", ".cu", ".toml", ".txt", ".bzl", "BUILD", "WORKSPACE")


def sources():
    """Paths, from the root, of all files that people write."""
    found = []
    for path, folders, names in os.walk(ROOT):
        folders[:] = [n for n in folders if not n.startswith((".", "bazel-")) and n != "build"]
        found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names]
    return sorted(path for path in found if path.endswith(SOURCES))


def merge_marks(text):
    return re.findall(r"^(?:<{7}|>{7}) .*", text, re.MULTILINE)


def test_no_file_has_marks_of_an_unresolved_merge():
    assert {path: marks for path in sources() if (marks := merge_marks(read(path)))} == {}


def test_marks_of_an_unresolved_merge_are_found():
    text = "\n".join(["a", "<" * 7 + " HEAD", "b", "=" * 7, "c", ">" * 7 + " 123 (Other)"])
    assert len(merge_marks(text)) == 2 and merge_marks("a <<<<<<< b\n=======\n") == []


# ---- the length of README.md and of the guide

README_LINES = 180
GUIDE_WORDS = 12_000


def test_readme_is_short():
    assert len(read("README.md").splitlines()) <= README_LINES


def words(text):
    """Number of words of a document, without its blocks of code."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return len(re.findall(r"\w[^\s|]*", text))


def test_the_guide_is_short():
    [guide] = re.findall(r"^  - Guide:\n((?:      - .*\n)+)", read("mkdocs.yml"), re.MULTILINE)
    pages = re.findall(r"docs/\w+\.md", guide)
    assert len(pages) > 10 and sum(words(read(page)) for page in pages) <= GUIDE_WORDS


def test_words_of_code_do_not_count():
    assert words("# One two\n```\nthree\n```\n| four | `five` |\n") == 4
