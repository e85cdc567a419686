"""Settings of slurm.conf that help or hinder tenbin, each with the line to add."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from agent.doctor import finding
from agent.doctor.finding import Finding

Config = Mapping[str, str]
APPLY = "in slurm.conf, then scontrol reconfigure"
RESTART = "in slurm.conf, then restart slurmctld and all slurmd"
DELAY_S = 3  # Slurm's own batch_sched_delay
EXPIRE_S = 120  # Slurm's own cred_expire
MOST_EXPIRE_S = 30
FEWEST_AGE_S = 300
MOST_TIMEOUT_S = 60

ok = partial(finding.ok, "settings")
limited = partial(finding.limited, "settings")


def check(config: Config) -> list[Finding]:
    """Judge the settings that ``scontrol show config`` prints."""
    checks = (
        *(_start_delay, _credential_expiry, _returning_nodes, _requeue, _job_records, _job_age),
        *(_node_timeout, _shared_nodes, _process_tracking, _private_data),
    )
    return [judged for one in checks if (judged := one(config)) is not None]


def options(text: str) -> dict[str, str]:
    """Read ``a=1,b,c=x`` as names and values; ``(null)`` has none."""
    parts = [] if text in ("", "(null)") else text.split(",")
    return {name.strip(): value for name, _, value in (part.partition("=") for part in parts)}


def _option_added(config: Config, setting: str, name: str, value: str) -> str:
    """Return the line that adds ``name=value`` to a setting and keeps its other options."""
    whole = options(config.get(setting, "")) | {name: value}
    return f"{setting}=" + ",".join(f"{k}={v}" if v else k for k, v in whole.items())


def _number(text: str | None) -> int | None:
    digits = re.match(r"\d+", text or "")
    return int(digits[0]) if digits else None


def _start_delay(config: Config) -> Finding:
    delay = _number(options(config.get("SchedulerParameters", "")).get("batch_sched_delay", str(DELAY_S)))
    if not delay:
        return ok("batch_sched_delay is 0: jobs start within a second")
    return limited(
        f"batch_sched_delay is {delay} s",
        f"a job that was submitted by sbatch starts up to {delay} s later than it could",
        f"{_option_added(config, 'SchedulerParameters', 'batch_sched_delay', '0')} {APPLY}",
    )


def _credential_expiry(config: Config) -> Finding:
    expire = _number(options(config.get("AuthInfo", "")).get("cred_expire")) or EXPIRE_S
    if expire <= MOST_EXPIRE_S:
        return ok(f"cred_expire is {expire} s: a requeued job may run again soon")
    return limited(
        f"cred_expire is {expire} s",
        f"a job that Slurm requeues by itself waits {expire + 1} s before it runs again",
        f"{_option_added(config, 'AuthInfo', 'cred_expire', '10')} {RESTART}",
    )


def _returning_nodes(config: Config) -> Finding:
    value = config.get("ReturnToService", "0")
    if _number(value) == 2:
        return ok("ReturnToService is 2: a node that comes back is used again")
    down = "stays down" if _number(value) == 0 else "stays down if somebody had set it down"
    reason = f"a node that was lost and comes back {down} until an administrator resumes it"
    return limited(f"ReturnToService is {value}", reason, f"ReturnToService=2 {APPLY}")


def _requeue(config: Config) -> Finding:
    if _number(config.get("JobRequeue")) != 0:
        return ok("JobRequeue is 1: what a lost node ran may run again")
    reason = "jobs of plain sbatch are not run again when their node is lost; tenbin's own are, by tenbin"
    return limited("JobRequeue is 0", reason, f"JobRequeue=1 {APPLY}")


def _job_records(config: Config) -> Finding:
    if config.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return ok("ends of jobs are kept by slurmdbd")
    if not config.get("JobCompType", "").endswith("/filetxt"):
        return limited(
            "neither accounting nor jobcomp",
            "a job that ended is forgotten after MinJobAge; tenbin's own keep their results in their folders",
            f"JobCompType=jobcomp/filetxt and JobCompLoc=/var/log/slurm/jobcomp.txt {APPLY}; or slurmdbd",
        )
    file = config.get("JobCompLoc", "")
    if os.access(file, os.R_OK):
        return ok(f"ends of jobs are kept in {file}")
    reason = "no right to" if Path(file).exists() else "it is on another machine, or not for this user"
    what = f"ends of jobs are kept in {file}, which cannot be read here"
    return limited(what, reason, f"share it, and as root: chmod a+r {file}")


def _job_age(config: Config) -> Finding | None:
    age = _number(config.get("MinJobAge"))
    if age is None or age >= FEWEST_AGE_S:
        return None
    reason = "a job that ended is forgotten so soon that a coordinator which was away cannot ask for it"
    return limited(f"MinJobAge is {age} s", reason, f"MinJobAge={FEWEST_AGE_S} {APPLY}")


def _node_timeout(config: Config) -> Finding | None:
    timeout = _number(config.get("SlurmdTimeout"))
    if timeout is None or 0 < timeout <= MOST_TIMEOUT_S:
        return None
    reason = "Slurm gives up a node that does not answer it, but runs on, only then"
    if timeout == 0:
        reason = "Slurm never gives up a node that does not answer"
    return limited(f"SlurmdTimeout is {timeout} s", reason, f"SlurmdTimeout=30 {APPLY}")


def _shared_nodes(config: Config) -> Finding:
    if config.get("SelectType", "").endswith("/linear"):
        return limited(
            "SelectType is select/linear",
            "Slurm gives whole nodes only: jobs cannot share one",
            f"SelectType=select/cons_tres and SelectTypeParameters=CR_Core_Memory {RESTART}",
        )
    parameters = config.get("SelectTypeParameters", "")
    if "MEMORY" in parameters.upper():
        return ok("Slurm counts cores and memory")
    return limited(
        f"SelectTypeParameters is {parameters}",
        "Slurm does not count memory: plain jobs beside tenbin's may use more than there is",
        f"SelectTypeParameters=CR_Core_Memory {RESTART}",
    )


def _process_tracking(config: Config) -> Finding | None:
    kind = config.get("ProctrackType", "not told")
    if kind.endswith("/cgroup"):
        return None
    reason = "processes that leave their job's session can outlive it"
    return limited(f"ProctrackType is {kind}", reason, f"ProctrackType=proctrack/cgroup {RESTART}")


def _private_data(config: Config) -> Finding | None:
    private = config.get("PrivateData", "").split(",")
    hidden = [what for what in ("jobs", "nodes", "partitions") if what in private]
    if not hidden:
        return None
    reason = "tenbin cannot see what others use, unless it runs as SlurmUser, root or an operator"
    return limited(f"PrivateData hides {', '.join(hidden)}", reason, "run the coordinator as an operator")
