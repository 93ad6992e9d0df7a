"""What must hold of the database, the receiver's record and the workers' own facts once all is quiet."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.harness.interactive import Answer
from tests.faults.harness.load import Sent
from tests.faults.harness.receiver import Record
from tests.faults.harness.services import Postgres

TERMINAL = {"completed", "cancelled", "failed", "expired"}


@dataclass(slots=True)
class Findings:
    """What was found wrong; nothing, if all is well."""

    num_requests: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)  # what else came to pass, to judge the run by


Outputs = dict[tuple[str, int], str]  # of a prompt and its max_tokens, greedily


def check(
    postgres: Postgres, sent: Sequence[Sent], answers: Sequence[Answer], receiver: Record, facts: Path
) -> Findings:
    """Check every invariant over all that was ever sent."""
    findings = Findings(num_requests=sum(len(one.prompts) for one in sent))
    outputs: Outputs = {}
    _check_batches(postgres, sent, findings)
    _check_results(postgres, sent, outputs, findings)
    _check_interactive(postgres, answers, outputs, findings)
    _check_events(postgres, sent, receiver, findings)
    _check_leases(postgres, findings)
    _check_claims(postgres, facts, findings)
    findings.broken += [what for (what,) in postgres.query("SELECT what FROM audit_breaches ORDER BY id")]
    return findings


def _check_batches(postgres: Postgres, sent: Sequence[Sent], findings: Findings) -> None:
    rows = postgres.query(
        "SELECT id, status, num_requests, num_completed, num_failed, num_cancelled FROM batches"
        " WHERE lane = 'batch'"
    )
    stored = {row[0]: row[1:] for row in rows}
    accepted = [one.batch_id for one in sent]
    findings.lost += [f"batch {batch_id} was accepted" for batch_id in {*accepted} - {*stored}]
    findings.duplicated += [f"batch {batch_id} was never accepted" for batch_id in {*stored} - {*accepted}]
    findings.duplicated += [f"batch {one} for two keys" for one, n in Counter(accepted).items() if n > 1]
    for one in sent:
        if one.batch_id not in stored:
            continue
        status, total, completed, failed, cancelled = stored[one.batch_id]
        if status not in TERMINAL:
            findings.lost.append(f"batch {one.batch_id} is still {status}")
        if total != len(one.prompts) or completed + failed + cancelled != total:
            findings.broken.append(
                f"counts of {one.batch_id}: {completed} + {failed} + {cancelled} of {total}, "
                f"{len(one.prompts)} sent"
            )
        if failed or (cancelled and one.fate not in {"cancel", "cancel_some"}):
            findings.broken.append(
                f"{failed} failed and {cancelled} cancelled in {one.batch_id}, meant to {one.fate}"
            )


def _check_results(postgres: Postgres, sent: Sequence[Sent], outputs: Outputs, findings: Findings) -> None:
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for batch_id, *row in postgres.query(
        "SELECT requests.batch_id, position, prompt, sequence, outcome, output, num_output_tokens,"
        " results.request_id IS NOT NULL, results.batch_id = requests.batch_id"
        " FROM requests LEFT JOIN results ON results.request_id = requests.id ORDER BY position"
    ):
        found[batch_id].append(tuple(row))
    for one in sent:
        rows = found[one.batch_id]
        if [row[1] for row in rows] != list(one.prompts):
            findings.lost.append(f"the requests of {one.batch_id} are not those that were sent")
        findings.lost += [f"request {row[0]} of {one.batch_id} has no result" for row in rows if not row[6]]
        if sorted(row[2] for row in rows if row[6]) != list(range(1, len(one.prompts) + 1)):
            findings.broken.append(f"sequence numbers of {one.batch_id}")
        if any(row[7] is False for row in rows):
            findings.broken.append(f"a result of {one.batch_id} is another batch's")
        for _, prompt, _, outcome, output, num_tokens, _, _ in rows:
            if outcome == "completed" and num_tokens != one.max_tokens:
                findings.broken.append(f"{num_tokens} tokens in {one.batch_id}, not {one.max_tokens}")
            # Greedy: whatever was resumed or run anew, the same prompt has the same output.
            elif outcome == "completed" and outputs.setdefault((prompt, one.max_tokens), output) != output:
                findings.broken.append(f"another output for {prompt!r} in {one.batch_id}")
    orphans = postgres.query(
        "SELECT count(*) FROM results WHERE NOT EXISTS (SELECT FROM requests WHERE id = request_id)"
    )
    if orphans != [(0,)]:
        findings.broken.append(f"{orphans[0][0]} results of no request")


def _check_interactive(
    postgres: Postgres, answers: Sequence[Answer], outputs: Outputs, findings: Findings
) -> None:
    """Whoever was answered was told the one result, and nobody's work is left."""
    rows = postgres.query(
        "SELECT batches.id, status, num_requests, num_completed + num_failed + num_cancelled, num_failed,"
        " (SELECT count(*) FROM results WHERE batch_id = batches.id),"
        " (SELECT output FROM results WHERE batch_id = batches.id AND outcome = 'completed' LIMIT 1)"
        " FROM batches WHERE lane = 'interactive'"
    )
    findings.num_requests += len(rows)
    stored = {batch_id: (status, output) for batch_id, status, *_, output in rows}
    for batch_id, status, num_requests, num_settled, num_failed, num_results, _ in rows:
        if status not in TERMINAL or num_settled != num_requests or num_results < num_requests:
            findings.lost.append(f"interactive {batch_id} is {status}, {num_settled} of {num_requests}")
        if num_results > num_requests:
            findings.duplicated.append(f"interactive {batch_id} has {num_results} results")
        if num_failed:
            findings.broken.append(f"interactive {batch_id} failed")
    for one in answers:
        if stored.get(one.batch_id) != ("completed", one.text):
            findings.broken.append(
                f"{one.batch_id} was answered with another text than {stored.get(one.batch_id)}"
            )
        if outputs.setdefault((one.prompt, one.max_tokens), one.text) != one.text:
            findings.broken.append(f"another output for {one.prompt!r} in {one.batch_id}")
    findings.counts["interactive batches"] = dict(Counter(status for status, _ in stored.values()))


def _check_events(postgres: Postgres, sent: Sequence[Sent], receiver: Record, findings: Findings) -> None:
    events: dict[str, list[str]] = defaultdict(list)
    for batch_id, event_id in postgres.query("SELECT batch_id, id FROM webhook_events"):
        events[batch_id].append(event_id)
    statuses = dict(postgres.query("SELECT id, status FROM batches"))
    for one in sent:
        heard = set(receiver.accepted.get(one.batch_id, ()))
        written = set(events[one.batch_id])
        if len(written) > 1 or len(heard) > 1:
            findings.duplicated.append(f"events of {one.batch_id}: {len(written)}, heard {len(heard)}")
        if not written or not heard:
            findings.lost.append(f"the event of {one.batch_id}: {len(written)}, heard {len(heard)}")
        if heard - written:
            findings.broken.append(f"an event of {one.batch_id} was heard and never written")
        for event_id in heard:
            if receiver.bodies[event_id]["type"] != f"batch.{statuses.get(one.batch_id)}":
                findings.broken.append(f"{event_id} says {receiver.bodies[event_id]['type']}")
    findings.broken += [f"forged: {what}" for what in receiver.forged]
    findings.broken += [f"{event_id} has changed on its way" for event_id in receiver.changed]
    if receiver.followed:
        findings.broken.append(f"{receiver.followed} redirects were followed")


def _check_leases(postgres: Postgres, findings: Findings) -> None:
    held = {
        "shards": "SELECT count(*) FROM shards WHERE state IN ('running', 'ready')"
        " OR worker IS NOT NULL OR lease_expires_at IS NOT NULL",
        "deliveries": "SELECT count(*) FROM deliveries"
        " WHERE state <> 'delivered' OR lease_expires_at IS NOT NULL",
        "partial outputs": "SELECT count(*) FROM partial_outputs"
        " WHERE request_id IN (SELECT request_id FROM results)",
    }
    for what, statement in held.items():
        (count,) = postgres.query(statement)[0]
        if count:
            findings.broken.append(f"{count} {what} are held, or left over, when all is quiet")


def _check_claims(postgres: Postgres, facts: Path, findings: Findings) -> None:
    """Nothing that has a result is given out again, and no Block is leaked."""
    saved_at = dict(postgres.query("SELECT request_id, extract(epoch FROM created_at)::float8 FROM results"))
    causes = postgres.query("SELECT cause, count(*) FROM request_attempts GROUP BY cause")
    findings.counts["attempts"] = dict(causes)
    findings.counts["resumed"] = 0
    for fact in read_facts(facts):
        if "broken" in fact:
            findings.broken.append(fact["broken"])
            continue
        findings.counts["resumed"] += fact.get("resumed", 0)
        again = [one for one in fact["requests"] if saved_at.get(one, fact["at"]) < fact["at"]]
        findings.duplicated += [f"request {one} was claimed after its result was saved" for one in again]


def read_facts(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield what the gpu workers wrote down; the last line of one that was killed may be cut off."""
    for file in directory.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
