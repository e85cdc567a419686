"""Programs that know nothing of tenbin, moved to and fro between two OpenCL devices, beside plain runs.

    TENBIN_MOVED_PROGRAMS=FOLDER pytest -m benchmark tests/benchmarks/jobs/test_moved_programs.py -s

The devices are a GPU and the processor, or PoCL's twice where there is one driver only. In FOLDER are
programs of others, for example SHOC's level 1, which get ``TENBIN_MOVED_ARGUMENTS`` (else ``-s 1 -n 4``).
Where none is named, it is clpeak.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from statistics import median
from subprocess import DEVNULL, STDOUT, Popen

import pytest

from agent.opencl_layer import build, loader, requests
from probes import opencl
from profiles.errors import BadInput, UserError
from tests.benchmarks import amount, few
from tests.support.labs.components import require
from tests.support.moving import ONE, below_on, command, layer, output, two_devices, variables
from tests.support.opencl_programs.tour import PROGRAMS

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]
RUNS, LIMIT_S = amount((20, 600), (2, 60), (1, 60))  # from each device; of one run
BAD = "fail|incorrect|error"


@dataclass
class Run:
    """Outcome of a run, and of the requests to move it."""

    status: int = 0
    wrong: bool = False
    text: str = ""
    pauses_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def late(self) -> bool:
        """The run was ended at the limit."""
        return self.status == -SIGKILL

    def count(self, words: str) -> int:
        return len(re.findall(words, self.text, re.IGNORECASE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer()  # skips where it cannot be built
    return tmp_path_factory.mktemp("moved")


def orders() -> list[tuple[str, ...]]:
    """Give the keys of the two devices in both orders."""
    keys = tuple(str(one["key"]) for one in two_devices()[0])
    return [keys, keys[::-1]]


def plain(folder: Path, key: str) -> dict[str, str]:
    """Give the environment of a program without the layer that sees the driver of this device alone."""
    environment = variables(folder, below=False, POCL_DEVICES=two_devices()[1])
    if two_devices()[1] == ONE:  # two drivers
        word, vendors = key.rpartition("-")[0], os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors"
        files = list(Path(vendors).glob(f"*{word}*.icd"))
        require(files, f"a file of {word} in {vendors}")
        environment["OCL_ICD_VENDORS"] = str(folder / word)
        (folder / word).mkdir(exist_ok=True)
        (folder / word / files[0].name).write_text(files[0].read_text())
        environment.pop("OCL_ICD_FILENAMES", None)
    return environment


@pytest.mark.parametrize("name", few(PROGRAMS))
def test_tour_between_two_devices(name: str, folder: Path) -> None:
    found = set()
    for order in orders():
        report = folder / f"{name}-{order[0]}"
        more = {"TENBIN_OPENCL_MOVE_EVERY": "11", "TENBIN_OPENCL_REPORT": str(report)}
        took_s = []
        for environment in (plain(folder, order[0]), below_on(folder, layer(), order, **more)):
            began = time.monotonic()
            found.add(output(command("tour", name), environment))
            took_s.append(time.monotonic() - began)
        status = json.loads(report.read_text())
        counts = f"{status['moves']} moves in {took_s[1]:.1f} s, plain {took_s[0]:.1f} s"
        print(f"\nBENCH {name} from {order[0]}: {counts} {status['last_trouble']}", end="")
        assert status["moves"], status["last_trouble"]
    assert len(found) == 1


@pytest.fixture
def programs(tmp_path: Path) -> tuple[Path, list[str]]:
    """Give the folder of programs, and their arguments."""
    arguments = os.environ.get("TENBIN_MOVED_ARGUMENTS")
    if named := os.environ.get("TENBIN_MOVED_PROGRAMS"):
        return Path(named).resolve(), shlex.split("-s 1 -n 4" if arguments is None else arguments)
    clpeak = shutil.which("clpeak")
    require(clpeak, "clpeak: apt-get install clpeak; or name programs: TENBIN_MOVED_PROGRAMS=FOLDER")
    (tmp_path / "clpeak").symlink_to(str(clpeak))
    names = [platform.name.strip() for platform in opencl.platforms()]  # it fails on one without a device
    platform = names.index(opencl.devices()[0].platform)
    return tmp_path, shlex.split(arguments or f"-p {platform} --kernel-latency")


def test_programs_moved_at_random(folder: Path, programs: tuple[Path, list[str]]) -> None:
    place, arguments = programs
    below = [(order, below_on(folder, build.build(), order)) for order in orders()]  # as users have it
    require(not (trouble := loader.trouble(below[0][1])), trouble)
    everything: list[Run] = []
    files = filter(Path.is_file, sorted(place.iterdir()))
    for program in (file for file in files if os.access(file, os.X_OK)):
        words = [str(program), *arguments]
        plains = [run(words, plain(folder, key), folder) for key in orders()[0]]
        if any(one.status for one in plains):
            print(f"\nBENCH {program.name}: left out, plain it ends with {[one.status for one in plains]}")
            continue
        bad, passed = max(one.count(BAD) for one in plains), min(one.count("pass") for one in plains)
        runs = [run(words, below[n % 2][1], folder, below[n % 2][0]) for n in range(2 * RUNS)]
        for one in runs:
            one.wrong = one.status != 0 or one.count(BAD) > bad or one.count("pass") < passed
            one.wrong = one.wrong and not one.late
        told(program.name, runs)
        for one in [one for one in runs if one.wrong][:1]:
            print(f"the first wrong run ended with {one.status}:", *one.text.splitlines()[-10:], sep="\n    ")
        everything += runs
    told("all programs", everything)
    assert everything and not any(one.wrong for one in everything)


def told(name: str, runs: list[Run]) -> None:
    pauses = [1e3 * pause for one in runs for pause in one.pauses_s]
    late = sum(one.late for one in runs)
    counts = f"{len(runs)} runs, {sum(one.wrong for one in runs)} of them wrong, {len(pauses)} moves"
    counts += f", {late} longer than {LIMIT_S} s" if late else ""
    longest = f"{median(pauses or [0]):.1f} ms median, {max(pauses, default=0):.1f} longest"
    print(f"\nBENCH {name}: {counts}, pauses {longest}")
    for why, times in sum((one.refused for one in runs), Counter()).most_common():
        print(f"    refused {times} times: {why}")


def run(words: list[str], environment: dict[str, str], folder: Path, order: tuple[str, ...] = ()) -> Run:
    """Run a program to its end; ``order``: devices to move it between, first that it starts on."""
    found = Run()
    with (folder / "output").open("w") as out:
        process = Popen(words, env=environment, cwd=folder, stdin=DEVNULL, stdout=out, stderr=STDOUT)
    limit = threading.Timer(LIMIT_S, process.kill)  # ends a request, too
    limit.start()
    while process.poll() is None:
        time.sleep(random.uniform(0.002, 0.1))
        try:
            if order:
                status = requests.move(folder, process.pid, order[1], patience_s=5)
                order = order[::-1]
                found.pauses_s.append(status.last_pause_s or 0)
        except UserError as error:
            if not isinstance(error, BadInput) and "has ended" not in str(error):  # nor not begun yet
                found.refused[str(error).partition(": ")[2]] += 1
    limit.cancel()
    found.status, found.text = process.wait(), (folder / "output").read_text(errors="replace")
    return found
