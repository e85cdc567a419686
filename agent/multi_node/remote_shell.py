"""The program that mpiexec calls in place of ssh to start its daemon on another node of a Slurm job.

    python -I -S remote_shell.py HOST COMMAND...    starts on HOST, by srun:
    python -I -S remote_shell.py --keep COMMAND...  a keeper (``agent.multi_node.ranks``) of the command

``TENBIN_ATTEMPT`` is the attempt's folder. The program is started isolated, by its file, because the
environment is meant for the user's program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FOLDER = "TENBIN_ATTEMPT"
OF_THE_JOB = (
    "SLURM_CONF",
    "SLURM_JWT",
    "SLURM_JOB_ID",
    "SLURM_JOBID",
)  # the others are options

UNBOUND = b"lacks support for cpu binding"  # srun's complaint about --cpu-bind=none without a binding plugin


def variables() -> dict[str, str]:
    """Return the variables that have mpiexec call this program (MPICH family, Open MPI 4, Open MPI 5)."""
    words = f"{sys.executable} -I -S {Path(__file__).resolve()}"
    return {
        "HYDRA_LAUNCHER_EXEC": sys.executable,
        "HYDRA_LAUNCHER_EXTRA_ARGS": words.partition(" ")[2],
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": words,
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": words,
    }


def srun(host: str, command: list[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Build the call that starts the keeper in the job's own allocation, and its environment."""
    clean = {k: v for k, v in environment.items() if not k.startswith("SLURM_") or k in OF_THE_JOB}
    words = ["srun", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--mpi=none"]
    words += ["--cpu-bind=none", "--input=none", "--quiet"]
    return [*words, sys.executable, "-I", "-S", __file__, "--keep", *command], clean


def main(arguments: list[str]) -> int:
    """Start the command on a host, or keep it on this one; return the exit code."""
    if arguments[0] == "--keep":
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        from agent.multi_node.ranks import keep

        return keep(Path(os.environ[FOLDER]), " ".join(arguments[1:]))
    words, environment = srun(arguments[0], arguments[1:], os.environ)
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        if UNBOUND not in line:  # not meant for the job's output
            os.write(2, line)
            said = line
    code = process.wait()
    if code > 0:
        _note_failure(Path(os.environ[FOLDER]), arguments[0], said.decode(errors="replace").strip())
    return code


def _note_failure(folder: Path, host: str, said: str) -> None:
    """Report that srun failed before there was a keeper, which is no fault of the job."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from agent.attempts.folder import Attempt
    from agent.multi_node.ranks import RankFiles

    RankFiles(Attempt(folder)).report_unreached(host, said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
