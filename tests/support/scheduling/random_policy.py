"""A policy that does whatever is allowed, at random: it tests the simulator, not scheduling."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from scheduler.model.events import Action, Event, Migrate, Resize, Resume, SetPowerCap, Start, Suspend, WakeAt
from scheduler.model.jobs import Job, JobState, Placement, Pool, Stage, Stop
from scheduler.policies.base import Policy, View


class Chaos(Policy):
    """Starts, suspends, resumes, migrates, resizes and caps at random; always keeps something going."""

    suits = frozenset({"counted", "classes", "nodes", "power"})
    ignores = frozenset()

    def begin(self, view: View) -> None:
        self.random = random.Random(self.seed)
        self.left = 40  # changes of running jobs; then they may go on to their ends

    def decide(self, view: View, event: Event) -> Sequence[Action]:
        action = self._one(view)
        actions = [] if action is None else [action]
        if view.waiting or view.suspended:
            actions.append(WakeAt(view.now + self.random.choice((0.5, 3.0, 20.0)), "again"))
        return actions

    def _one(self, view: View) -> Action | None:
        """One possible action, or none."""
        options: list[tuple[int, Job, JobState | None]] = [
            *((0, job, None) for job in view.waiting.values()),
            *((1, state.job, state) for state in view.suspended.values()),
            *((2, state.job, state) for state in view.running.values() if state.stage is Stage.RUNNING),
        ]
        self.random.shuffle(options)
        if not view.running:
            options.sort(key=lambda option: option[0])
        for kind, job, state in options:
            if kind == 2 and not self.left:
                continue
            action = self._change(view, job, state) if kind == 2 and state else self._go(view, job, state)
            if action is not None:
                self.left -= kind == 2
                return action
        return None

    def _go(self, view: View, job: Job, state: JobState | None) -> Action | None:
        if state is not None and job.stop is Stop.PAUSE:
            placement = state.placement
            assert placement is not None
            if placement.nodes and not view.nodes[placement.pool].refusal(job, placement):
                return Resume(job.id, placement)
            return None
        placement = self._place(view, job)
        if placement is None:
            return None
        return Start(job.id, placement) if state is None else Resume(job.id, placement)

    def _change(self, view: View, job: Job, state: JobState) -> Action | None:
        before = state.placement
        assert before is not None
        pool = view.cluster[before.pool]
        choice = self.random.random()
        if choice < 0.3 and job.stop is not Stop.NEVER:
            return Suspend(job.id)
        if choice < 0.6 and job.stop is Stop.CHECKPOINT:
            other = self.random.choice([p for p in view.cluster.pools if job.runs_on(p.name)])
            there = self._on(view, job, other)
            return Migrate(job.id, there) if there is not None else None
        if choice < 0.8 and pool.caps_w:
            cap = pool.caps_w[0]
            if before.cap_w is not None and before.cap_w > cap:
                return SetPowerCap(job.id, cap)
        if choice < 0.9 and job.malleable and before.units > job.units:
            return Resize(job.id, Placement(pool.name, before.units - 1, cap_w=before.cap_w))
        return None

    def _place(self, view: View, job: Job) -> Placement | None:
        pools = [pool for pool in view.cluster.pools if job.runs_on(pool.name)]
        self.random.shuffle(pools)
        for pool in pools:
            placement = self._on(view, job, pool)
            if placement is not None:
                return placement
        return None

    def _on(self, view: View, job: Job, pool: Pool) -> Placement | None:
        if not pool.counted:
            room = view.nodes[pool.name].room(job.demand).tolist()
            places = [node for node, tasks in enumerate(room) for _ in range(tasks)]
            if len(places) < job.units:
                return None
            nodes = Counter(self.random.sample(places, job.units))
            return Placement(pool.name, job.units, tuple(sorted(nodes.items())))
        most = min(view.free[pool.name], job.units if job.max_units is None else job.max_units)
        if most < job.units:
            return None
        units = self.random.randint(job.units, most)
        cap = self.random.choice(pool.caps_w) if pool.caps_w else None
        if view.budget_w is not None and view.power_w + pool.power_w(units, cap, job.power) > view.budget_w:
            units, cap = job.units, pool.caps_w[0]
            if view.power_w + pool.power_w(units, cap, job.power) > view.budget_w:
                return None
        return Placement(pool.name, units, cap_w=cap)
