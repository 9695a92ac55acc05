"""Ranks of a world that are killed or stopped. Rounds of it: tests/attacks/test_attack_distribute.py."""

import random
import signal

import killed_worlds


def test_ranks_that_are_killed_or_stopped_end_the_others_and_all_go_on_from_the_checkpoint(
    tmp_path,
):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    stopped = [draw.randrange(2), draw.choice(["step", "save"])]
    ends = [
        [1, "step", draw.randint(1, 25), draw.uniform(0, 0.02), int(signal.SIGKILL)],
        [0, "save", draw.randint(2, 3), draw.uniform(0, 0.1), int(signal.SIGKILL)],
        [*stopped, draw.randint(1, 3), draw.uniform(0, 0.1), int(signal.SIGSTOP)],
    ]
    print("seed", seed, ends)
    begun, waited, _ = killed_worlds.check(tmp_path, ends, late=45)  # a busy machine
    assert begun[2] > 0 and waited[0][0][1] == "0"
