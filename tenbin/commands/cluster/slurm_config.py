"""``tenbin slurm-config``: what was measured of a cluster's nodes, as lines of slurm.conf."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import BadInput, UserError
from tenbin.commands.options import JsonOption, StoreOption


def slurm_config(
    cluster: Annotated[
        str, typer.Argument(help="Which cluster. (default: the one measured last)", show_default=False)
    ] = "",
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
            help="In place of that: job_submit.lua, which has jobs of plain sbatch wait for tenbin up "
            "--take-over FILE while FILE is fresh; slurmctld must be able to read it.",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="With --job-submit: that tenbin schedules. (default: Slurm's default one)"),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Write NodeName lines for slurm.conf from the nodes' profiles (tenbin profile --nodes all).

    Processors and memory as found; Feature: the kind of node, its memory's speed, its OpenCL devices; Gres:
    its GPUs; Weight: slower nodes are taken last, those with GPUs after all others. What Slurm has of a node
    already (addresses, other features, its Gres) is kept.

    [bold]Examples[/bold]

      tenbin slurm-config
      tenbin slurm-config -o /etc/slurm/tenbin    # and in slurm.conf: include /etc/slurm/tenbin/nodes.conf

      tenbin slurm-config --job-submit /run/tenbin.lease -o /etc/slurm    # and: JobSubmitPlugins=lua
    """
    if job_submit is not None:
        _job_submit(job_submit, partition, output, json)
        return
    if partition is not None:
        raise BadInput("--partition is of --job-submit", "leave it out")
    from scheduler.engines.slurm.admin.slurm_conf import conf, node_lines
    from tenbin.commands.measure.cluster import judged, known

    survey, profiles = known(cluster, store)
    if survey.emulated:
        raise BadInput(
            f"{survey.cluster} {survey.id} is emulated", "measure the real nodes: tenbin profile --nodes all"
        )
    if not profiles:
        raise BadInput(
            f"no profile of a node of {survey.cluster} is left", "measure: tenbin profile --nodes all"
        )
    lines = node_lines(profiles, judged(survey, profiles)[1], _known_to_slurm())
    if json:
        import json as json_

        print(json_.dumps([{"NodeName": n.name, **n.settings, "gres.conf": n.gres} for n in lines], indent=1))
        return
    nodes, gres = conf(
        lines, f"By tenbin {survey.tenbin_version} from what it measured of {survey.cluster}, {survey.id}."
    )
    if output is None:
        print(nodes + (f"\n# gres.conf:\n{gres}" if gres else ""), end="")
        return
    _write(output, {"nodes.conf": nodes} | ({"gres.conf": gres} if gres else {}))


def _job_submit(lease: Path, partition: str | None, output: Path | None, json: bool) -> None:
    from scheduler.engines.slurm.admin.job_submit import script

    text = script(lease.absolute(), partition)
    if json:
        import json as json_

        print(json_.dumps({"job_submit.lua": text}, indent=1))
    elif output is None:
        print(text, end="")
    elif (output / "job_submit.lua").exists() and "By tenbin" not in (output / "job_submit.lua").read_text():
        what = f"{output / 'job_submit.lua'} is there already, and not tenbin's"
        raise BadInput(what, "choose another folder, and have it call tenbin_hold as its first lines say")
    else:
        _write(output, {"job_submit.lua": text})


def _known_to_slurm() -> Mapping[str, Mapping[str, str]]:
    from scheduler.engines.slurm.admin.slurm_conf import existing
    from scheduler.engines.slurm.client.tools import Slurm

    try:
        return existing(Slurm().call("scontrol", "--oneliner", "--all", "show", "node"))
    except UserError as error:
        print(f"tenbin: {error.what}: addresses and features are not kept", file=sys.stderr)
        return {}


def _write(folder: Path, files: dict[str, str]) -> None:
    from profiles.files import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text)
            print(folder / name)
    except OSError as error:
        raise BadInput(f"--output {folder}: {error.strerror}", "choose a folder you may write") from error
