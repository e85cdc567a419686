"""Systems that run jobs on one machine, with one interface: processes, tenbin, HyperQueue, task-spooler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

import psutil

from tenbin.client.client import Client, wait
from tenbin.errors import TenbinError
from tests.benchmarks import PEERS
from tests.support.programs import TENBIN

HERE = Path(__file__).parent
Commands = list[list[str]]


class System(ABC):
    """Runs jobs, ``slots`` at once, each on one core."""

    name = ""

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self.slots = folder, slots
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def run(self, commands: Commands) -> tuple[float, float]:
        """Submit them together and wait for all; when that began (since 1970), how long submitting took."""

    @abstractmethod
    def stop(self) -> None:
        """Leave nothing running."""


class Bare(System):
    """``subprocess.Popen``, with nothing around it: no queue, no journal, no limits."""

    name = "bare process"

    def run(self, commands: Commands) -> tuple[float, float]:
        began = time.time()
        running: list[subprocess.Popen[bytes]] = []
        for command in commands:
            if len(running) == self.slots:
                running.pop(0).wait()
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.folder))
        for process in running:
            process.wait()
        return began, 0.0

    def stop(self) -> None:
        pass


class Tenbin(System):
    """Through ``tenbin.Client``; every job is durable before it is confirmed."""

    name = "tenbin"

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(folder, slots)
        command = [*TENBIN, "up", "--home", str(folder / "home"), "--cores", str(slots)]
        self.process = psutil.Popen(command, stdout=subprocess.DEVNULL)
        self.client = Client(folder / "home")
        while True:
            with suppress(TenbinError):
                self.client.call("GET", "/status")
                return
            time.sleep(0.01)

    def submit(self, commands: Commands) -> int:
        """Submit the commands; return the number of the last job."""
        specs = [{"command": command, "folder": str(self.folder)} for command in commands]
        return self.client.submit_all(specs)[-1].id

    def run(self, commands: Commands) -> tuple[float, float]:
        began = time.time()
        last = self.submit(commands)
        took = time.time() - began
        wait(map(self.client.job, range(last - len(commands) + 1, last + 1)))
        return began, took

    def cpu_s(self) -> float:
        """Processor time that the coordinator and its spawner have used, without the supervisors."""
        return sum(
            sum(process.cpu_times()[:2])
            for process in (self.process, *self.process.children(recursive=False))
        )

    def memory_mb(self) -> float:
        """Resident memory of the coordinator."""
        return float(self.process.memory_info().rss) / 1e6

    def stop(self) -> None:
        if self.process.is_running():
            while ids := [job["id"] for job in self.client.call("GET", "/jobs")]:
                with suppress(TenbinError):  # one may have ended meanwhile: not among the last
                    self.client.call("POST", "/cancel", {"ids": ids[100:] or ids})
                time.sleep(0.05)
            self.process.terminate()
            self.process.wait()


class HyperQueue(System):
    """Through its Python interface, server and worker on this machine."""

    name = "hq"
    python = os.environ.get("TENBIN_HQ", PEERS)

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(folder, slots)
        self.process = subprocess.Popen(
            [self.python, str(HERE / "hq_run.py"), str(folder / "server"), str(slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, commands: Commands) -> tuple[float, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(commands) + "\n")
        self.process.stdin.flush()
        found = json.loads(self._answer())
        return found["began_s"], found["submit_s"]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


class TaskSpooler(System):
    """By its command line, one call a job: it has no other interface."""

    name = "task-spooler"
    program = shutil.which("tsp") or shutil.which("ts") or ""

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(folder, slots)
        self.environment = {**os.environ, "TS_SOCKET": str(folder / "socket"), "TMPDIR": str(folder)}
        self._call("-S", str(slots))

    def _call(self, *arguments: str) -> None:
        subprocess.run(
            [self.program, *arguments],
            env={**self.environment, "TS_MAXFINISHED": "10"},
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def run(self, commands: Commands) -> tuple[float, float]:
        began = time.time()
        for command in commands:
            self._call(*command)
        took = time.time() - began
        self._call("-w")
        return began, took

    def stop(self) -> None:
        self._call("-K")


def missing() -> dict[type[System], str]:
    """Say why the system cannot be had here; "" if it can."""
    probe = "import importlib.util as u; raise SystemExit(u.find_spec('hyperqueue') is None)"
    no_hq = subprocess.run([HyperQueue.python, "-c", probe], check=False).returncode
    return {
        Bare: "",
        Tenbin: "",
        HyperQueue: "not installed; pip install hyperqueue, TENBIN_HQ names its Python" if no_hq else "",
        TaskSpooler: "" if TaskSpooler.program else "not installed; apt-get install task-spooler",
    }
