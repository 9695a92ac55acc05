"""The names of docs/deeprec_names.md, one by one. The test uses each name as a program does and expects the outcome on the page."""

import json
import os
import re

import forks
import pytest
from paths import ROOT

import deeprec_names


# Uses each name in a new graph. Prints {name: [kind of the exception, message, exceptions that led to it, file that raised]}.
_PROGRAM = """
import json, logging, traceback
import tensorflow as tf
prelude, names = json.load(open("names.json"))
logging.getLogger("tensorflow").setLevel("ERROR")
found = {}
for name, use in names.items():
    with tf.Graph().as_default():
        try:
            exec(prelude + use, {"__name__": "__main__", "__file__": __file__})
            found[name] = None
        except Exception as error:
            shown = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            found[name] = [[base.__name__ for base in type(error).__mro__], str(error), repr(shown) if shown else "",
                           traceback.extract_tb(error.__traceback__)[-1].filename]
json.dump(found, open("found.json", "w"))
"""


def _rows():
    """{name: (outcome, text)} of the lists and the table."""
    with open(os.path.join(ROOT, "docs/deeprec_names.md"), encoding="utf-8") as file:
        section = file.read().split("\n## Every name\n")[1].split("\n## ")[0]
    found = []
    lists = re.findall(
        r"^\*\*(Works|No effect)\*\* [^`]*: (.*?)\.\n\n", section, re.MULTILINE | re.DOTALL
    )
    assert len(lists) == 2, "a list that has another form"
    for outcome, names in lists:
        found += [(name, outcome.lower(), "") for name in re.findall(r"`([^`]+)`", names)]
    rows = re.findall(
        r"^\| (`.+?`) \| (works|no effect|refused) \| (.*?) ?\|$", section, re.MULTILINE
    )
    assert len(rows) == len([line for line in section.splitlines() if line.startswith("| `")]), (
        "a row that has another form"
    )
    for names, outcome, text in rows:
        found += [(name, outcome, text) for name in re.findall(r"`([^`]+)`", names)]
    assert len(found) == len({name for name, _, _ in found}), "a name that is there twice"
    return {name: (outcome, text) for name, outcome, text in found}


ROWS = _rows()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The outcome of each name, in one run of the command."""
    directory = tmp_path_factory.mktemp("names")
    (directory / "program.py").write_text(_PROGRAM)
    (directory / "names.json").write_text(json.dumps([deeprec_names.PRELUDE, deeprec_names.NAMES]))
    environ = dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    done = forks.run(["-m", "tf_multitier.deeprec", "program.py"], environ, directory)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((directory / "found.json").read_text())


def test_the_page_has_every_name_once():
    assert sorted(ROWS) == sorted(deeprec_names.NAMES)


@pytest.mark.parametrize(
    "name", sorted(name for name, (outcome, _) in ROWS.items() if outcome != "refused")
)
def test_a_name_that_is_said_to_work_works(found, name):
    assert found[name] is None, found[name]


@pytest.mark.parametrize(
    "name", sorted(name for name, (outcome, _) in ROWS.items() if outcome == "refused")
)
def test_a_refused_name_says_in_one_sentence_what_to_do(found, name):
    assert found[name] is not None, "it was not refused"
    kinds, message, led_to_it, file = found[name]
    assert {"NotImplementedError", "ValueError"} & set(kinds) and not led_to_it, found[name]
    assert "/tf_multitier/" in file and "\n" not in message, found[name]
    assert ROWS[name][1].replace("`", "") in message
