"""Judges requests that have a result from both models, each once, and compares the models by them."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from worker.parsing.parser import parse
from worker.quality.comparison import Comparison, Pair, Tally, compare
from worker.quality.expected import Expected
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentLineRow, ExperimentRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.parsing import Parsing

AT_ONCE = 500
JUDGED = (Outcome.COMPLETED, Outcome.FAILED)  # a cancelled request shows nothing

_A, _B = aliased(ResultRow, name="a"), aliased(ResultRow, name="b")
_OF_A, _OF_B = aliased(RequestRow, name="of_a"), aliased(RequestRow, name="of_b")


@dataclass(frozen=True, slots=True)
class Speed:
    """Output tokens and device seconds of each model, over the judged requests that both computed."""

    tokens_a: int
    tokens_b: int
    seconds_a: float
    seconds_b: float


def judge(session: Session, experiment: ExperimentRow, batch: BatchRow) -> int:
    """Judge at most `AT_ONCE` requests of a locked experiment; return how many."""
    parsing_a, parsing_b = (func.coalesce(one.params, BatchRow.params)["parsing"] for one in (_OF_A, _OF_B))
    other_id = experiment.shadow_id or batch.id
    rows = session.execute(
        select(ExperimentLineRow, _A, _B, _OF_A.expected, _OF_B.expected, parsing_a, parsing_b)
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
            ExperimentLineRow.agrees.is_(None),
            _A.outcome.in_(JUDGED),
            _B.outcome.in_(JUDGED),
        )
        .limit(AT_ONCE)
    ).all()
    for line, a, b, *rules in rows:
        content_a, content_b = _content(a, rules[2]), _content(b, rules[3])
        line.agrees = content_a is not None and content_a == content_b
        if rules[0] is not None and rules[1] is not None:
            line.right_a, line.right_b = _is_right(content_a, rules[0]), _is_right(content_b, rules[1])
        if a.source == b.source == Source.ENGINE:
            line.tokens_a, line.seconds_a = a.num_output_tokens, _seconds(a)
            line.tokens_b, line.seconds_b = b.num_output_tokens, _seconds(b)
    session.flush()
    return len(rows)


def compare_lines(session: Session, experiment: ExperimentRow) -> Comparison:
    """Compare the models by the requests that are judged so far."""
    its = (ExperimentLineRow.agrees, ExperimentLineRow.right_a, ExperimentLineRow.right_b)
    rows = session.execute(
        select(*its, func.count())
        .where(ExperimentLineRow.experiment_id == experiment.id, ExperimentLineRow.agrees.is_not(None))
        .group_by(*its)
    )
    tally = Tally(differences=Counter())
    for agrees, right_a, right_b, count in rows:
        is_scored = right_a is not None and right_b is not None
        scores = (float(right_a or 0), float(right_b or 0)) if is_scored else (None, None)
        tally.add(Pair(bool(agrees), *scores), times=count)
    return compare(tally, allowed_loss=experiment.allowed_loss, resolution=experiment.resolution)


def speed_of(session: Session, experiment_id: str) -> Speed:
    """Return the sums of tokens and device seconds over an experiment."""
    names = ("tokens_a", "tokens_b", "seconds_a", "seconds_b")
    sums: list[Any] = [func.coalesce(func.sum(getattr(ExperimentLineRow, name)), 0) for name in names]
    found = session.execute(select(*sums).where(ExperimentLineRow.experiment_id == experiment_id)).one()
    return Speed(int(found[0]), int(found[1]), float(found[2]), float(found[3]))


def _content(result: ResultRow, parsing: Any) -> str | None:
    """Return what an output answers, without the reasoning before it; None if the request failed."""
    if result.outcome is not Outcome.COMPLETED or result.output is None:
        return None
    reader = None if parsing is None else Parsing.from_json(parsing)
    return parse(result.output, reader, seed="").content


def _is_right(content: str | None, expected: str) -> bool:
    return content is not None and Expected.from_json(json.loads(expected)).is_met(content)


def _seconds(result: ResultRow) -> float:
    return result.prefill_seconds + result.decode_seconds + result.padding_seconds
