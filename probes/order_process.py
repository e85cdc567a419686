"""A process on one core that takes orders, and pools of such processes.

An order is a line of JSON on the process's stdin, its answer a line of JSON on the process's stdout. The
process ends when its stdin does, so it never outlives its parent.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from probes.loads import SINGLE_THREAD

PATIENCE_S = 30.0  # for an answer that is due: a busy machine delays it, a lost process never sends it


class ProcessLost(Exception):
    """A process that ended, or could not carry out its order."""


class OrderProcess:
    """The parent's end of ``python -P -m module --core=CORE *arguments``; each order gets one answer.

    Args:
        title: in messages.

    Raises:
        ProcessLost: the system starts no more processes.
    """

    def __init__(self, core: int, module: str, arguments: Sequence[str], title: str = "process") -> None:
        self._title = f"{title} on CPU {core}"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, f"--core={core}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | SINGLE_THREAD,
                bufsize=0,
            )
        except OSError as error:
            raise self._lost(f"could not start: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, do: str, **arguments: Any) -> None:
        """Send an order.

        Raises:
            ProcessLost: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the answer to the oldest order.

        Raises:
            ProcessLost: the process has ended, is silent, or refused.
        """
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        if not readable:
            raise self._lost(f"gave no answer in {within_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._lost(f"failed: {answer['error']}")
        return answer

    def _lost(self, reason: str) -> ProcessLost:
        return ProcessLost(f"the {self._title} {reason}")

    def _ended(self) -> ProcessLost:
        assert self._process.stderr is not None
        code = self._process.wait(PATIENCE_S)
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return self._lost(f"ended with {'signal' if code < 0 else 'exit code'} {abs(code)}{last}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End the process at once, in the middle of an order."""
        self._process.kill()

    def close(self, within_s: float = 2.0) -> None:
        """End the process, by force if need be."""
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            for stream in streams:
                if stream is not None:
                    stream.close()


class ProcessPool:
    """Processes that are started when first needed, one a core; a context that leaves none behind."""

    def __init__(self, module: str, arguments: Sequence[str], title: str) -> None:
        self._kind = module, arguments, title
        self._processes: dict[int, OrderProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def pids(self) -> dict[int, int]:
        """Ids of the processes, by CPU."""
        return {core: process.pid for core, process in self._processes.items()}

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """End all processes if one fails, because orders of the others would stay unanswered."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def start(self, cores: Iterable[int]) -> None:
        """Have a process on each of ``cores``.

        Raises:
            ProcessLost: a process could not start.
        """
        new = [core for core in cores if core not in self._processes]
        with self.all_or_none():
            for core in new:
                self._processes[core] = OrderProcess(core, *self._kind)
            for core in new:
                self._processes[core].answer()

    def discard(self) -> None:
        """End all processes at once; they are started anew when needed again."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.close()
        self._processes.clear()
