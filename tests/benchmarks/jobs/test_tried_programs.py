"""Running programs tried on another device, beside their speeds there when they have moved.

The devices are a GPU and the processor, or PoCL's twice where there is one driver only.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen

import pytest

from agent.opencl_layer import build, requests
from tests.benchmarks import amount
from tests.support.moving import PROGRAMS, below_on, command, layer, two_devices

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
ROUNDS, TIMES, KINDS = amount((3, 3, 5), (1, 3, 5), (1, 1, 1))
BURSTS = {  # milliseconds of the host, rounds and items of a launch, launches
    "long kernels": (0, 4000, 65536, 1),
    "long kernels ahead": (5, 4000, 65536, 5),
    "kernels and host": (5, 1000, 65536, 1),
    "short kernels": (0, 10, 4096, 100),
    "short kernels and host": (1, 10, 4096, 20),
}


def rate(program: Popen[str]) -> float:
    """Give the median rate of bursts, each a second's."""
    assert program.stdin is not None and program.stdout is not None
    found = []
    for _ in range(TIMES):
        program.stdin.write("\n")
        program.stdin.flush()
        found.append(float(program.stdout.readline()))
    return median(found)


def test_ratio_beside_the_truth(tmp_path: Path) -> None:
    layer()  # skips where it cannot be built
    keys = [str(one["key"]) for one in two_devices()[0]]
    errors, held = [], 0
    for name, numbers in [*BURSTS.items()][-KINDS:] * ROUNDS:
        for here, there in (keys, keys[::-1]):
            environment = below_on(
                tmp_path, build.build(), (here, there), PYTHONPATH=str(PROGRAMS.parents[2])
            )
            program = Popen(
                command("bursts", *map(str, numbers)), env=environment, stdin=PIPE, stdout=PIPE, text=True
            )
            rate(program)
            told = requests.try_on(tmp_path, program.pid, there).program_ratio
            before = rate(program)
            requests.move(tmp_path, program.pid, there)
            rate(program)
            truth = rate(program) / before
            program.communicate()
            assert told is not None
            errors.append(told.value / truth)
            held += told.low <= truth <= told.high
            print(
                f"\nBENCH {name}, {here} to {there}: {told.value:.3g} ({told.low:.3g} .. {told.high:.3g})",
                end="",
            )
            print(f", truth {truth:.3g}: {told.value / truth:.2f} of it", end="")
    wrong = [abs(error - 1) for error in errors]
    print(f"\nBENCH trials: median error {median(wrong):.0%}, at most {max(wrong):.0%};", end="")
    print(f" {held} of {len(errors)} intervals hold the truth")
