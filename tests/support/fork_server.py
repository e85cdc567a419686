"""Run ``tenbin`` in forks of this process, which has imported it: its start takes most of a short command.

All workers of a run share this server, which listens on the socket that the first argument names, and ends
with the last of them. A request has the command line, the environment, the folder and the limits, with
stdout, stderr and a socket for the answers: the number of the process, and later how it ended. Each command
ends as any Python program does: its threads are awaited, and what it registered for its end runs.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from importlib import import_module
from typing import Any

from tenbin.cli import COMMANDS, main

MOST_BYTES = 1 << 20
ALSO = (  # what commands import when they need it
    "pandas",
    "rich._emoji_codes",
    "rich.console",
    "rich.table",
    "scipy.stats",
    "typer._adapters",
    "typer.rich_utils",
    "profiles.files.store",
    "scheduler.coordinator.coordinator",
    "scheduler.engines.local.discovery",
    "scheduler.engines.local.engine",
    "scheduler.evaluations.policy_runs",
    "scheduler.policies.backfill.easy",
    "scheduler.policies.backfill.fcfs",
    "scheduler.policies.regions",
    "scheduler.simulator.metrics",
    "scheduler.workloads.generators.lublin",
    "tenbin.client.client",
    "tenbin.page.beside",
    "tenbin.page.serve",
    "tenbin.server.api",
    "tenbin.server.serve",
    "tenbin.server.tcp",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
)


def serve(listener: socket.socket) -> None:
    """Start what is asked for; return in each process that was started. This process ends with its tests."""
    workers = [listener.accept()[0]]
    running: dict[int, tuple[int, socket.socket]] = {}  # by what tells of the end: the process, its answers
    while workers:
        ready, _, _ = select.select([listener, *workers, *running], [], [])
        for ended in set(ready) & running.keys():
            pid, answers = running.pop(ended)
            _, status = os.waitpid(pid, 0)
            os.close(ended)
            with answers:
                answers.send(str(os.waitstatus_to_exitcode(status)).encode())
        if listener in ready:
            workers.append(listener.accept()[0])
        for requests in [one for one in workers if one in ready]:
            text, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
            if not text:
                workers.remove(requests)
                requests.close()
                continue
            pid = os.fork()
            if pid == 0:
                for one in (listener, *workers, *(answers for _, answers in running.values())):
                    one.close()
                for number in running:
                    os.close(number)
                become(json.loads(text), files)
                return
            answers = socket.socket(fileno=files.pop())
            answers.send(str(pid).encode())
            running[os.pidfd_open(pid)] = (pid, answers)
            for file in files:
                os.close(file)
    os._exit(0)


def become(asked: dict[str, Any], files: list[int]) -> None:
    """Take on what a new process would begin with."""
    for target, file in zip((1, 2), files, strict=False):
        os.dup2(file, target)
    for file in files:
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.umask(asked["umask"])
    os.sched_setaffinity(0, asked["cpus"])
    for kind, limits in asked["limits"]:
        resource.setrlimit(kind, limits)
    time.tzset()
    sys.argv = asked["command"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended() -> int:
    """Run the command and what Python runs at the end, without taking modules down; return the exit code."""
    try:
        main()
        code: object = None
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # awaits the threads
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # so that the server is no child of the tests, which look at what is left of theirs
    for place in filter(None, (place for place, _ in COMMANDS.values())):
        import_module(f"tenbin.commands.{place.split(':')[0]}")
    for module in ALSO:
        import_module(module)
    gc.freeze()  # else the forks' first collection copies all that they share
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        serve(listener)
    os._exit(ended())
