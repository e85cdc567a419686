"""exclusive, pair and match: schedules worked by hand, what they never do, and the generator of kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.inventory import Roots, read_network
from probes.topology import read_topology
from profiles.errors import BadInput
from scheduler.model.clusters import parse_cluster
from scheduler.model.events import NodeDown, NodeUp, Start, Timer
from scheduler.model.interference import (
    BESIDE,
    FAR,
    NEAR,
    PACKED,
    SPREAD,
    PairTable,
    Pressure,
    SharedNodeInterference,
    SlowdownsByPool,
    Sockets,
    load_pairs,
    sockets_of,
)
from scheduler.model.jobs import Cluster, EstimateKind, Job, Pool, instant
from scheduler.model.state import ClusterState
from scheduler.policies.base import View
from scheduler.policies.registry import create
from scheduler.policies.sharing.pairing import (
    best_choice,
    bindings_of,
    by_probes,
    factors,
    gain_percent,
    least_time,
    rule_bindings,
    suggestions,
)
from scheduler.policies.sharing.sharing import Shape, place, shape
from scheduler.simulator.metrics import Accumulator
from scheduler.simulator.simulator import Simulator
from scheduler.simulator.trace import Arrival, Outcome, SimulationSettings
from scheduler.workloads import load
from tenbin.commands.measure import pairs as command
from tests.support.amounts import examples
from tests.support.job_profiles import make_job
from tests.support.labs.machines import Tree, intel_two_sockets, virtual_machine
from tests.support.scheduling.schedule_audit import audit
from tests.support.scheduling.worlds import World, run, shared_classes, sharing

TABLE = load_pairs("konishi2008")
QUICK = settings(max_examples=examples(60))
POLICIES = (
    "exclusive",
    "pair",
    "pair,by=counters",
    "pair,by=chance",
    "match",
    "match,most=3",
    "match,passes=1",
    "weigh",
    "weigh,most=3",
)


def world(nodes: int, *programs: str, table: PairTable = TABLE, gap_s: float = 0.0) -> World:
    """Jobs of 8 tasks, all at once or ``gap_s`` apart, that run as the table says."""
    arrivals = tuple(
        Arrival(
            Job(
                i,
                gap_s * (i - 1),
                8,
                table.base_s[p],
                estimate_kind=EstimateKind.PREDICTED,
                demand=(1.0,),
                program=p,
            ),
            table.base_s[p],
        )
        for i, p in enumerate(programs, 1)
    )
    cluster = Cluster((Pool("node", nodes, resources=("cores",), capacity=(4.0,)),))
    return World(
        cluster, arrivals, SimulationSettings(interference=SharedNodeInterference(table), slowdowns=table)
    )


def where(outcomes: list[Outcome]) -> dict[int, tuple[float, str, tuple[int, ...]]]:
    """Start, binding and nodes of each job."""
    places = {o.job.id: o.segments[0].placement for o in outcomes}
    return {
        o.job.id: (o.start_s, places[o.job.id].binding, tuple(n for n, _ in places[o.job.id].nodes))
        for o in outcomes
    }


FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_kinds_of_nodes_are_shared_each_by_itself(policy: str) -> None:
    @QUICK
    @given(shared_classes())
    def check(given_world: World) -> None:
        def ask(view: View) -> None:
            for job in view.waiting.values() if view.upcoming is None else ():
                sentence, expected, *_ = asked.why(job, view)
                assert len(sentence) > 10 and (expected is None or expected >= view.now)

        asked = create(policy)
        outcomes, summary = run(asked, given_world, ask)
        audit(given_world, outcomes, sum(summary.refused.values()))
        assert run(create(policy), given_world)[0] == outcomes

    check()


def two_kinds(*programs: str, old: PairTable, slower: float = 1.0, **fields: Any) -> World:
    """As ``world``, on four nodes of two kinds; the old ones are slower, with pairs of their own."""
    one = world(4, *programs)
    pools = one.cluster.pools[0], replace(one.cluster.pools[0], name="old", rank=1)
    arrivals = []
    for arrival in one.arrivals:
        times = {"node": arrival.run_s, "old": slower * arrival.run_s}
        job = replace(arrival.job, estimate_s=None, estimates_s=times, **fields)
        arrivals.append(Arrival(job, arrival.run_s, times))
    known = SlowdownsByPool({"node": TABLE, "old": old})
    world_of = SimulationSettings(interference=SharedNodeInterference(known), slowdowns=known)
    return World(Cluster(pools), tuple(arrivals), world_of)


def test_each_kind_of_nodes_has_slowdowns_of_its_own() -> None:
    """The first two have the nodes of the first kind; the others run as on the other, at half the speed."""
    twice = {
        binding: {a: {b: 2 * time_s for b, time_s in row.items()} for a, row in rows.items()}
        for binding, rows in TABLE.times_s.items()
    }
    halved = PairTable(TABLE.base_s, twice, TABLE.pressures, TABLE.alone_like)
    outcomes, _ = run(create("pair"), two_kinds("EP", "MG", "EP", "MG", old=halved))
    placed = {o.job.id: o.segments[0].placement for o in outcomes}
    assert sorted(place.pool for place in placed.values()) == ["node", "node", "old", "old"]
    ends = {placed[o.job.id].pool: o.end_s for o in outcomes if o.job.program == "MG"}
    mg_s = TABLE.times_s["spread"]["MG"]["EP"]
    assert ends == {"node": pytest.approx(mg_s, abs=1e-4), "old": pytest.approx(2 * mg_s, abs=1e-4)}


def test_exclusive_takes_the_first_kind_with_room() -> None:
    outcomes, _ = run(create("exclusive"), two_kinds("CG", "CG", "CG", old=TABLE, slower=3.0))
    pools = [outcome.segments[0].placement.pool for outcome in sorted(outcomes, key=lambda o: o.job.id)]
    assert pools == ["node", "node", "old"]


def test_exclusive_by_hand() -> None:
    # Two at a time on two nodes each; the third begins when the shorter one ends.
    outcomes, _ = run(create("exclusive"), world(4, "CG", "MG", "EP"))
    assert where(outcomes) == {
        1: (0.0, "packed", (0, 1)),
        2: (0.0, "packed", (2, 3)),
        3: (instant(TABLE.base_s["MG"]), "packed", (2, 3)),
    }


def test_pair_by_hand() -> None:
    # EP with MG as the ends of the order, on all nodes. MG ends after its time beside EP; of those that wait
    # (FT, LU) the one from the other end, LU, joins EP.
    outcomes, _ = run(create("pair"), world(4, "MG", "FT", "LU", "EP"))
    placed = where(outcomes)
    mg_s = TABLE.times_s["spread"]["MG"]["EP"]
    assert placed[1] == (0.0, "spread", FOUR) and placed[4] == (0.0, "spread", FOUR)
    assert placed[3] == (pytest.approx(mg_s, abs=1e-5), "spread", FOUR)
    assert outcomes[0].job.id == 1 and outcomes[0].run_s == pytest.approx(mg_s, abs=1e-5)


def test_pair_places_two_ft_near_and_far() -> None:
    outcomes, _ = run(create("pair"), world(4, "FT", "FT"))
    assert sorted(binding for _, binding, _ in where(outcomes).values()) == ["far", "near"]
    ends = sorted(o.end_s for o in outcomes)
    assert ends[0] == pytest.approx(TABLE.times_s["far"]["FT"]["FT"], abs=1e-5)


def test_match_spreads_one_job_that_is_alone_and_lets_the_next_join() -> None:
    outcomes, _ = run(create("match"), world(4, "LU", "EP", gap_s=50.0))
    assert where(outcomes) == {1: (0.0, "spread", FOUR), 2: (50.0, "spread", FOUR)}


def test_match_shares_nothing_at_a_loss_where_all_can_be_alone() -> None:
    bad = PairTable(
        {"a": 100.0},
        {b: {"a": {"a": 150.0}} for b in BESIDE},
        {"a": Pressure(1.0)},
        "a",
    )
    outcomes, _ = run(create("match"), world(4, "a", "a", table=bad))
    assert {binding for _, binding, _ in where(outcomes).values()} == {"packed"}
    assert [o.end_s for o in outcomes] == [100.0, 100.0]


def test_match_finds_the_pairs_of_the_paper() -> None:
    programs = ("EP", "EP", "CG", "CG", "FT", "FT", "LU", "LU", "MG", "MG")
    equal = PairTable(
        dict.fromkeys(TABLE.base_s, 1.0),
        {
            b: {p: {q: t / TABLE.base_s[p] for q, t in row.items()} for p, row in rows.items()}
            for b, rows in TABLE.times_s.items()
        },
        TABLE.pressures,
        "EP",
    )
    outcomes, _ = run(create("match"), world(20, *programs, table=equal))
    together: dict[tuple[int, ...], list[str]] = {}
    for outcome in outcomes:
        assert outcome.start_s == 0.0
        together.setdefault(where(outcomes)[outcome.job.id][2], []).append(outcome.job.program)
    pairs = Counter(tuple(sorted(programs)) for programs in together.values())
    assert pairs == {("EP", "MG"): 2, ("CG", "LU"): 2, ("FT", "FT"): 1}


@pytest.mark.parametrize("name", POLICIES)
def test_sharing_is_by_whole_sets_and_bindings_that_go_together(name: str) -> None:
    most = 3 if "most=3" in name else 2

    @QUICK
    @given(sharing())
    def check(world: World) -> None:
        def look(view: View) -> None:
            on: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
            for state in view.running.values():
                placement = state.placement
                assert placement is not None
                nodes = tuple(node for node, _ in placement.nodes)
                for node in nodes:
                    on.setdefault(node, []).append((placement.binding, nodes))
            for here in on.values():
                bindings = [binding for binding, _ in here]
                assert len({nodes for _, nodes in here}) == 1 and len(here) <= most
                assert len(here) == 1 or PACKED not in bindings
                assert len(here) != 2 or bindings[1] == BESIDE[bindings[0]]

        run(create(name, seed=1), world, look)

    check()


@pytest.mark.parametrize("passes", [0, 1, 3])
@pytest.mark.parametrize("name", ["pair", "pair,by=chance", "match"])
def test_no_job_is_passed_too_often(name: str, passes: int) -> None:
    @QUICK
    @given(sharing(most=12))
    def check(world: World) -> None:
        outcomes, _ = run(create(f"{name},passes={passes}"), world)
        for job in outcomes:
            later = [o for o in outcomes if o.job.id > job.job.id and o.start_s < job.start_s]
            assert len(later) <= passes

    check()


@pytest.mark.parametrize("name", ["pair", "match"])
def test_a_job_passed_as_often_as_it_may_be_holds_up_none_before_it(name: str) -> None:
    """The first one has lost its node to a later one; then one of a higher priority comes."""
    rows = ((0.0, 0, 50.0), (1.0, 1, 50.0), (20.0, 1, 10.0))
    arrivals = tuple(
        Arrival(Job(i, submit, 1, run_s, demand=(4.0,), priority=priority), run_s)
        for i, (submit, priority, run_s) in enumerate(rows, 1)
    )
    lost = ((10.0, NodeDown("node", node=0)), (12.0, NodeUp("node", node=0)))
    world = World(parse_cluster("1xnode[cores=4]"), arrivals, SimulationSettings(disturbances=lost))
    outcomes, _ = run(create(f"{name},passes=0"), world)
    assert [o.job.id for o in outcomes] == [2, 3, 1]


@pytest.mark.parametrize("name", POLICIES)
def test_programs_that_nobody_measured_are_alone(name: str) -> None:
    arrivals = tuple(
        Arrival(
            Job(i, 0.0, 4, 10.0, estimate_kind=EstimateKind.PREDICTED, demand=(1.0,), program="new"), 10.0
        )
        for i in range(1, 6)
    )
    outcomes, _ = run(create(name), World(parse_cluster("2xnode[cores=4]"), arrivals))
    assert [o.end_s for o in outcomes] == [10.0, 10.0, 20.0, 20.0, 30.0]


@pytest.mark.parametrize("name", ["pair", "match", "weigh"])
def test_nobody_joins_on_a_node_that_is_out_of_service(name: str) -> None:
    """A node that is drained keeps its job; its set takes another only when the node is back."""
    ep, mg = (arrival.job for arrival in world(4, "EP", "MG").arrivals)
    policy, state = create(name), ClusterState(world(4).cluster, slowdowns=TABLE)
    policy.begin(state)
    for job, up, joins in ((ep, True, True), (mg, False, False), (mg, True, True)):
        if job.id not in state.waiting:
            state.submit(job)
        state.set_node("node", 0, up)
        actions = policy.decide(state, Timer(0.0))
        assert len(actions) == joins
        for action in actions:
            assert isinstance(action, Start)
            state.start(action.job_id, action.placement)


@pytest.mark.parametrize("name", ["exclusive", "pair", "match"])
def test_the_first_job_is_told_when_there_should_be_room(name: str) -> None:
    """The third needs both nodes, and they are empty when the second has ended."""
    jobs = [
        Job(i, 0.0, units, run_s, estimate_kind=EstimateKind.PREDICTED, demand=(1.0,), program="new")
        for i, (units, run_s) in enumerate(((4, 10.0), (4, 30.0), (8, 5.0)), 1)
    ]
    policy, told = create(name), []

    def ask(view: View) -> None:
        if view.upcoming is None and 3 in view.waiting:
            told.append(policy.why(jobs[2], view))

    arrivals = tuple(Arrival(job, job.estimate_on("node")) for job in jobs)
    run(policy, World(parse_cluster("2xnode[cores=4]"), arrivals), ask)
    assert {reason.expected_start_s for reason in told} == {30.0}
    assert all("2 whole nodes" in sentence and "gets on with" not in sentence for sentence, *_ in told)


@pytest.mark.parametrize("name", ["pair", "match"])
def test_the_first_job_expects_a_share(name: str) -> None:
    """Two share all nodes; the third has room when the first of them should end."""
    jobs, told = world(4, "EP", "MG", "CG"), []
    policy = create(name)

    def ask(view: View) -> None:
        if view.upcoming is None and not view.now:
            ends = [state.expected_end_s for state in view.running.values()]
            told.append((policy.why(jobs.arrivals[-1].job, view).expected_start_s, min(ends)))

    run(policy, jobs, ask)
    (expected, first_end), *_ = told
    assert expected == first_end


def test_three_on_a_node() -> None:
    outcomes, _ = run(create("match,most=4"), world(8, "EP", "EP", "EP", "EP"))
    placed = where(outcomes)
    assert {nodes for _, _, nodes in placed.values()} == {tuple(range(8))}
    assert [o.start_s for o in outcomes] == [0.0] * 4


def test_pools_that_cannot_be_shared_are_told() -> None:
    for text in ("8", "4xa[cores=4]+4xb"):
        with pytest.raises(BadInput, match="pools of equal nodes"):
            run(create("match"), World(parse_cluster(text), ()))
    with pytest.raises(BadInput, match="most must be at least 2"):
        create("match,most=1")
    with pytest.raises(BadInput, match="order not negative"):
        create("match,order=-1")
    with pytest.raises(BadInput, match="depth must be at least 1"):
        create("pair,depth=0")
    with pytest.raises(BadInput, match="must not be negative"):
        create("pair,high-percent=-1")


def test_shapes() -> None:
    pool = Pool("node", 4, resources=("cores", "memory"), capacity=(4.0, 8.0))
    job = Job(1, 0.0, 7, demand=(1.0, 1.0))
    assert shape(job, pool) == Shape(2, 4) and shape(job, pool, 2) == Shape(4, 2)
    assert shape(job, pool, 3) is None  # one core of each node: seven nodes needed
    assert shape(Job(1, 0.0, 1, demand=(3.0, 0.0)), pool, 2) is None
    assert place(job, pool, Shape(4, 2), (5, 6, 7, 8), binding="near").nodes == (
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 1),
    )


def test_after_a_restart_a_policy_decides_alike() -> None:
    # A second policy that only sees the view in the middle of a run chooses what the first one chooses.
    for name in ("pair", "match"):
        first, second = create(name), create(name)
        jobs = world(8, *(list(TABLE.programs) * 4))

        def ask(view: View, second: object = second) -> None:
            second.begin(view)  # type: ignore[attr-defined]
            if view.upcoming is None:
                assert not second.decide(view, None)  # type: ignore[attr-defined]

        run(first, jobs, ask)


# -- the linear program -------------------------------------------------------------------------------


def test_least_time_by_hand() -> None:
    # a and b at half the usual time beside each other (factor 0.5): 10 s of both take 5 s on the set.
    times = {"a": {"a": 2.0, "b": 0.5}, "b": {"a": 0.5, "b": 2.0}}
    table = PairTable({"a": 1.0, "b": 1.0}, {"spread": times}, {}, "a")
    least, prices = least_time({"a": 10.0, "b": 10.0}, table)
    assert least == pytest.approx(5.0)
    # 30 s of b: 20 s of it are left and run alone, two at a time.
    assert least_time({"a": 10.0, "b": 30.0}, table)[0] == pytest.approx(15.0)
    assert sum(10.0 * price for price in prices.values()) == pytest.approx(5.0)
    assert least_time({}, table) == (0.0, {})


@QUICK
@given(st.lists(st.sampled_from(TABLE.programs), min_size=2, max_size=8))
def test_least_time_is_a_bound(programs: list[str]) -> None:
    # Weak duality with the prices: no group on a set gets more done than the set is worth.
    work = {program: float(n) for program, n in Counter(programs).items()}
    least, prices = least_time(work, TABLE)
    assert least <= len(programs) / 2 + 1e-9
    assert sum(prices[program] * seconds for program, seconds in work.items()) == pytest.approx(least)
    for a, b in combinations_with_replacement(work, 2):
        for bindings in bindings_of(2):
            fa, fb = factors((a, b), bindings, TABLE)
            assert prices[a] / fa + prices[b] / fb <= 1.0 + 1e-9
    assert all(price <= 0.5 + 1e-9 for price in prices.values())


@QUICK
@given(st.lists(st.sampled_from(TABLE.programs), min_size=2, max_size=8))
def test_best_choice_beats_the_rule(programs: list[str]) -> None:
    rule = by_probes([TABLE.pressures[program] for program in programs])
    best = gain_percent(best_choice(programs, TABLE), programs, TABLE)
    assert best >= gain_percent(rule, programs, TABLE) - 1e-9


# -- the generator ------------------------------------------------------------------------------------


def test_kernels() -> None:
    cluster = parse_cluster("16xnode[cores=4]")
    jobs = list(islice(load("generator:kernels,jobs=500,mix=even,load=0.8", cluster, 1).arrivals, 500))  # type: ignore[arg-type]
    assert Counter(a.job.program for a in jobs) == dict.fromkeys(TABLE.programs, 100)
    assert all(a.run_s == TABLE.base_s[a.job.program] == a.job.estimate_s for a in jobs)
    work = sum(a.run_s for a in jobs) / 8  # eight jobs at once on whole nodes
    assert work / jobs[-1].job.submit_s == pytest.approx(0.8, rel=0.15)
    again = list(load("generator:kernels,jobs=500,mix=even,load=0.8", cluster, 1).arrivals)  # type: ignore[arg-type]
    assert again == jobs
    equal = list(load("generator:kernels,jobs=20,lengths=equal,estimate=no", cluster).arrivals)  # type: ignore[arg-type]
    assert (
        len({a.run_s for a in equal}) == 1
        and equal[0].run_s == pytest.approx(146.974)
        and equal[3].job.estimate_s is None
    )
    odd = [
        a.run_s / TABLE.base_s[a.job.program]
        for a in load("generator:kernels,lengths=chance", cluster).arrivals
    ]  # type: ignore[union-attr]
    assert 0.25 <= min(odd) < 0.3 and 3.5 < max(odd) <= 4.0


def test_kernels_say_what_is_wrong(tmp_path: Path) -> None:
    nodes = parse_cluster("4xnode[cores=4]")
    for text, message in (
        ("jobs=0", "at least 1"),
        ("load=0", "above 0"),
        ("table=konishi", "did you mean konishi2008"),
        (f"table={tmp_path}/x.toml", "No such file"),
    ):
        with pytest.raises(BadInput, match=message):
            load(f"generator:kernels,{text}", nodes)
    with pytest.raises(BadInput, match="one pool of equal nodes"):
        load("generator:kernels", parse_cluster("4"))


@pytest.mark.parametrize("knowledge", ["pairs", "pressures", "nothing"])
def test_what_is_known_decides_what_is_gained(knowledge: str) -> None:
    cluster = parse_cluster("8xnode[cores=4]")
    turnarounds = {}
    for name in ("exclusive", "match"):
        work = load(f"generator:kernels,jobs=60,mix=even,lengths=equal,knowledge={knowledge}", cluster, 1)
        metrics = Accumulator(cluster)
        Simulator(cluster, work.arrivals, create(name), work.settings, sinks=[metrics]).run()
        turnarounds[name] = metrics.metrics().mean_turnaround_s
    if knowledge == "nothing":
        assert turnarounds["match"] == turnarounds["exclusive"]
    else:
        assert turnarounds["match"] < 0.985 * turnarounds["exclusive"]


# Cores of the jobs of a pair on a node of two sockets, made of text files: against cores by hand.


def sockets(tree: Tree, cpus: int) -> Sockets:
    topology = read_topology(tree.sysfs, set(range(cpus)))
    return sockets_of(topology, read_network(Roots.of(tree.settings())))


def test_two_sockets_of_four_cores(tmp_path: Path) -> None:
    """The card is on the second: near are its cores 4 to 7, far 0 to 3; of each core one thread."""
    found = sockets(intel_two_sockets(tmp_path), 16)
    assert found.cores == ((4, 5, 6, 7), (0, 1, 2, 3)) and found.card and not found.why_not
    assert found.lay((SPREAD, SPREAD), (4, 4)) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert found.lay((NEAR, FAR), (4, 4)) == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert found.lay((FAR, NEAR), (2, 3)) == [(0, 1), (4, 5, 6)]
    assert found.lay((PACKED,), (8,)) == [(0, 1, 2, 3, 4, 5, 6, 7)]
    assert found.lay((NEAR, FAR), (5, 1)) is None and found.lay((SPREAD, SPREAD), (4, 5)) is None


def test_one_socket_is_told(tmp_path: Path) -> None:
    assert "one socket" in sockets(virtual_machine(tmp_path), 4).why_not


def test_the_rule_places_as_in_the_paper() -> None:
    """EP-MG and CG-LU spread, FT beside FT apart (its comprobe degradation is 11.2 %, it talks)."""
    calm, loud = Pressure(memory_percent=3.1), Pressure(26.2, 11.2, 16.8, 20.0)
    assert rule_bindings([calm]) == (PACKED,)
    assert rule_bindings([calm, Pressure(38.2, 4.3, 6.5, 3.0)]) == (SPREAD, SPREAD)
    assert rule_bindings([loud, loud]) == (NEAR, FAR)
    assert rule_bindings([calm, calm, loud]) == (SPREAD,) * 3


def test_pairs_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [make_job(name, cpus=(0, 1)) for name in ("a", "b")]
    found = sockets(intel_two_sockets(tmp_path), 16)
    advice = suggestions(jobs)
    command._print_placements(advice, jobs, found, "")
    shown = capsys.readouterr().out
    assert "a 2x4: CPUs 0, 4" in shown and "b 2x4: CPUs 1, 5" in shown
    rows = command._placed(advice[0], jobs, found)
    assert [(row["job"], row["placement"]) for row in rows] == [("a", "2x4"), ("b", "2x4")]
    command._print_placements(advice, jobs, None, "one socket")
    assert capsys.readouterr().out == "\nNo placements (4x2, 2x4, 2x4F, 2x4B): one socket.\n"
