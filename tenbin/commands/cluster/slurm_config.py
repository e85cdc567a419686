"""``tenbin slurm-config``: the profiles of a cluster's nodes as lines of slurm.conf."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import BadInput, UserError
from tenbin.commands.options import JsonOption, StoreOption

LUA = "job_submit.lua"


def slurm_config(
    cluster: Annotated[
        str, typer.Argument(help="Name of the cluster. (default: the one measured last)", show_default=False)
    ] = "",
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder in which to write nodes.conf (gres.conf where there are GPUs), or job_submit.lua.",
            show_default=False,
        ),
    ] = None,
    job_submit: Annotated[
        Path | None,
        typer.Option(
            "--job-submit",
            help="Write job_submit.lua instead: jobs of plain sbatch then wait for tenbin up --take-over "
            "FILE while FILE is fresh. slurmctld must be able to read FILE.",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="With --job-submit: partition that tenbin schedules. (default: Slurm's default)"),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write NodeName lines for slurm.conf from the nodes' profiles (tenbin profile --nodes all).

    The lines have processors and memory as found. Feature: kind of node, speed of its memory, its OpenCL
    devices. Gres: its GPUs. Weight: Slurm takes slower nodes last, and nodes with GPUs after all others.
    Addresses, other features and Gres that a node has in Slurm already are kept.

    [bold]Examples[/bold]

      tenbin slurm-config
      tenbin slurm-config -o /etc/slurm/tenbin    # and in slurm.conf: include /etc/slurm/tenbin/nodes.conf

      tenbin slurm-config --job-submit /run/tenbin.lease -o /etc/slurm    # and: JobSubmitPlugins=lua
    """
    from json import dumps

    told: object
    if job_submit is not None:
        from scheduler.engines.slurm.admin.slurm_conf import script

        files = told = {LUA: script(job_submit.absolute(), partition)}
    elif partition is not None:
        raise BadInput("--partition needs --job-submit", "leave it out")
    else:
        files, told = _node_files(cluster, store)
    if json:
        print(dumps(told, indent=1))
    elif output is None:
        print("\n# gres.conf:\n".join(files.values()), end="")
    else:
        _write(output, files)


def _node_files(cluster: str, store: Path | None) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Return nodes.conf and, if there are GPUs, gres.conf; and their lines as records."""
    from scheduler.engines.slurm.admin.slurm_conf import conf_texts, node_lines
    from tenbin.commands.measure.cluster import judged, known

    survey, profiles = known(cluster, store)
    real = "tenbin profile --nodes all"
    if survey.emulated:
        raise BadInput(f"{survey.cluster} {survey.id} is emulated", f"measure the real nodes: {real}")
    if not profiles:
        raise BadInput(f"no profile of a node of {survey.cluster} is left", f"measure: {real}")
    lines = node_lines(profiles, judged(survey, profiles)[1], _known_to_slurm())
    title = f"By tenbin {survey.tenbin_version} from what it measured of {survey.cluster}, {survey.id}."
    nodes, gres = conf_texts(lines, title)
    records: list[dict[str, object]] = [
        {"NodeName": line.name, **line.settings, "gres.conf": line.gres} for line in lines
    ]
    return {"nodes.conf": nodes} | ({"gres.conf": gres} if gres else {}), records


def _known_to_slurm() -> Mapping[str, Mapping[str, str]]:
    from scheduler.engines.slurm.admin.slurm_conf import read_nodes
    from scheduler.engines.slurm.slurm_commands import Slurm

    try:
        return read_nodes(Slurm().call("scontrol", "--oneliner", "--all", "show", "node"))
    except UserError as error:
        print(f"tenbin: {error.what}: addresses and features are not kept", file=sys.stderr)
        return {}


def _write(folder: Path, files: dict[str, str]) -> None:
    from profiles.files.safe_files import write_whole

    lua = folder / LUA
    if LUA in files and lua.exists() and "By tenbin" not in lua.read_text(errors="replace"):
        remedy = "choose another folder, and have it call tenbin_hold as its first lines say"
        raise BadInput(f"{lua} is there already, and not tenbin's", remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text)
            print(folder / name)
    except OSError as error:
        raise BadInput(f"--output {folder}: {error.strerror}", "choose a folder you may write") from error
