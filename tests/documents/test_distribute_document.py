"""The programs of docs/distributed.md run as printed, in the processes that the page names."""

import pytest

from cluster_util import launch
from test_document_programs import programs


@pytest.mark.parametrize(
    "number, arguments, task, checkpoints",
    [
        (0, ["--workers=2"], "worker 0", 2),
        (1, ["--workers=2"], "worker 0", 3),
        (2, ["--workers=2", "--ps=2"], "chief 0", None),
        (3, ["--workers=3", "--ps=2"], "chief 0", 2),
    ],
)
def test_a_program_trains_and_saves(number, arguments, task, checkpoints, tmp_path):
    code = programs("docs/distributed.md")[number].replace('"/models', f'"{tmp_path}/models')
    lines, _ = launch(tmp_path, code, *arguments)
    assert float(lines[task][-1].removeprefix("loss ")) < 2.5
    saved = sorted(int(path.stem.split("-")[1]) for path in tmp_path.glob("models/users/*.index"))
    if number == 2:  # the other worker makes steps too, between the chief's and after its last
        assert saved[0] == 0 and saved[-1] >= 100 and len(saved) >= 2
    else:
        assert len(saved) == checkpoints
