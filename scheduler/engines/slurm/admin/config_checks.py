"""Settings of slurm.conf that help or hinder tenbin, each with the line to add."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.doctor.finding import Finding, limited, ok

Config = Mapping[str, str]
APPLY = "in slurm.conf, then scontrol reconfigure"
RESTART = "in slurm.conf, then restart slurmctld and all slurmd"
DELAY_S = 3  # batch_sched_delay where none is set
EXPIRE_S = 120  # cred_expire likewise
MOST_EXPIRE_S = 30
FEWEST_AGE_S = 300
MOST_TIMEOUT_S = 60


def check(config: Config) -> Iterator[Finding]:
    """Judge the answer of ``scontrol show config``."""
    for one in (_start, _expiry, _return, _requeue, _ends, _age, _timeout, _select, _processes, _hidden):
        yield from one(config)


def options(text: str) -> dict[str, str]:
    """Read ``a=1,b,c=x`` as names and values; ``(null)`` has none."""
    parts = [] if text in ("", "(null)") else text.split(",")
    return {name.strip(): value for name, _, value in (part.partition("=") for part in parts)}


def _with(config: Config, setting: str, name: str, value: str) -> str:
    """Write the line that adds ``name=value`` to a setting that is a list."""
    whole = options(config.get(setting, "")) | {name: value}
    return f"{setting}=" + ",".join(f"{k}={v}" if v else k for k, v in whole.items())


def _seconds(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


def _start(config: Config) -> Iterator[Finding]:
    delay = _seconds(options(config.get("SchedulerParameters", "")).get("batch_sched_delay", str(DELAY_S)))
    if delay:
        yield limited(
            "settings",
            f"batch_sched_delay is {delay} s",
            f"a job that was submitted by sbatch starts up to {delay} s later than it could",
            f"{_with(config, 'SchedulerParameters', 'batch_sched_delay', '0')} {APPLY}",
        )
    else:
        yield ok("settings", "batch_sched_delay is 0: jobs start within a second")


def _expiry(config: Config) -> Iterator[Finding]:
    expire = _seconds(options(config.get("AuthInfo", "")).get("cred_expire", str(EXPIRE_S))) or EXPIRE_S
    if expire > MOST_EXPIRE_S:
        yield limited(
            "settings",
            f"cred_expire is {expire} s",
            f"a job that Slurm requeues by itself waits {expire + 1} s before it runs again",
            f"{_with(config, 'AuthInfo', 'cred_expire', '10')} {RESTART}",
        )
    else:
        yield ok("settings", f"cred_expire is {expire} s: a requeued job may run again soon")


def _return(config: Config) -> Iterator[Finding]:
    value = config.get("ReturnToService", "0")
    if _seconds(value) == 2:
        yield ok("settings", "ReturnToService is 2: a node that comes back is used again")
        return
    left = "stays down" if _seconds(value) == 0 else "stays down if somebody had set it down"
    reason = f"a node that was lost and comes back {left} until an administrator resumes it"
    yield limited("settings", f"ReturnToService is {value}", reason, f"ReturnToService=2 {APPLY}")


def _requeue(config: Config) -> Iterator[Finding]:
    if _seconds(config.get("JobRequeue")) == 0:
        reason = "jobs of plain sbatch are not run again when their node is lost; tenbin's own are, by tenbin"
        yield limited("settings", "JobRequeue is 0", reason, f"JobRequeue=1 {APPLY}")
    else:
        yield ok("settings", "JobRequeue is 1: what a lost node ran may run again")


def _ends(config: Config) -> Iterator[Finding]:
    accounting, completion = config.get("AccountingStorageType", ""), config.get("JobCompType", "")
    location = config.get("JobCompLoc", "")
    if accounting.endswith("/slurmdbd"):
        yield ok("settings", "ends of jobs are kept by slurmdbd")
    elif completion.endswith("/filetxt"):
        if os.access(location, os.R_OK):
            yield ok("settings", f"ends of jobs are kept in {location}")
            return
        why = (
            "it is on another machine, or not for this user" if not Path(location).exists() else "no right to"
        )
        remedy = f"share it, and as root: chmod a+r {location}"
        yield limited(
            "settings", f"ends of jobs are kept in {location}, which cannot be read here", why, remedy
        )
    else:
        yield limited(
            "settings",
            "neither accounting nor jobcomp",
            "a job that ended is forgotten after MinJobAge; tenbin's own keep their results in their folders",
            f"JobCompType=jobcomp/filetxt and JobCompLoc=/var/log/slurm/jobcomp.txt {APPLY}; or slurmdbd",
        )


def _age(config: Config) -> Iterator[Finding]:
    age = _seconds(config.get("MinJobAge"))
    if age is not None and age < FEWEST_AGE_S:
        reason = "a job that ended is forgotten so soon that a coordinator which was away cannot ask for it"
        yield limited("settings", f"MinJobAge is {age} s", reason, f"MinJobAge={FEWEST_AGE_S} {APPLY}")


def _timeout(config: Config) -> Iterator[Finding]:
    timeout = _seconds(config.get("SlurmdTimeout"))
    if timeout is not None and timeout == 0:
        reason = "Slurm never gives up a node that does not answer"
        yield limited("settings", "SlurmdTimeout is 0", reason, f"SlurmdTimeout=30 {APPLY}")
    elif timeout is not None and timeout > MOST_TIMEOUT_S:
        reason = "Slurm gives up a node that does not answer it, but runs on, only then"
        yield limited("settings", f"SlurmdTimeout is {timeout} s", reason, f"SlurmdTimeout=30 {APPLY}")


def _select(config: Config) -> Iterator[Finding]:
    kind, parameters = config.get("SelectType", ""), config.get("SelectTypeParameters", "")
    if kind.endswith("/linear"):
        yield limited(
            "settings",
            "SelectType is select/linear",
            "Slurm gives whole nodes only: jobs cannot share one",
            f"SelectType=select/cons_tres and SelectTypeParameters=CR_Core_Memory {RESTART}",
        )
    elif "MEMORY" not in parameters.upper():
        yield limited(
            "settings",
            f"SelectTypeParameters is {parameters}",
            "Slurm does not count memory: plain jobs beside tenbin's may use more than there is",
            f"SelectTypeParameters=CR_Core_Memory {RESTART}",
        )
    else:
        yield ok("settings", "Slurm counts cores and memory")


def _processes(config: Config) -> Iterator[Finding]:
    if not config.get("ProctrackType", "").endswith("/cgroup"):
        yield limited(
            "settings",
            f"ProctrackType is {config.get('ProctrackType', 'not told')}",
            "processes that leave their job's session can outlive it",
            f"ProctrackType=proctrack/cgroup {RESTART}",
        )


def _hidden(config: Config) -> Iterator[Finding]:
    hidden = [
        what for what in ("jobs", "nodes", "partitions") if what in config.get("PrivateData", "").split(",")
    ]
    if hidden:
        reason = "tenbin cannot see what others use, unless it runs as SlurmUser, root or an operator"
        yield limited(
            "settings", f"PrivateData hides {', '.join(hidden)}", reason, "run the coordinator as an operator"
        )
