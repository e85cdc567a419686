"""``tenbin down``, ``status`` and ``nodes``: a coordinator that runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from itertools import starmap
from typing import TYPE_CHECKING, Any

from profiles.quantities import counted, duration, local, number
from scheduler.jobs.literals import resource_text
from tenbin.client.connection import await_end
from tenbin.commands.jobs.jobs import age_s
from tenbin.commands.options import HomeOption, JsonOption, client_of, stored_profiles
from tenbin.text import label, print_answer, print_json, say

if TYPE_CHECKING:
    from tenbin.client.client import Client

MOST_JOBS, MOST_FIGURES = 20, 3  # in tenbin nodes


def down(let_go: bool = False, home: HomeOption = None, json: JsonOption = False) -> None:
    """Stop the coordinator. Jobs that run go on; the queue is kept for the next ``tenbin up``.

    Jobs of plain sbatch that were taken over wait on for as long as tenbin up --gate says, and start by
    themselves then.

    Args:
        let_go: Leave the jobs of plain sbatch that wait to Slurm's own scheduler.
    """
    client = client_of(home)
    counts = client.call("GET", "/status")["jobs"]
    running = counts["running"] + counts["stopping"]
    answer = client.call("POST", f"/down?let_go={'true' if let_go else 'false'}")
    pid, guests = answer["pid"], answer["guests"]
    if not client.is_remote:
        await_end(pid)
    text = f"stopped (pid {pid})"
    if running:
        jobs = "1 job runs" if running == 1 else f"{running} jobs run"
        text += f"; {jobs} on; to end all jobs: tenbin up --daemon, then tenbin cancel all"
    if guests and let_go:
        text += f"; {guests} jobs of sbatch are left to Slurm"
    elif guests:
        text += f"; {guests} jobs of sbatch wait for tenbin up, and start by themselves if it does not come"
    print_answer({"pid": pid, "guests": guests}, text, json)


def status(home: HomeOption = None, json: JsonOption = False) -> None:
    """Say whether the coordinator runs, by which policy, and what it has to do."""
    answer = client_of(home).call("GET", "/status")
    counts = ", ".join(f"{count} {stage}" for stage, count in answer["jobs"].items() if count) or "no jobs"
    also = f", {answer['url']}" if answer["url"] else ""
    text = f"pid {answer['pid']}, policy {answer['policy']}, {answer['home']}{also}\n{counts}"
    if held := answer.get("held"):
        text += f"\nheld: {local(held)}"
    print_answer(answer, f"{text}\n{use_words(answer)}", json)


def use_words(state: dict[str, Any]) -> str:
    """Say how much jobs hold of all: ``in use: 3 of 8 cores, 4 of 64 GB memory, 1 of 2 GPUs``."""
    rows, memory = {row["name"]: (row["used"], row["total"]) for row in state["in_use"]}, state["memory"]
    if memory:  # also what paused jobs keep
        rows["memory_mb"] = memory["set_aside_mb"], memory["total_mb"]
    used = [resource_text(name, *amounts) for name, amounts in rows.items()]
    if power := state["power"]:
        used.append(f"{power['allotted_w']:g} of {power['budget_w']:g} W")
    return f"in use: {', '.join(used)}"


def nodes(home: HomeOption = None, json: JsonOption = False) -> None:
    """List the nodes: resources of each, how much is free, its jobs, and its region.

    Of this machine also the main figures of its last profile.
    """
    client = client_of(home)
    if json:
        print_json(client.call("GET", "/nodes"))
    else:
        say("\n".join(describe_nodes(client)))


def describe_nodes(client: Client) -> list[str]:
    """Write all lines on the nodes; where they have no names, with what runs and what jobs hold."""
    table = client.call("GET", "/nodes")
    lines, named = node_lines(table), {row["name"] for row in table if "up" in row}
    if not named:
        path = f"/jobs?stages=running&stages=stopping&members=true&limit={MOST_JOBS + 1}"
        jobs = client.call("GET", path)
        for job in jobs[:MOST_JOBS]:
            where = "" if job["place"] == "core" else f" on {job['place']}"
            size, took = counted(job["cores"], "core"), duration(age_s(job, time.time()))
            lines.append(f"  job {label(job)}, {job['name']}: {size}{where}, for {took}")
        lines += ["  and more: tenbin jobs"] * (len(jobs) > MOST_JOBS)
        lines.append(use_words(client.call("GET", "/status")))
    if not client.is_remote and (not named or socket.gethostname() in named):
        lines.append(_last_profile())
    return lines


def _last_profile() -> str:
    """Say when this machine was measured last, and its main figures."""
    from profiles.card import main_figures, trust

    profile = next(stored_profiles(None).profiles(socket.gethostname()), None)
    if profile is None:
        return "this machine has no profile yet: tenbin profile --quick"
    figures = [
        f"{figure.name} {number(figure.value)} {figure.unit}".rstrip()
        for figure in main_figures(profile)[:MOST_FIGURES]
    ]
    marks = [f"{profile.created.astimezone():%Y-%m-%d}", *["EMULATED"] * profile.emulated]
    marks += ["disturbed"] * (trust(profile).state == "disturbed")
    return f"profile of {', '.join(marks)}: {', '.join(figures) or 'no main figure'}"


def node_lines(table: list[dict[str, Any]]) -> list[str]:
    """Write a line for each pool, region and node."""
    shared = {node["name"] for node in table if "up" in node and len(node.get("regions", ())) > 1}
    lines = [line for node in table for line in (_pool(node, shared) if "units" in node else _node(node))]
    prices = {
        _price(node["name"] if "units" in node else resource, price)
        for node in table
        for resource, price in node.get("prices", {}).items()
        if price
    }
    return lines + sorted(prices)


def _price(resource: str, hours: float) -> str:
    """Write what a policy says that others wait for an hour of a resource."""
    amount = 1e3 if resource == "memory_mb" else 1.0
    return f"an hour of {resource_text(resource, amount)} costs others {hours * amount:.2g} h of waiting"


def _pool(pool: dict[str, Any], shared: set[str]) -> Iterator[str]:
    """Yield the line of a pool of units, then one line for each region of the pool."""
    yield f"{pool['name']}: {pool['free']} of {pool['units']} free{_beyond(pool)}"
    for region in pool["regions"]:
        low, high = region["job_units"]
        sizes = f"{low} to {high}" if low < high else f"{high}"
        where = (f"{name} ({n})" if name in shared else name for name, n in region["places"].items())
        held = f"{region['used']} of {region['units']} used"
        yield f"  region {region['name']}, jobs of {sizes}: {held}; {', '.join(where)}"
    yield from _gpus(pool)


def _beyond(node: dict[str, Any]) -> str:
    """Say what jobs keep of a time when there was more."""
    more = ", ".join(starmap(resource_text, node.get("beyond", {}).items()))
    return more and f"; jobs that began when there was more keep {more} besides until they end"


def _node(node: dict[str, Any]) -> Iterator[str]:
    """Yield the line of a node, then one line for each GPU that jobs get there."""
    free = ", ".join(resource_text(k, node["free"][k], v) for k, v in node.get("capacity", {}).items() if v)
    jobs = ", ".join(map(str, node["jobs"])) or "none"
    regions = ", ".join(node.get("regions", ()))
    inside = f"; region {regions}" if regions else ""
    down = "" if node["up"] else f"; DOWN{node['trouble'] and ': '}{node['trouble']}"
    others = f"; jobs outside tenbin: {counted(node['others'], 'core')}" if node.get("others") else ""
    yield f"{node['name']}: {free and f'{free} free; '}jobs: {jobs}{_beyond(node)}{others}{inside}{down}"
    yield from _gpus(node)


def _gpus(node: dict[str, Any]) -> Iterator[str]:
    for gpu in node.get("gpus", ()):
        withheld = gpu["strangers"] or gpu["failure"]
        has = ("not given out" if withheld else "free") if gpu["job"] is None else f"job {gpu['job']}"
        if gpu["job"] is not None and gpu["share"] is not None:
            has += f", {100 * gpu['share']:.0f} %, {gpu['used_mb']:.0f} MB"
        if (gpu["idle_s"] or 0) >= 60:
            has += f", no work for {gpu['idle_s'] / 60:.0f} min"
        if gpu["loss_ratio"]:
            has += f"; {100 * gpu['loss_ratio']:.1f} % slower than it was"
            has += "" if "units" in node else ": given last"
        if gpu["failure"]:
            has += f"; {gpu['failure']}"
        outside = "".join(f"; outside of the queue: {holder}" for holder in gpu["strangers"])
        yield f"  GPU {gpu['number']}, {gpu['name']}: {has}{outside}"
