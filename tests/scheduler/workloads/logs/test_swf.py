"""The reader of the Standard Workload Format: round trips, oddities, damage."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool
from scheduler.policies.registry import create
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, OutcomeRecorder
from scheduler.workloads import Workload, load
from scheduler.workloads.logs import swf
from scheduler.workloads.logs.files import WINDOW
from tests.support.amounts import examples

LINE = "{} {} -1 {} {} -1 {} {} {} {} {} 7 -1 3 -1 -1 -1 -1\n"
FILES = settings(max_examples=examples(200))


def line(
    number: object = 1,
    submit: object = 0,
    run: object = 10,
    allocated: object = 4,
    *,
    used: object = -1,
    requested: object = 4,
    limit: object = 20,
    memory: object = -1,
    status: object = 1,
) -> str:
    return LINE.format(number, submit, run, allocated, used, requested, limit, memory, status)


def read(tmp_path: Path, text: str, **parameters: object) -> tuple[list[Arrival], Workload]:
    path = tmp_path / "log.swf"
    path.write_text(text)
    workload = swf.Swf(**parameters).read(path)  # type: ignore[arg-type]
    return list(workload.arrivals), workload  # type: ignore[arg-type]


Row = tuple[int, int, int, int | None, int]
jobs = st.builds(
    lambda submit, run, units, limit, user: (submit, run, units, limit, user),
    st.integers(0, 10**9),
    st.integers(0, 10**7),
    st.integers(1, 10**6),
    st.one_of(st.none(), st.integers(1, 10**7)),
    st.integers(1, 999),
)


@FILES
@given(rows=st.lists(jobs, max_size=30), compressed=st.booleans())
def test_round_trip(tmp_path: Path, rows: list[Row], compressed: bool) -> None:
    arrivals = [
        Arrival(Job(i, float(submit), units, None if limit is None else float(limit), str(user)), float(run))
        for i, (submit, run, units, limit, user) in enumerate(sorted(rows, key=lambda row: row[0]), 1)
    ]
    text = io.StringIO()
    swf.write(arrivals, text)
    path = tmp_path / ("log.swf.gz" if compressed else "log.swf")
    path.write_bytes(gzip.compress(text.getvalue().encode()) if compressed else text.getvalue().encode())
    workload = load(str(path), Cluster((Pool("node", 1),)))
    assert list(workload.arrivals) == arrivals  # type: ignore[arg-type]
    assert not workload.skipped


@FILES
@given(text=st.lists(st.one_of(st.text(max_size=40), st.just(line()), st.just("; a comment"))).map("\n".join))
def test_any_text_gives_jobs_and_counted_skips(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    workload = swf.Swf().read(path)
    found = list(workload.arrivals)  # type: ignore[arg-type]
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        given_lines = [row.split() for row in lines]
    entries = [row for row in given_lines if row and not row[0].startswith(";")]
    assert len(found) + sum(workload.skipped.values()) == len(entries)


@FILES
@given(data=st.binary(max_size=300), compressed=st.booleans())
def test_any_bytes_give_jobs_or_one_line(tmp_path: Path, data: bytes, compressed: bool) -> None:
    path = tmp_path / "log.swf.gz"
    path.write_bytes(b"\x1f\x8b" + data if compressed else data)
    try:
        list(swf.Swf().read(path).arrivals)  # type: ignore[arg-type]
    except BadInput as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 2 3\n", "fewer than 9 fields"),
        (line(run="x"), "a field that is no number"),
        (line(submit=-5), "a negative time of submission"),
        (line(run=-1), "no run time"),
        (line(allocated=-1, requested=0), "no processors"),
        (line(run=0, allocated=0, requested=64, status=5), "cancelled before it began"),
        (line(run="0.0", allocated="-1.0", requested=64, status="5.0"), "cancelled before it began"),
        (line(run="nan"), "a number out of range"),
        (line(number=10**12), "a number out of range"),
        (line() + line(submit=3), "a job number that came before"),
    ],
)
def test_what_cannot_be_used_is_skipped_and_counted(tmp_path: Path, text: str, reason: str) -> None:
    found, workload = read(tmp_path, "; header\n\n" + text + line(number=99, submit=50))
    assert [a.job.id for a in found][-1] == 99
    assert workload.skipped == {reason: 1}
    with pytest.raises(BadInput, match=f"line [34]: {reason}; mend the line"):
        read(tmp_path, "; header\n\n" + text, strict=True)


def test_fields(tmp_path: Path) -> None:
    found, _ = read(
        tmp_path, line(requested=-1, allocated=3, memory=1_000_000, limit=-1) + line(2, used=500_000)
    )
    first, second = found
    assert first.job == Job(1, 0.0, 3, None, "7", 3072.0, program="3")
    assert second.job.memory_mb == 2048.0 and second.job.estimate_s == 20.0
    exact, _ = read(tmp_path, line(), estimate="exact")
    assert exact[0].job.estimate_s == 10.0 and exact[0].job.estimate_kind is EstimateKind.EXACT
    assert read(tmp_path, line(), estimate="none")[0][0].job.estimate_s is None
    assert len(read(tmp_path, "".join(line(i, i) for i in range(1, 9)), limit=3)[0]) == 3


def test_numbers_with_fractions_of_0_as_pandas_writes_them(tmp_path: Path) -> None:
    text = line(1, 5) + line(2, 6, run=0, status=5) + line(3, 7, memory=-1, used=8, limit=-1)
    text += "4 8 -1 10 4 -1 -1 4 20 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
    found, workload = read(tmp_path, text)
    as_floats = "".join(
        " ".join(f"{float(field)}" for field in row.split()) + "\n" for row in text.splitlines()
    )
    assert "4.0 8.0 -1.0" in as_floats
    assert read(tmp_path, as_floats, strict=True)[0] == found and len(found) == 4 and not workload.skipped
    assert [a.job.user for a in found] == ["7", "7", "7", ""]
    assert read(tmp_path, line("1.5"))[1].skipped == {"a field that is no number": 1}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("header", ["", "; Version: 2.2\n"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    tmp_path: Path, header: str, compressed: bool
) -> None:
    data = b"\xef\xbb\xbf" + (header + line(1) + line(2)).encode()
    path = tmp_path / "log.swf"
    path.write_bytes(gzip.compress(data) if compressed else data)
    workload = swf.Swf().read(path)
    assert [a.job.id for a in workload.arrivals] == [1, 2] and not workload.skipped  # type: ignore[union-attr]


def test_lines_out_of_order_are_sorted(tmp_path: Path) -> None:
    found, workload = read(tmp_path, line(1, 10) + line(2, 5) + line(3, 10) + line(4, 7))
    assert [a.job.id for a in found] == [2, 4, 1, 3] and not workload.skipped


@FILES
@given(numbers=st.lists(st.one_of(st.integers(1, 30), st.integers(1, 2**31 - 1))))
def test_each_number_counts_once_in_whatever_order_they_come(tmp_path: Path, numbers: list[int]) -> None:
    found, workload = read(tmp_path, "".join(line(number, i) for i, number in enumerate(numbers)))
    assert [a.job.id for a in found] == list(dict.fromkeys(numbers))
    assert sum(workload.skipped.values()) == len(numbers) - len(found)


def test_lines_far_out_of_order_are_told(tmp_path: Path) -> None:
    count = 30_000
    late = count - WINDOW + 2  # as many jobs late as can be put right
    lines = [line(i, i) for i in range(1, count)] + [line(count, late), line(count + 1, 2)]
    found, workload = read(tmp_path, "".join(lines))
    assert [a.job.id for a in found] == [*range(1, late + 1), count, *range(late + 1, count)]
    assert workload.skipped == {f"out of order by more than {WINDOW} jobs": 1}


def test_nothing_is_read_beyond_the_limit(tmp_path: Path) -> None:
    text = "".join(line(i, i) for i in range(1, 20_000)) + line(run="x")
    assert len(read(tmp_path, text, limit=15_000, strict=True)[0]) == 15_000


def test_cut_file_is_told_after_the_jobs_that_were_whole(tmp_path: Path) -> None:
    whole = gzip.compress("".join(line(i, i) for i in range(1, 50_000)).encode())
    path = tmp_path / "log.swf.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="damaged or cut short"):
        list(swf.Swf().read(path).arrivals)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing.swf", "no such file"),
        ("generator:lubin", "did you mean lublin"),
        ("generator:lublin,job=3", "did you mean jobs"),
        ("generator:lublin,jobs=many", "jobs='many'; it should be a valid integer"),
        ("generator:lublin,jobs", "is not of the form name=value"),
        ("generator:lublin,jobs=3,jobs=4", "jobs is given twice"),
        ("generator:lublin,load=-1", "load must be above 0"),
        ("generator:lublin,estimate=good", "estimate='good'; it should be 'user', 'exact' or 'none'"),
    ],
)
def test_bad_workloads_are_one_line(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as error:
        load(text, Cluster((Pool("node", 16),)))
    assert "\n" not in str(error.value)


def test_unknown_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "log.xyz").write_text("")
    with pytest.raises(BadInput, match="unknown kind of file; known names"):
        load(str(tmp_path / "log.xyz"), Cluster((Pool("node", 16),)))


NODES = "2xnode[gpu=4,cores=64]"


def test_lublin_s_machine_is_the_processors_of_nodes() -> None:
    jobs = [job.job for job in load("generator:lublin,jobs=300,load=0.5", parse_cluster(NODES)).arrivals]  # type: ignore[union-attr]
    alike = [job.job for job in load("generator:lublin,jobs=300,load=0.5", parse_cluster("128")).arrivals]  # type: ignore[union-attr]
    assert [job.units for job in jobs] == [job.units for job in alike] and max(job.units for job in jobs) > 2
    assert {job.demand for job in jobs} == {(0.0, 1.0)}


def test_lublin_model() -> None:
    """Its load, sizes and seeds; the paper's model offers about 0.65 to a machine of 128 nodes."""
    cluster = Cluster((Pool("node", 128),))

    def generated(text: str, seed: int) -> list[Arrival]:
        return list(load(text, cluster, seed).arrivals)  # type: ignore[arg-type]

    natural = generated("generator:lublin,jobs=30000", 1)
    assert (
        natural == generated("generator:lublin,jobs=30000", 1) != generated("generator:lublin,jobs=30000", 2)
    )
    serial = sum(a.job.units == 1 for a in natural) / len(natural)
    assert serial == pytest.approx(0.244, abs=0.01)
    power = sum(a.job.units & (a.job.units - 1) == 0 for a in natural) / len(natural)
    assert power > 0.244 + 0.57
    assert _load(natural) == pytest.approx(0.65, abs=0.06)
    assert _load(generated("generator:lublin,jobs=30000,load=0.9", 1)) == pytest.approx(0.9, abs=1e-4)
    assert all(a.job.estimate_s is not None and a.job.estimate_s >= a.run_s for a in natural)


def _load(arrivals: list[Arrival]) -> float:
    return sum(a.run_s * a.job.units for a in arrivals) / arrivals[-1].job.submit_s / 128


# -- on nodes with several resources -----------------------------------------------------------------------


def on_nodes(tmp_path: Path, takes: str, cluster: str) -> list[Job]:
    """Read three jobs of 8, 16 and 4 processors, of which the first has 1,000,000 KB for each."""
    lines = line(1, requested=8, memory=1_000_000) + line(2, requested=16) + line(3, requested=4)
    (tmp_path / "log.swf").write_text(lines)
    text = str(tmp_path / "log.swf")
    if takes:
        (tmp_path / "takes.csv").write_text(takes)
        text += f",takes={tmp_path / 'takes.csv'}"
    return [arrival.job for arrival in load(text, parse_cluster(cluster)).arrivals]  # type: ignore[union-attr]


def test_processors_become_tasks_on_nodes_and_a_file_tells_gpus(tmp_path: Path) -> None:
    nodes = "2xnode[cores=64,memory_mb=512000,gpu=4]"
    assert [(job.units, job.demand) for job in on_nodes(tmp_path, "", nodes)] == [
        (8, (1.0, 1024.0, 0.0)),
        (16, (1.0, 0.0, 0.0)),
        (4, (1.0, 0.0, 0.0)),
    ]
    assert [(job.units, job.demand) for job in on_nodes(tmp_path, "job,gpu,tasks\n1,4,\n3,2,1\n", nodes)] == [
        (4, (2.0, 2048.0, 1.0)),
        (16, (1.0, 0.0, 0.0)),
        (1, (4.0, 0.0, 2.0)),
    ]
    parts = on_nodes(tmp_path, "job,gpu\n1,0.5\n2,1.5\n3,0\n", nodes)
    assert [(job.units, job.demand) for job in parts] == [
        (1, (8.0, 8192.0, 0.5)),
        (2, (8.0, 0.0, 0.75)),
        (4, (1.0, 0.0, 0.0)),
    ]
    mixed = "1xnode[cpu=64,gpu.a100=2,gpu.t4=2]"
    assert [job.demand for job in on_nodes(tmp_path, "job,gpu.t4\n3,1\n", mixed)][2] == (4.0, 0.0, 1.0)
    assert [job.units for job in on_nodes(tmp_path, "", "100")] == [8, 16, 4]


def test_jobs_that_only_the_file_beside_has_are_told(tmp_path: Path) -> None:
    on_nodes(tmp_path, "job,gpu\n1,4\n8,1\n9,1\n", "2xnode[cores=64,gpu=4]")
    work = load(
        f"{tmp_path / 'log.swf'},takes={tmp_path / 'takes.csv'}", parse_cluster("2xnode[cores=64,gpu=4]")
    )
    assert len(list(work.arrivals)) == 3  # type: ignore[arg-type]
    assert work.remarks[f"only {tmp_path / 'takes.csv'} has it, so it is not simulated"] == 2


def test_further_lines_of_a_job_are_alternatives(tmp_path: Path) -> None:
    """A job is believed to take as many times longer than it does in each of them."""
    takes, nodes = "job,gpu,cores,run_s\n1,1,2,\n1,,4,1600\n2,1,2,\n2,,16,400\n", "1xnode[cores=20,gpu=1]"
    first, second, third = on_nodes(tmp_path, takes, nodes)
    ways = [(way.units, way.demand, way.estimate_s, way.alternative) for way in first.ways]
    assert ways == [(1, (2.0, 1.0), 20.0, 0), (4, (1.0, 0.0), 3200.0, 1)]
    assert second.alternatives[0].demand == (1.0, 0.0) and third.alternatives == ()
    text, cluster = f"{tmp_path / 'log.swf'},takes={tmp_path / 'takes.csv'}", parse_cluster(nodes)
    kept = OutcomeRecorder()
    Simulator(cluster, load(text, cluster).arrivals, create("easy"), sinks=[kept]).run()
    assert {outcome.job.id: outcome.run_s for outcome in kept.outcomes} == {1: 10.0, 2: 400.0, 3: 10.0}


@pytest.mark.parametrize(
    ("takes", "cluster", "message"),
    [
        ("job,gpu\n1,4\n", "100", "the cluster has no gpu"),
        ("job,gpu\n1,4\n", "2xnode[cores=64]", "the cluster has no gpu"),
        ("job\n1\n", "2xnode[cores=64]", "line 1: no columns job and a resource"),
        ("job,gpu\n1,4\nx,1\n", "2xnode[cores=64,gpu=4]", "line 3: a field is no number from 0 on"),
        ("job,gpu\n1\n", "2xnode[cores=64,gpu=4]", "line 2: a field is no number from 0 on"),
        ("job,gpu\n1,1\n1,2\n", "2xnode[cores=64,gpu=4]", "line 3: job 1 has a line before"),
        ("job,gpu\n1,-1\n", "2xnode[cores=64,gpu=4]", "line 2: a field is no number from 0 on"),
        ("job,gpu\n1," + "4" * 200_000, "2xnode[cores=64,gpu=4]", "field larger than field limit"),
    ],
)
def test_a_file_of_gpus_that_cannot_be_used_is_one_line(
    tmp_path: Path, takes: str, cluster: str, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        on_nodes(tmp_path, takes, cluster)


def test_kinds_of_nodes_have_the_resources_of_all() -> None:
    gpu, cpu = parse_cluster("8xgpu[cores=64,gpu=4]+64xcpu[disk=2,cores=48]+100xold").pools[:2]
    assert gpu.resources == cpu.resources == ("cores", "gpu", "disk")
    assert (gpu.capacity, cpu.capacity) == ((64.0, 4.0, 0.0), (48.0, 0.0, 2.0))
