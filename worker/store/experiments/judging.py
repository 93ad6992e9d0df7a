"""Judges requests that have a result from both models, each once, and compares the models by them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from worker.contract.prices import Prices
from worker.contract.states import ExperimentMode
from worker.parsing.parser import parse
from worker.quality.comparison import Comparison, Pair, Tally, compare
from worker.quality.expected import Expected
from worker.quality.sequential import ALPHA, interval
from worker.store.database.session import prices_of
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentLineRow, ExperimentRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import FinishReason, Outcome
from worker.values.parsing import Parsing
from worker.values.sampling import FormatKind

AT_ONCE = 500
JUDGED = (Outcome.COMPLETED, Outcome.FAILED)  # a cancelled request shows nothing
OF_JSON = (FormatKind.JSON_OBJECT, FormatKind.JSON_SCHEMA)

_A, _B = aliased(ResultRow, name="a"), aliased(ResultRow, name="b")
_OF_A, _OF_B = aliased(RequestRow, name="of_a"), aliased(RequestRow, name="of_b")


@dataclass(frozen=True, slots=True)
class Work:
    """What one model took for the judged requests that both computed."""

    output_tokens: int
    device_seconds: float
    cost_billionths: int  # of the currency

    @property
    def speed(self) -> float | None:
        """Output tokens a device second."""
        return self.output_tokens / self.device_seconds if self.device_seconds else None


@dataclass(frozen=True, slots=True)
class Means:
    """The mean of something over the judged requests of each model. None: none has it."""

    a: float | None
    b: float | None
    interval: tuple[float, float] | None  # of the difference, B's minus A's


@dataclass(frozen=True, slots=True)
class Report:
    """What an experiment has shown so far."""

    comparison: Comparison
    work_a: Work
    work_b: Work
    failed: Means  # shares; the interval holds however often one looks
    valid: Means  # shares of those that ask for a format whose output is whole and in it; likewise
    length: Means  # output tokens of those that both computed; the interval is for one look


def judge(session: Session, experiment: ExperimentRow, batch: BatchRow) -> int:
    """Judge at most `AT_ONCE` requests of a locked experiment; return how many."""
    other_id = experiment.shadow_id or batch.id
    rows = session.execute(
        select(ExperimentLineRow, _A, _B, *_asked(_OF_A), *_asked(_OF_B))
        .join(_OF_A, (_OF_A.batch_id == batch.id) & (_OF_A.position == ExperimentLineRow.position))
        .join(BatchRow, BatchRow.id == _OF_A.batch_id)
        .join(_A, _A.request_id == _OF_A.id)
        .join(
            _OF_B,
            (_OF_B.batch_id == other_id) & (_OF_B.position == ExperimentLineRow.shadow_position),
        )
        .join(_B, _B.request_id == _OF_B.id)
        .where(
            ExperimentLineRow.experiment_id == experiment.id,
            ~ExperimentLineRow.is_judged,
            _A.outcome.in_(JUDGED),
            _B.outcome.in_(JUDGED),
        )
        .limit(AT_ONCE)
    ).all()
    prices = prices_of(session)
    for line, a, b, rule_a, parsing_a, format_a, rule_b, parsing_b, format_b in rows:
        content_a, content_b = _content(a, parsing_a), _content(b, parsing_b)
        line.is_judged = True
        line.failed_a, line.failed_b = (one.outcome is Outcome.FAILED for one in (a, b))
        if experiment.mode is ExperimentMode.SHADOW:  # otherwise these are two requests
            line.agrees = content_a is not None and content_a == content_b
        if rule_a is not None and rule_b is not None:
            line.right_a, line.right_b = _is_right(content_a, rule_a), _is_right(content_b, rule_b)
        if format_a is not None and format_b is not None:
            line.valid_a, line.valid_b = _is_valid(a, content_a, format_a), _is_valid(b, content_b, format_b)
        if a.source == b.source == Source.ENGINE:
            line.tokens_a, line.seconds_a, line.cost_a = a.num_output_tokens, _seconds(a), _cost(a, prices)
            line.tokens_b, line.seconds_b, line.cost_b = b.num_output_tokens, _seconds(b), _cost(b, prices)
    session.flush()
    return len(rows)


def _asked(request: Any) -> tuple[Any, ...]:
    """Return the reference answer of a request, how its output is parsed, and the kind of its format."""
    params = func.coalesce(request.params, BatchRow.params)
    return request.expected, params["parsing"], params["format"]["kind"].as_string()


def report(session: Session, experiment: ExperimentRow) -> Report:
    """Compare the models by the requests that are judged so far."""
    line = ExperimentLineRow
    flags = (getattr(line, f"{name}_{side}") for name in ("right", "failed", "valid") for side in "ab")
    alike = (line.agrees, *flags)
    longer = line.tokens_b - line.tokens_a
    summed: dict[str, ColumnElement[Any]] = {
        "computed": func.count(line.tokens_a),
        "longer": func.sum(longer),
        "squares": func.sum(longer * longer),
        **{
            f"{name}_{side}": func.sum(getattr(line, f"{name}_{side}"))
            for name in ("tokens", "seconds", "cost")
            for side in "ab"
        },
    }
    groups = session.execute(
        select(*alike, func.count().label("lines"), *(one.label(name) for name, one in summed.items()))
        .where(line.experiment_id == experiment.id, line.is_judged)
        .group_by(*alike)
    ).all()
    tally = Tally(differences=Counter())
    for group in groups:
        is_scored = group.right_a is not None and group.right_b is not None
        scores = (float(group.right_a), float(group.right_b)) if is_scored else (None, None)
        tally.add(Pair(bool(group.agrees), *scores), times=group.lines)
    sums = {name: sum(getattr(group, name) or 0 for group in groups) for name in summed}
    return Report(
        comparison=compare(tally, allowed_loss=experiment.allowed_loss, resolution=experiment.resolution),
        work_a=Work(int(sums["tokens_a"]), float(sums["seconds_a"]), int(sums["cost_a"])),
        work_b=Work(int(sums["tokens_b"]), float(sums["seconds_b"]), int(sums["cost_b"])),
        failed=_shares(groups, "failed"),
        valid=_shares(groups, "valid"),
        length=_lengths(sums),
    )


def _shares(groups: Sequence[Any], name: str) -> Means:
    """Return the shares of requests for which something is true, over pairs where it is known of both."""
    counts: Counter[tuple[bool, bool]] = Counter()
    for group in groups:
        a, b = getattr(group, f"{name}_a"), getattr(group, f"{name}_b")
        if a is not None and b is not None:
            counts[a, b] += group.lines
    if not (total := counts.total()):
        return Means(None, None, None)
    differences: Counter[float] = Counter()
    for (a, b), count in counts.items():
        differences[float(b) - float(a)] += count
    share_a, share_b = (sum(n for pair, n in counts.items() if pair[side]) / total for side in (0, 1))
    return Means(share_a, share_b, interval(differences))


def _lengths(sums: Mapping[str, Any]) -> Means:
    """Return the mean output lengths, with the interval of a normal distribution of their difference."""
    number = int(sums["computed"])
    if not number:
        return Means(None, None, None)
    mean_a, mean_b = float(sums["tokens_a"]) / number, float(sums["tokens_b"]) / number
    if number == 1:
        return Means(mean_a, mean_b, None)
    mean = float(sums["longer"]) / number
    variance = max(0.0, float(sums["squares"]) - number * mean * mean) / (number - 1)
    wide = NormalDist().inv_cdf(1 - ALPHA / 2) * sqrt(variance / number)
    return Means(mean_a, mean_b, (mean - wide, mean + wide))


def _content(result: ResultRow, parsing: Any) -> str | None:
    """Return what an output answers, without the reasoning before it; None if the request failed."""
    if result.outcome is not Outcome.COMPLETED or result.output is None:
        return None
    reader = None if parsing is None else Parsing.from_json(parsing)
    return parse(result.output, reader, seed="").content


def _is_right(content: str | None, expected: str) -> bool:
    return content is not None and Expected.from_json(json.loads(expected)).is_met(content)


def _is_valid(result: ResultRow, content: str | None, kind: str) -> bool:
    """Return whether an output is whole; the engine holds it to its format, so then it is in that."""
    if content is None or result.finish_reason == FinishReason.LENGTH:
        return False
    if kind in OF_JSON:  # a stop string may have cut it
        try:
            json.loads(content)
        except ValueError:
            return False
    return True


def _seconds(result: ResultRow) -> float:
    return result.prefill_seconds + result.decode_seconds + result.padding_seconds


def _cost(result: ResultRow, prices: Prices) -> int:
    return prices.cost(
        device_seconds=_seconds(result),
        input_tokens=result.num_prompt_tokens,
        output_tokens=result.num_output_tokens,
    )
