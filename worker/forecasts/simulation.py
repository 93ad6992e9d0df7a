"""Simulates how long a batch runs beside others by Step costs, in stretches that each end with a batch.

Rows are shared as the engine shares them (worker/engine/scheduling/admission/fair_shares.py): between
tenants by weight, within a tenant by priority, highest first, and evenly between batches of one priority.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

from worker.forecasts.work import BatchWork
from worker.values.step_costs import StepCosts

# Fewer tokens than this count as none.
LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class Machine:
    """The engine of an average gpu worker, and the number of workers."""

    costs: StepCosts
    num_rows: int  # Sequences in a Step
    max_tokens: int  # of a Step
    num_workers: int = 1
    steps_at_once: float = 1.0  # of a worker

    @property
    def most_running(self) -> int:
        """The number of Sequences that all workers run at once."""
        return round(self.num_rows * self.steps_at_once * self.num_workers)

    def flat(self) -> "Machine":
        """Return a machine whose every Step takes the fixed time of the largest measured one."""
        costs = self.costs
        step = costs.step + costs.row * costs.max_rows
        return replace(self, costs=replace(costs, step=step, row=0.0))

    def proportional(self) -> "Machine":
        """Return a machine whose Steps take time in proportion to their rows, as the largest measured one."""
        costs = self.costs
        row = costs.row + costs.step / max(1, costs.max_rows)
        return replace(self, costs=replace(costs, step=0.0, row=row))


@dataclass(slots=True, eq=False)
class Job:
    """The work that one batch still needs from one worker."""

    num_requests: float
    prompt_tokens: float
    output_tokens: float  # a reading counts as one
    longest: float
    context: float
    tenant: str = ""
    priority: int = 0
    num_batches: int = 1  # that this job stands for

    @classmethod
    def of(
        cls,
        work: BatchWork,
        output_tokens: float,
        *,
        tenant: str = "",
        priority: int = 0,
        num_batches: int = 1,
        num_workers: float = 1,
    ) -> Self:
        """Return one worker's part of some work whose outputs have `output_tokens` together."""
        expected = work.output_tokens.expected
        longer = output_tokens / expected if expected else 1.0
        parts = max(1.0, min(num_workers, work.num_requests))
        return cls(
            num_requests=max(1.0, work.num_requests / parts),
            prompt_tokens=work.prompt_tokens / parts,
            output_tokens=max(output_tokens, work.num_requests) / parts,
            longest=max(1.0, min(work.longest * max(1.0, longer), output_tokens)),
            context=work.context * longer / parts,
            tenant=tenant,
            priority=priority,
            num_batches=num_batches,
        )

    def num_steps(self, rows: float, max_tokens: int) -> float:
        """Return the number of Steps that the job takes with `rows` rows."""
        steps = self.output_tokens / rows
        if self.num_requests > rows + LEAST:  # at the end not all rows are filled
            steps += self.longest / 2
        return max(steps, self.longest, self.prompt_tokens / max_tokens, LEAST)

    def advance(self, share: float, num_steps: float) -> None:
        """Mark a share of the remaining work as done, in `num_steps` Steps."""
        self.num_requests = max(1.0, self.num_requests * (1 - share))
        self.prompt_tokens *= 1 - share
        self.output_tokens *= 1 - share
        self.context *= 1 - share
        self.longest = max(0.0, self.longest - num_steps)


def seconds(own: Job, others: Iterable[Job], machine: Machine, weights: Mapping[str, float]) -> float:
    """Return the seconds until `own` is done, with `others` beside it. Changes all of these jobs.

    `weights`: tenants' shares of the engine, where they are not 1.
    """
    costs = machine.costs
    jobs = [own, *others]
    total = 0.0
    while True:
        jobs = [job for job in jobs if job.output_tokens > LEAST]
        if own not in jobs:
            return total
        shares = _share_out(jobs, machine.num_rows, weights)
        running = [
            (job, job.num_steps(rows, machine.max_tokens))
            for job, rows in zip(jobs, shares, strict=True)
            if rows > LEAST
        ]
        num_steps = min(steps for _, steps in running)
        total += num_steps * costs.step
        for job, steps in running:
            share = num_steps / steps
            total += share * (
                costs.row * job.output_tokens + costs.token * job.prompt_tokens + costs.context * job.context
            )
            job.advance(share, num_steps)


def _share_out(jobs: Sequence[Job], num_rows: float, weights: Mapping[str, float]) -> list[float]:
    """Return the rows of each job, at most one per request."""
    tenants: dict[str, list[Job]] = {}
    for job in jobs:
        tenants.setdefault(job.tenant, []).append(job)
    parts = _divide(
        num_rows,
        [sum(job.num_requests for job in group) for group in tenants.values()],
        [weights.get(tenant, 1.0) for tenant in tenants],
    )
    rows: dict[int, float] = {}
    for group, part in zip(tenants.values(), parts, strict=True):
        left = part
        ordered = sorted(group, key=lambda job: -job.priority)
        for _, found in groupby(ordered, key=lambda job: job.priority):
            level = list(found)
            given = _divide(
                left, [job.num_requests for job in level], [float(job.num_batches) for job in level]
            )
            left -= sum(given)
            rows.update(zip(map(id, level), given, strict=True))
    return [rows[id(job)] for job in jobs]


def _divide(amount: float, wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the parts by weight, each at most what is wanted; the others share what one leaves."""
    parts = [0.0] * len(wanted)
    weight = sum(weights)
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i] / weights[i]):
        parts[index] = min(wanted[index], amount * weights[index] / weight)
        amount -= parts[index]
        weight -= weights[index]
    return parts
