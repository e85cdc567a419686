"""A Slurm cluster in the small: a real slurmctld and a slurmd on each of several nodes, on one machine.

Each node has network, host name, process numbers, /dev/shm and locks of its own; the disk is shared, as by
NFS. munge has a key and a socket of its own. Needs root, ``ip``, and Slurm and munge as Debian has them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psutil

from agent.processes import tree
from tests.support.labs.components import require

TOOLS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo", "munged", "ip", "nsenter")
PACKAGES = "Slurm (Debian: slurm-wlm slurm-wlm-basic-plugins munge iproute2)"
STARTS_S = 60.0

# Its process number 1. A trap starts slurmd again, after it was killed.
INIT = """#!/bin/bash
hostname "$1"
ip link set lo up
mount --make-rprivate /
mount -t tmpfs -o size=256m tmpfs /dev/shm
mount -t tmpfs -o size=1m tmpfs /run/lock
mount --bind "%(run)s/hosts" /etc/hosts
%(power)s
start() { slurmd -D >>"%(run)s/log/slurmd.$1.out" 2>&1 & echo $! >"%(run)s/pid/slurmd.$1"; }
trap "start $1" USR1
start "$1"
sleep infinity &
while :; do wait $!; done
"""

# Its power caps: emulated hardware, which is there as long as the node is.
POWER = """
"%(python)s" -P -m agent.emulation.emulated_tree "%(folder)s/$1" %(machine)s --node >>"%(log)s.$1.out" 2>&1 &
"""

CONF = """ClusterName=tenbinlab
SlurmctldHost=%(host)s(%(net)s.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=%(run)s/munge/sock,cred_expire=10
CredType=cred/munge
SlurmctldPort=%(port)d
SlurmdPort=6818
StateSaveLocation=%(run)s/state
SlurmdSpoolDir=%(run)s/spool/%%n
SlurmctldPidFile=%(run)s/pid/slurmctld.pid
SlurmdPidFile=%(run)s/pid/slurmd.%%n.pid
SlurmctldLogFile=%(run)s/log/slurmctld.log
SlurmdLogFile=%(run)s/log/slurmd.%%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_min_interval=0,batch_sched_delay=0
PriorityType=priority/basic
JobRequeue=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=%(run)s/log/jobcomp.txt
SlurmctldTimeout=30
SlurmdTimeout=%(slurmd_timeout_s)d
InactiveLimit=0
KillWait=5
MinJobAge=300
MaxJobCount=20000
Waittime=0
DefMemPerCPU=100
%(extra)s
NodeName=DEFAULT CPUs=%(cpus)d RealMemory=%(memory_mb)d State=UNKNOWN
"""

_free = set(range(4))  # of the networks that labs of this process may have at one time


class SlurmLab:
    """A cluster that runs; ``env`` leads Slurm's commands to it.

    Attributes:
        folder: shared by all nodes, like the rest of the disk; daemons' logs are in ``folder/log``.
        nodes: names, node1 on.
        power: folder with the emulated power caps of each node, if there are any.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        cpus: int,
        memory_mb: int,
        *,
        extra: str,
        timeout_s: int,
        power: str = "",
        gpus: Sequence[str] = (),
    ) -> None:
        # Several labs, also of several test runs, must not meet. Names of interfaces: at most 15 characters.
        process, lab = os.getpid() % 4096, min(_free)
        _free.remove(lab)
        self._number = lab
        self.prefix = f"ts{process}{'abcd'[lab]}"
        self.net = f"10.{128 + process // 64}.{process % 64 * 4 + lab}"
        self.folder, self.cpus, self.memory_mb = folder, cpus, memory_mb
        self.nodes = tuple(f"node{number}" for number in range(1, nodes + 1))
        self.conf = folder / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.conf), "UCX_TLS": "tcp,self"}
        self.power = folder / "power"
        self._extra, self._timeout_s, self._machine, self._gpus = extra, timeout_s, power, gpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._me = os.getpid()

    def call(self, *command: str, timeout_s: float = 60.0) -> str:
        """Output of a command of Slurm's; an error fails the test."""
        done = subprocess.run(
            command, env=os.environ | self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    # -- what can happen to it ------------------------------------------------------------------------

    def power_off(self, node: str) -> None:
        """SIGKILL for everything on the node, at once."""
        below = self.processes(node)
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self._until(lambda: not any(self._name(pid) for pid in below))

    def power_on(self, node: str) -> None:
        number = node.removeprefix("node")
        enter = ["nsenter", f"--net=/run/netns/{self.prefix}n{number}"]
        enter += ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._launch(node, *enter, str(self.folder / "init"), node)

    def kill_slurmd(self, node: str) -> None:
        """Only the daemon: what it has started goes on."""
        for pid in self.processes(node):
            if self._name(pid) == "slurmd":
                os.kill(pid, signal.SIGKILL)

    def start_slurmd(self, node: str) -> None:
        init = next(pid for pid in self.processes(node) if self._name(pid) == "init")
        os.kill(init, signal.SIGUSR1)

    def cut(self, node: str) -> None:
        """Nobody reaches the node any more; what runs there goes on."""
        _run("ip", "link", "set", self._link(node), "down")

    def join(self, node: str) -> None:
        """Connect the node again."""
        _run("ip", "link", "set", self._link(node), "up")

    def pause(self, node: str) -> None:
        """Stop the whole node, as a virtual machine is paused."""
        for _ in range(2):  # what was begun meanwhile, too
            for pid in self.processes(node):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self, node: str) -> None:
        for pid in self.processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_slurmctld(self) -> None:
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def start_slurmctld(self) -> None:
        """With the state that it has on disk."""
        self._launch(
            "slurmctld", "slurmctld", "-D", *([] if any((self.folder / "state").iterdir()) else ["-c"])
        )

    def answers(self) -> None:
        """Until slurmctld, started again, does."""

        def said() -> bool:
            with suppress(AssertionError, subprocess.TimeoutExpired):
                self.call("squeue", "-h", timeout_s=10)
                return True
            return False

        self._until(said)

    def keep(self) -> None:
        """Slurmctld has on disk what it knows of its jobs.

        It writes them within five seconds of a change, and a start by its backfill scheduler is none.
        """
        file = self.folder / "state/job_state"
        job = self.call("squeue", "--noheader", "--format=%A").split()[0]
        for _ in range(2):  # it may just have been writing, with what was known of the jobs before
            before = file.stat().st_ino if file.exists() else 0
            self.call("scontrol", "update", f"JobId={job}", "MailType=NONE")
            self._until(lambda was=before: file.exists() and file.stat().st_ino != was)

    def mend(self) -> None:
        """Everything is as it was in the beginning, without jobs; a test that broke something calls it."""
        if "slurmctld" not in self._daemons or self._daemons["slurmctld"].poll() is not None:
            self.start_slurmctld()
        for node in self.nodes:
            self.join(node)
            if node not in self._daemons or self._daemons[node].poll() is not None:
                self.power_on(node)
            elif not any(self._name(pid) == "slurmd" for pid in self.processes(node)):
                self.start_slurmd(node)
        deadline = time.monotonic() + STARTS_S
        while not self._idle():
            assert time.monotonic() < deadline, self.told()
            with suppress(AssertionError, subprocess.TimeoutExpired):
                self.call("scancel", "--user=root", timeout_s=10)
                self.call("scancel", "--user=root", "--state=SUSPENDED", "--signal=KILL", timeout_s=10)
            for node in self.nodes:
                with suppress(AssertionError, subprocess.TimeoutExpired):
                    self.call("scontrol", "update", f"nodename={node}", "state=resume", timeout_s=10)
            time.sleep(0.1)

    # -- up and down ----------------------------------------------------------------------------------

    def up(self) -> None:
        for name in ("log", "pid", "state", "munge", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        self._network()
        self._write()
        munge, key = self.folder / "munge", self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        options = {"key-file": key, "socket": munge / "sock", "pid-file": munge / "pid"}
        options |= {"log-file": self.folder / "log/munged.log", "seed-file": munge / "seed", "num-threads": 4}
        self._launch(
            "munged", "munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in options.items())
        )
        self._until((munge / "sock").is_socket)
        self.start_slurmctld()
        for node in self.nodes:
            self.power_on(node)
        self._until(self._idle)
        marks = [self.power / node / "class/powercap/emulated" for node in self.nodes if self._machine]
        self._until(lambda: all(mark.exists() for mark in marks))

    def down(self) -> None:
        for name in (*self.nodes, "slurmctld", "munged"):
            if daemon := self._daemons.pop(name, None):
                daemon.kill()
                daemon.wait()
        for process in psutil.process_iter(["name", "environ"]):  # an srun would wait for nodes that are gone
            of = (process.info["environ"] or {}).get("SLURM_CONF")
            if process.info["name"] == "srun" and of == self.env["SLURM_CONF"]:
                process.kill()
        for number in range(1, len(self.nodes) + 1):
            for command in (f"link del {self.prefix}v{number}", f"netns del {self.prefix}n{number}"):
                subprocess.run(["ip", *command.split()], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self.prefix}br"], capture_output=True, check=False)
        _free.add(self._number)

    def told(self, characters: int = 1500) -> str:
        """Return the end of the daemons' logs."""
        files = sorted(file for file in (self.folder / "log").glob("*") if not file.name.startswith("munged"))
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-characters:]}" for file in files)

    def _idle(self) -> bool:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            found = self.call("sinfo", "-h", "-N", "-o", "%N %T", timeout_s=10).split("\n")
            states = dict(line.split() for line in found if line)
            jobs = self.call("squeue", "-h", "-o", "%i", timeout_s=10).strip()
            return not jobs and all(states.get(node) == "idle" for node in self.nodes)
        return False

    def _until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + STARTS_S
        while not condition():
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.05)

    def _network(self) -> None:
        bridge = f"{self.prefix}br"
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.net}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number in range(1, len(self.nodes) + 1):
            name, link = f"{self.prefix}n{number}", f"{self.prefix}v{number}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", link, "master", bridge, "up")
            _run("ip", "-n", name, "addr", "add", f"{self.net}.{10 + number}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "route", "add", "default", "via", f"{self.net}.1")

    def _write(self) -> None:
        host = socket.gethostname()
        known = [("127.0.0.1", "localhost"), (f"{self.net}.1", host)]
        known += [(f"{self.net}.{11 + i}", node) for i, node in enumerate(self.nodes)]
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in known))
        with socket.socket() as free:  # two labs at once have two ports
            free.bind(("", 0))
            port = free.getsockname()[1]
        values = {"host": host, "net": self.net, "run": self.folder, "port": port, "cpus": self.cpus}
        values |= {"memory_mb": self.memory_mb, "extra": self._extra, "slurmd_timeout_s": self._timeout_s}
        lines, gres_conf = list[str](), ""
        for i, (node, gpus) in enumerate(zip_longest(self.nodes, self._gpus, fillvalue="")):
            gres = f" Gres=gpu:{gpus}" if gpus else ""
            lines.append(
                f"NodeName={node} NodeAddr={self.net}.{11 + i} NodeHostname={node} Feature=f{i + 1}{gres}\n"
            )
            kind, _, number = gpus.rpartition(":")
            for file in ("null", "zero", "full", "random")[: int(number or 0)]:  # any device file will do
                gres_conf += f"NodeName={node} Name=gpu {kind and f'Type={kind} '}File=/dev/{file}\n"
        if gres_conf:
            lines.insert(0, "GresTypes=gpu\n")
            (self.folder / "gres.conf").write_text(gres_conf)
        lines.append(
            f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        )
        self.conf.write_text(CONF % values + "".join(lines))
        # slurmd looks for control groups even where nothing uses them.
        version = "v1" if Path("/sys/fs/cgroup/freezer").is_dir() else "v2"
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\nCgroupAutomount=no\n")
        power = {"python": sys.executable, "folder": self.power, "machine": self._machine}
        power |= {"log": self.folder / "log/power"}
        lines_of_init = {"run": self.folder, "power": POWER % power if self._machine else ""}
        (self.folder / "init").write_text(INIT % lines_of_init)
        (self.folder / "init").chmod(0o755)

    def _launch(self, name: str, *command: str) -> None:
        """Launch a daemon, which ends with the tests however they end."""
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.env,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=lambda: tree.die_with_parent(self._me),  # noqa: PLW1509
            )

    def processes(self, node: str) -> list[int]:
        """Their numbers outside the node."""
        return tree.descendants(self._daemons[node].pid)

    def _name(self, pid: int) -> str:
        with suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        return ""

    def _link(self, node: str) -> str:
        return f"{self.prefix}v{node.removeprefix('node')}"


def require_slurm() -> None:
    """Skip (on CI: fail) where no cluster can be brought up."""
    require(os.geteuid() == 0, "root, to make the nodes of a Slurm cluster")
    sought = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=sought)]
    require(not missing, f"{', '.join(missing)}: {PACKAGES}")
    spaces = ["unshare", "--mount", "--net", "--pid", "--fork", "true"]
    probe = subprocess.run(spaces, capture_output=True, text=True, check=False)
    require(probe.returncode == 0, f"namespaces ({probe.stderr.strip()})")


@contextmanager
def slurmlab(
    folder: Path,
    nodes: int = 3,
    cpus: int = 2,
    memory_mb: int = 2000,
    *,
    extra: str = "",
    timeout_s: int = 15,
    power: str = "",
    gpus: Sequence[str] = (),
) -> Iterator[SlurmLab]:
    """Yield a cluster with all nodes idle; take everything away afterwards, also if it cannot be brought up.

    Args:
        folder: empty; the path must be short enough for a socket below it.
        cpus, memory_mb: of each node, as it claims.
        extra: further lines of slurm.conf.
        timeout_s: SlurmdTimeout.
        power: the machine whose power caps each node emulates (``agent.emulation.machines``); empty: they
            have none.
        gpus: of the first nodes, as they claim: "2" or "a100:2"; "": none.
    """
    lab = SlurmLab(folder, nodes, cpus, memory_mb, extra=extra, timeout_s=timeout_s, power=power, gpus=gpus)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@contextmanager
def short_slurmlab(**options: Any) -> Iterator[SlurmLab]:
    """Yield a cluster in a folder of its own whose path is short; skip where none can be brought up."""
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurmlab(Path(folder), **options) as lab:
        Path(folder).chmod(0o755)
        yield lab


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
