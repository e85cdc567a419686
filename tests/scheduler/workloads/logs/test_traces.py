"""Readers of data centres' task traces: worked cases, damage, the whole published files where they lie."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, EstimateKind, Pool, Stop
from scheduler.model.state import ClusterState
from scheduler.simulator.trace import Arrival
from scheduler.workloads import Workload, load
from scheduler.workloads.logs.task_traces import chosen
from tests.support.amounts import examples
from tests.support.paths import DATA, SHARED_DATA

EXCERPT = DATA / "google2011-task_events-excerpt.csv"
ANY = Cluster((Pool("node", 1),))
WITH_GPUS = parse_cluster("1xnode[cores=64,memory_mb=512000,gpu=4]")
FILES = settings(max_examples=examples(100))
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)


def data(name: str) -> Path:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"the published trace {name} is not here")
    return SHARED_DATA / name


def read(text: str) -> tuple[list[Arrival], Workload]:
    workload = load(text, WITH_GPUS if "pod_list" in text else ANY)
    return list(workload.arrivals), workload  # type: ignore[arg-type]


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def event(
    time_s: float, kind: int, task: int = 0, cpu: str = "0.25", *, memory: str = "0.5", user: str = "u"
) -> str:
    return f"{round(time_s * 1e6)},,77,{task},,{kind},{user},0,9,{cpu},{memory},0,0\n"


def rows_of(arrivals: list[Arrival]) -> list[tuple[float, float, int, tuple[float, ...]]]:
    return [(a.job.submit_s, a.run_s, a.job.units, a.job.demand) for a in arrivals]


# -- Google 2011


def test_google_worked_by_hand(tmp_path: Path) -> None:
    """Submit 0, schedule 1, evict 2, fail 3, finish 4, kill 5; the last run of a task is its run time."""
    lives = [
        (1, [(0, 0), (700, 1), (800, 4)], "already there when the trace begins"),
        (2, [(610, 0), (620, 1), (650, 4)], (610.0, 30.0)),
        (3, [(605, 0), (606, 1), (700, 2), (701, 0), (720, 1), (745.5, 4)], (605.0, 25.5)),
        (4, [(630, 0), (640, 1), (650, 5)], "it was killed"),
        (5, [(630, 0), (640, 1), (650, 3)], "it failed"),
        (6, [(630, 0), (640, 1)], "still there when the trace ends"),
        (7, [(630, 0), (640, 1), (650, 2), (650, 0)], "still there when the trace ends"),
        (8, [(630, 0), (631, 4)], "never scheduled"),
        (9, [(640, 1), (650, 4)], "no submission in the trace"),
        (10, [(600, 0), (600, 1), (600, 7), (600, 8), (600, 4)], (600.0, 0.0)),
    ]
    lines = [(time, event(time, kind, task)) for task, life, _ in lives for time, kind in life]
    lines.sort(key=lambda line: line[0])
    path = written(tmp_path, "task_events.csv", "".join(line for _, line in lines))
    found, workload = read(path)
    assert [row[:2] for row in rows_of(found)] == sorted(w for *_, w in lives if isinstance(w, tuple))
    assert workload.skipped == Counter(reason for *_, reason in lives if isinstance(reason, str))
    first = found[0].job
    assert (first.demand, first.user, first.estimate_s, first.stop) == ((0.25, 0.5), "u", None, Stop.PAUSE)
    several, rest = read(path + ",ends=any,estimate=exact,stop=never")
    assert len(several) == len(found) + 2 and not any("it " in reason for reason in rest.skipped)
    assert {(a.job.estimate_s == a.run_s, a.job.estimate_kind, a.job.stop) for a in several} == {
        (True, EstimateKind.EXACT, Stop.NEVER)
    }


def test_google_excerpt() -> None:
    found, workload = read(str(EXCERPT))
    table = _google_by_pandas(EXCERPT)
    assert rows_of(found) == [(s, r, 1, (c, m)) for s, r, c, m in table.itertuples(index=False)]
    assert len(found) + sum(workload.skipped.values()) == 66
    assert len(found[0].job.user) == 44  # the hash
    assert "Google" in workload.source and not read(str(EXCERPT) + ",limit=5")[0][5:]


def _google_by_pandas(path: Path) -> pd.DataFrame:
    """Submission, run time, CPU and memory of the tasks that count, by joins instead of a state machine."""
    columns = {0: "us", 2: "job", 3: "task", 5: "event", 9: "cpu", 10: "memory"}
    events = pd.read_csv(path, header=None, usecols=list(columns)).rename(columns=columns)
    events["key"] = events.groupby(["job", "task"]).ngroup()
    first = events.drop_duplicates("key").set_index("key")
    last = events[events.event < 7].drop_duplicates("key", keep="last").set_index("key")
    scheduled = events[events.event == 1].groupby("key").us.max()
    took = pd.DataFrame(
        {
            "submit": first.us,
            "run": (last.us - scheduled) / 1e6,
            "cpu": first.cpu,
            "memory": first.memory,
            "counts": (first.us > 0) & (first.event == 0) & (last.event == 4),
        }
    )
    took = took[took.counts & (took.cpu > 0) & (took.memory > 0)]
    took = took.sort_values("submit", kind="stable").drop(columns="counts")
    return took.assign(submit=took.submit / 1e6)


def test_google_folder_of_parts_is_one_trace(tmp_path: Path) -> None:
    lines = EXCERPT.read_text().splitlines(keepends=True)
    folder = tmp_path / "events"
    folder.mkdir()
    for number, part in enumerate((lines[:90], lines[90:91], lines[91:])):
        (folder / f"part-{number:05}-of-00003.csv.gz").write_bytes(gzip.compress("".join(part).encode()))
    assert read(f"google2011:{folder}")[0] == read(str(EXCERPT))[0]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no part files"):
        load(f"google2011:{tmp_path / 'empty'}", ANY)


@pytest.mark.slow
def test_google_whole_shard() -> None:
    """Sizes as in the description of the shard; the tasks as pandas joins them."""
    path = data("google2011-task_events-part-00000.csv.gz")
    found, workload = read(str(path))
    table = _google_by_pandas(path)
    assert rows_of(found) == [(s, r, 1, (c, m)) for s, r, c, m in table.itertuples(index=False)]
    assert len(found) + sum(workload.skipped.values()) == 190_926
    assert workload.skipped["already there when the trace begins"] == 144_339
    assert len(found) == 37_944


# -- Alibaba 2017


def test_alibaba_2017_worked_by_hand(tmp_path: Path) -> None:
    heading = "task_create_time, task_end_time, job_id, task_id, n, status, cpu, memory\n"
    lines = (
        "50,90,1,1,3,Terminated,50,0.25\n"
        "40,41,1,2,1,Terminated,400,0.125\n"
        "45,45,2,3,1,Terminated,100,0.5\n"
        "46,50,2,4,2,Failed,100,0.5\n"
        "46,50,2,5,2,Waiting,,\n"
    )
    path = written(tmp_path, "batch_task.csv", heading + lines)
    found, workload = read(path)
    assert rows_of(found) == [
        (40.0, 1.0, 1, (4.0, 0.125)),
        (45.0, 0.0, 1, (1.0, 0.5)),
        (50.0, 40.0, 3, (0.5, 0.25)),
    ]
    assert workload.skipped == {"status failed": 1, "status waiting": 1}
    assert read(written(tmp_path, "batch_task_2.csv", lines))[0] == found  # without a heading
    as_floats = lines.replace("0,", "0.0,").replace("1,3,T", "1.0,3.0,T")
    assert read(written(tmp_path, "batch_task_3.csv", "\ufeff" + as_floats))[0] == found
    assert [a.job.units for a in read(path + ",ends=any")[0]] == [1, 1, 2, 3]
    single = read(path + ",instances=jobs")[0]
    assert rows_of(single)[2:] == [(50.0, 40.0, 1, (0.5, 0.25))] * 3
    assert [a.job.id for a in single] == [1, 2, 3, 4, 5]


def test_alibaba_2017_whole_table() -> None:
    path = data("alibaba2017-batch_task.csv.gz")
    found, workload = read(str(path))
    table = pd.read_csv(path)
    table.columns = pd.Index(["create", "end", "job", "task", "n", "status", "cpu", "memory"])
    assert len(table) == 80_553 == len(found) + sum(workload.skipped.values())
    table = table[(table.status == "Terminated") & (table.create >= 0)].dropna()
    table = table.sort_values("create", kind="stable")
    wanted = zip(table.create, table.end - table.create, table.n, table.cpu / 100, table.memory, strict=True)
    assert rows_of(found) == [(s, r, n, (c, m)) for s, r, n, c, m in wanted]
    every = read(f"{path},instances=jobs,every=2048")[0]
    assert len(every) == pytest.approx(table.n.sum() / 2048, rel=0.03)


# -- Alibaba GPU 2023


def test_alibaba_gpu_worked_by_hand(tmp_path: Path) -> None:
    lines = (
        "pod-0,12000,1000,1,460,,LS,Running,10,110,20\n"
        "pod-1,500,2000,2,1000,,BE,Failed,5,6,5\n"
        "pod-2,500,2000,0,0,,BE,Pending,5,6,\n"
    )
    found, workload = read(written(tmp_path, "openb_pod_list.csv", PODS + lines))
    assert rows_of(found) == [
        (5.0, 1.0, 1, (0.5, 2097.152, 2.0)),
        (10.0, 90.0, 1, (12.0, 1048.576, 0.46)),
    ]
    assert found[1].job.memory_mb == 1048.576 and workload.skipped == {"never scheduled": 1}
    assert read(written(tmp_path, "marked_pod_list.csv", "\ufeff" + PODS + lines))[0] == found
    with pytest.raises(BadInput, match="line 1: no column num_gpu"):
        read(written(tmp_path, "pod_list.csv", PODS.replace("num_gpu", "gpus")))


def test_alibaba_gpu_whole_list() -> None:
    path = data("alibaba-gpu2023-openb_pod_list_default.csv.gz")
    found, workload = read(str(path))
    table = pd.read_csv(path)
    assert len(table) == 8_152 == len(found) + sum(workload.skipped.values())
    table = table[table.scheduled_time.notna()]
    table = table.sort_values("creation_time", kind="stable")
    gpus = [a.job.demand[2] for a in found]
    assert gpus == pytest.approx((table.num_gpu * table.gpu_milli / 1000).tolist())
    assert [a.run_s for a in found] == (table.deletion_time - table.scheduled_time).tolist()


def test_alibaba_gpu_nodes_are_a_cluster(tmp_path: Path) -> None:
    rows = "sn,cpu_milli,memory_mib,gpu,model\na,32000,1000,0,\nb,8000,2000,2,P100\n"
    cluster = parse_cluster(written(tmp_path, "nodes.csv", rows))
    assert parse_cluster(written(tmp_path, "marked.csv", "\ufeff" + rows)) == cluster
    (pool,) = cluster.pools
    assert pool.resources == ("cpu", "memory_mb", "gpu")
    assert pool.capacities == ((32.0, 1048.576, 0.0), (8.0, 2097.152, 2.0))
    path = written(tmp_path, "pod_list.csv", PODS + "p,8000,1000,2,1000,,LS,Running,10,110,20\n")
    (arrival,) = load(path, cluster).arrivals  # type: ignore[misc]
    assert ClusterState(cluster).misfit(arrival.job) == ""
    for text, message in [
        (rows.replace("gpu", "cards"), "line 1: no column gpu"),
        (rows + "c,8000,,1,\n", "line 4: memory_mib is no number"),
        (rows + "c,8000,-1,1,\n", "line 4: memory_mib is negative"),
        (rows.splitlines()[0], "no nodes"),
        (rows.replace("2,P", "0,P"), "no node has any gpu"),
    ]:
        with pytest.raises(BadInput, match=message):
            parse_cluster(written(tmp_path, "bad.csv", text))


@pytest.mark.parametrize(
    ("cluster", "demand"),
    [
        ("1xnode[cores=64,memory_mb=512000,gpu=4]", (8.0, 1048.576, 2.0)),
        ("1xnode[gpu=4,memory=512000,ssd=9,cpu=64]", (2.0, 1048.576, 0.0, 8.0)),
    ],
)
def test_a_demand_is_of_the_resource_of_its_name(
    tmp_path: Path, cluster: str, demand: tuple[float, ...]
) -> None:
    """Whatever their order; of what the trace does not know jobs take none."""
    path = written(tmp_path, "pod_list.csv", PODS + "p,8000,1000,2,1000,,LS,Running,10,110,20\n")
    (arrival,) = load(path, parse_cluster(cluster)).arrivals  # type: ignore[misc]
    assert arrival.job.demand == demand


def test_resources_that_a_cluster_does_not_have_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "pod_list.csv", PODS + "p,8000,1000,2,1000,,LS,Running,10,110,20\n")
    with pytest.raises(BadInput, match=r"demand cores, memory_mb, gpu; the cluster has .*gpu\.t4") as error:
        load(path, parse_cluster("1xnode[cores=64,gpu.a100=2,gpu.t4=2]"))
    assert "memory_mb, gpu" in error.value.remedy


def test_demands_that_counted_units_cannot_meet_are_told(tmp_path: Path) -> None:
    pods = written(tmp_path, "pod_list.csv", PODS + "p,8000,1000,2,1000,,LS,Running,10,110,20\n")
    with pytest.raises(BadInput, match="the cluster has no gpu") as error:
        load(pods, parse_cluster("100"))
    assert "8xnode[cores=...,memory_mb=...,gpu=...]" in error.value.remedy
    tasks = written(tmp_path, "batch_task.csv", LINES["batch_task.csv"])
    assert "cores, memory nothing is counted" in load(tasks, parse_cluster("100")).note


def test_alibaba_gpu_whole_node_list() -> None:
    (pool,) = parse_cluster(str(data("alibaba-gpu2023-openb_node_list_all_node.csv"))).pools
    assert (pool.units, sum(capacity[2] for capacity in pool.capacities)) == (1_523, 6_212)


# -- all of them

LINES = {
    "task_events.csv": event(600, 0) + event(601, 1) + event(602, 4),
    "batch_task.csv": "50,90,1,1,3,Terminated,50,0.25\n",
    "pod_list.csv": PODS + "pod-0,12000,1000,1,460,,LS,Running,10,110,20\n",
}
BAD = [
    ("task_events.csv", event(1, 0)[:-4], "12 fields instead of 13"),
    ("task_events.csv", event(1, 0, cpu="much"), "a field that is no number"),
    ("task_events.csv", event(1, 0, memory="nan"), "a field that is no number"),
    ("task_events.csv", event(-1, 0), "a negative time"),
    (
        "task_events.csv",
        event(9223372036854.775807, 4).replace("9223372036854775808", str(2**63 - 1)),
        "beyond",
    ),
    ("task_events.csv", event(1, 9), "an unknown event"),
    ("batch_task.csv", "1,2,3,4\n", "4 fields instead of 8"),
    ("batch_task.csv", "-5,90,1,9,3,Terminated,50,0.25\n", "created before the trace begins"),
    ("batch_task.csv", "95,90,1,9,3,Terminated,50,0.25\n", "a negative run time"),
    ("batch_task.csv", "50,90,1,9,3,Terminated,50,\n", "no request in the trace"),
    ("batch_task.csv", "50,90,1,9,0,Terminated,50,0.25\n", "no instances"),
    ("batch_task.csv", "50,90,1,9,1,Terminated,50,0\n", "a request of no memory"),
    ("batch_task.csv", "50,x,1,9,1,Terminated,50,1\n", "a field that is no number"),
    ("pod_list.csv", "pod-9,12000,-1,1,460,,LS,Running,10,110,20\n", "a negative request"),
    ("pod_list.csv", "pod-9,0,9,1,460,,LS,Running,10,110,20\n", "a request of no CPU"),
    ("pod_list.csv", "pod-9,500,9,1,460,,LS,Running,10,15,20\n", "times that are not in order"),
    ("pod_list.csv", "pod-9,500,9,1,460,,LS,Running,-10,15,20\n", "a negative time"),
    ("pod_list.csv", "pod-9,500,9,1,460,,LS,Running,inf,15,20\n", "a field that is no number"),
]


@pytest.mark.parametrize(("name", "bad", "reason"), BAD)
def test_bad_lines_are_counted_or_one_line(tmp_path: Path, name: str, bad: str, reason: str) -> None:
    path = written(tmp_path, name, LINES[name] + bad)
    found, workload = read(path)
    assert len(found) == 1 and sum(workload.skipped.values()) == 1
    assert reason in next(iter(workload.skipped))
    line = LINES[name].count("\n") + 1
    with pytest.raises(BadInput, match=rf"{name}, line {line}: .*{reason}.*; mend the line"):
        read(path + ",strict=true")


@FILES
@given(
    st.lists(st.one_of(st.text("0123456789,.-x\"'\n", max_size=60), st.sampled_from(sorted(LINES.values()))))
)
def test_any_text_gives_jobs_and_counted_skips(tmp_path: Path, pieces: list[str]) -> None:
    for name, good in LINES.items():
        found, _ = read(written(tmp_path, name, good + "\n" + "\n".join(pieces)))
        assert [a.job.id for a in found] == list(range(1, len(found) + 1))
        assert [a.job.submit_s for a in found] == sorted(a.job.submit_s for a in found)


@pytest.mark.parametrize("name", LINES)
def test_cut_files_are_one_line(tmp_path: Path, name: str) -> None:
    whole = gzip.compress((LINES[name] * 2000).encode())
    path = tmp_path / f"{name}.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="damaged or cut short") as error:
        read(str(path))
    assert "\n" not in str(error.value)


def test_every_takes_the_share_and_always_the_same_ones() -> None:
    names = [f"{job}-{task}" for job in range(6_251_000, 6_251_040) for task in range(500)]
    taken = [name for name in names if chosen(name, 16)]
    assert len(taken) == pytest.approx(len(names) / 16, rel=0.1)
    assert all(chosen(name, 1) for name in names)
    assert sum(chosen(name, 16, 40) for name in names) == pytest.approx(len(names) * 2.5, rel=0.01)
    assert {chosen(name, 16, 40) for name in names} == {2, 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("google2011:nothing.csv", "no such file"),
        (f"{EXCERPT},every=0", "every and limit must be at least 1"),
        (f"{EXCERPT},ends=all", "ends='all'; it should be 'finished' or 'any'"),
        (f"{EXCERPT},instances=jobs", "unknown parameter"),
        ("googl:x", "no such file"),
    ],
)
def test_bad_parameters_are_one_line(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        load(text, ANY)
    assert "\n" not in str(error.value)
