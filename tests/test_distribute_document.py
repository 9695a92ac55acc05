"""The programs of docs/distributed.md run as printed, in the processes that the page names."""

import pytest

from cluster_util import launch
from test_document_programs import programs


@pytest.mark.parametrize("number, arguments", [(0, ["--workers=2"]), (1, ["--workers=3"])])
def test_a_program_trains_and_saves(number, arguments, tmp_path):
    code = programs("docs/distributed.md")[number].replace('"/models', f'"{tmp_path}/models')
    lines, _ = launch(tmp_path, code, *arguments, "--ps=2")
    assert float(lines["chief 0"][-1].removeprefix("loss ")) < 2.5
    # In TensorFlow 1 the other worker may make a step after the last one, which is saved too.
    saved = len(list(tmp_path.glob("models/users/*.index")))
    assert saved > 2 if number == 0 else saved == 2
