"""Command lines of mpiexec: one builder for MPICH and its kin, one for Open MPI.

Over several hosts the launcher reaches them by ssh, or by the program that ``TENBIN_MPI_LAUNCHER`` names,
which is called like ssh (options, host, command). ``TENBIN_MPI_IFACE`` names the network interface of this
machine by which the hosts call back, where MPICH's own choice is wrong (Open MPI tries all). The network of
the messages is for the MPI's own variables (UCX_NET_DEVICES, UCX_TLS, OMPI_MCA_btl_tcp_if_include ...),
because the caller's whole environment reaches the ranks. tenbin sets none of these, so that an MPI uses the
fastest network that it finds. Only hosts that share one kernel need UCX_TLS=tcp,self, because MPICH takes
shared memory between them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from probes.mpi import rank_guard

SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_OPEN_MPI = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


class Launcher(Protocol):
    """A way to start ranks."""

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        hosts: Sequence[str] = (),
        cores: Sequence[int] | None = None,
    ) -> list[str]:
        """Build the command line that starts ``program`` as ranks, each under a ``probes.mpi.rank_guard``."""

    def environment(self, timeout_s: float) -> dict[str, str]:
        """Give the variables that the launcher needs besides the caller's own."""


@dataclass(frozen=True)
class MpiInstall:
    """A launcher and the library that belongs to it."""

    launcher: Path
    family: str  # mpich, intel or openmpi
    library: str  # name and version, as the library states them: "MPICH 5.0.2"

    def command(
        self,
        ranks: int,
        program: Sequence[str],
        hosts: Sequence[str] = (),
        cores: Sequence[int] | None = None,
    ) -> list[str]:
        """Build the command line that starts a probe's program, which tenbin's own Python runs.

        All ranks get one program, because mpiexec of Debian's Open MPI 5 crashes on several (open-mpi/ompi
        issue 13303). Rank i is bound to ``cores[i]`` by its guard, so that its threads inherit that under
        every MPI.

        Args:
            hosts: one rank on each, in this order (``ranks`` must be their number); empty: on this node.
        """
        if hosts and len(hosts) != ranks:
            raise ValueError(f"{ranks} ranks for {len(hosts)} hosts")
        if cores is not None and len(cores) != ranks:
            raise ValueError(f"{ranks} ranks for {len(cores)} cores")
        told = ["-print-all-exitcodes"] if self.family == "mpich" else []
        start = [str(self.launcher), *told, *self._reach(hosts), "-n", str(ranks)]
        # Open MPI's launcher dies without ending its ranks; other hosts may have no setpriv.
        tied = [] if hosts else die_with_parent("KILL")
        bound = [] if cores is None else ["--cores", ",".join(map(str, cores))]
        return [*start, *tied, sys.executable, "-P", "-m", "probes.mpi.rank_guard", *bound, *program]

    def job_command(
        self,
        ranks: int,
        program: Sequence[str],
        cores: Sequence[Sequence[int]],
        hosts: Sequence[str] = (),
    ) -> list[str]:
        """Build the command line that starts a user's program, rank i on ``cores[i]`` (empty: anywhere).

        Args:
            hosts: equally many ranks on each but the last, in their order; empty: on this node.
        """
        each = -(-ranks // len(hosts)) if hosts else 1
        # On this node not through a batch system that may be around us.
        here = [] if hosts or self.family == "openmpi" else ["-launcher", "fork"]
        tied = [] if hosts else die_with_parent("KILL")
        groups = ",".join("+".join(map(str, group)) for group in cores)
        bound = ["--cores", groups] if groups else []
        start = [str(self.launcher), *self._reach(hosts, each), *here, "-n", str(ranks), *tied]
        return [*start, *_USERS_GUARD, *bound, *program]

    def spread_command(self, hosts: Mapping[str, int], program: Sequence[str]) -> list[str]:
        """Build the command line that starts a user's program as ranks over hosts, so many on each, in order.

        The launcher's environment says how it reaches the hosts (in jobs of Slurm:
        ``agent.multi_node.remote_shell``).
        """
        named = ",".join(f"{host}:{count}" for host, count in hosts.items())
        if self.family == "openmpi":
            start = [*_OPEN_MPI, "--host", named, "--map-by", "slot"]
        else:
            start = ["-launcher", "rsh", "-hosts", named]
        start += ["-n", str(sum(hosts.values())), *die_with_parent("KILL")]
        return [str(self.launcher), *start, *_USERS_GUARD, *program]

    def _reach(self, hosts: Sequence[str], each: int = 1) -> list[str]:
        return _open_mpi(hosts, each) if self.family == "openmpi" else _mpich(hosts, each)

    def environment(self, timeout_s: float) -> dict[str, str]:
        """Give the variables that the launcher needs besides the caller's own."""
        agent = " ".join([os.environ.get("TENBIN_MPI_LAUNCHER", "ssh"), *SSH_OPTIONS])
        return {
            "MPIEXEC_TIMEOUT": str(round(timeout_s) + 5),  # both families; ends orphans
            "HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(SSH_OPTIONS),
            "OMPI_MCA_plm_rsh_agent": agent,  # Open MPI 4
            "PRTE_MCA_plm_ssh_agent": agent,  # Open MPI 5
            "I_MPI_PIN": "0",
            "PYTHONUNBUFFERED": "",  # where set, print() writes in pieces, which mix with other ranks' lines
        }


# The guard of a user's program is started by its file, isolated: the environment is meant for the program.
_USERS_GUARD = [sys.executable, "-I", "-S", rank_guard.__file__]


def die_with_parent(signal_name: str) -> list[str]:
    """Give the words before a command that end it by this signal when its parent ends."""
    return ["setpriv", "--pdeathsig", signal_name] if shutil.which("setpriv") else []


def _open_mpi(hosts: Sequence[str], each: int) -> list[str]:
    if not hosts:
        return _OPEN_MPI
    if each == 1:
        return [*_OPEN_MPI, "--host", ",".join(hosts), "--map-by", "node"]
    return [*_OPEN_MPI, "--host", ",".join(f"{host}:{each}" for host in hosts), "--map-by", "slot"]


def _mpich(hosts: Sequence[str], each: int) -> list[str]:
    if not hosts:
        return []
    options = ["-launcher", "ssh", "-hosts", ",".join(hosts), "-ppn", str(each)]
    for option, variable in (("-launcher-exec", "TENBIN_MPI_LAUNCHER"), ("-iface", "TENBIN_MPI_IFACE")):
        if value := os.environ.get(variable):
            options += [option, value]
    return options
