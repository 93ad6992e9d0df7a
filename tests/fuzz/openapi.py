"""`python -m tests.fuzz.openapi --schemathesis PATH --cases 20000`: schemathesis at a running deployment.

It goes by the document that the API serves: an answer that is not in it, a 5xx, wrong data that is accepted,
a route without keys are failures. The last line is JSON. `--routes '^/v1/(files|uploads)'` takes part of it,
and `--seconds` ends it early.
"""

import argparse
import base64
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.fuzz.requests import Ids, prepare
from tests.fuzz.target import Target, aftermath, target
from worker.up import ROOT

CHECKS_OFF = (
    # What is well-formed may still be refused: a prompt must fit the context, a model be the one that is
    # served, a file exist, a grammar compile, a text have no NUL. Other tests hold them.
    "positive_data_acceptance",
)
# HTTP lets a client send any header.
ANY_HEADER = "in header - object with unexpected properties"
# What schemathesis takes for wrong and is not, by the end of the path: a form whose wrong part is empty, so
# that it is not sent, and no body or null where a body may be left out, which the document allows.
UNCHANGED = "Invalid component: positive test case"
NULL_BODY = "Invalid component: in body - value null value"
FORMS, NEED_NO_BODY = ("/files", "/parts"), ("/rotate", "/replay")
NO_BODIES = (None, {"$base64": ""}, {"$base64": base64.b64encode(b"null").decode()})  # as its report has them
# A case that fails only once is among the failures already; what it changed made it pass the second time.
FAILED_ONCE = "FlakyFailure"
# Python 3.11 says so now and then when several of schemathesis's threads compile at once. It is none of ours.
CPYTHONS_OWN = "AST constructor recursion depth mismatch"
# What the routes call the ids that `prepare` makes; hooks.py keeps the two kinds of batches apart.
PARAMETERS = {
    "batch": "batch_id",
    "file": "file_id",
    "upload": "upload_id",
    "endpoint": "endpoint_id",
    "event": "event_id",
    "response": "response_id",
    "messages": "message_batch_id",
    "experiment": "experiment_id",
}
# What it says of routes of which none leads to another.
NO_LINKS = "No links for stateful testing"
# Long: the machine may be busy. Whatever waits in the product waits for less (tests.fuzz.target).
REQUEST_SECONDS = 120
LEAST_EXAMPLES = 20


@dataclass(slots=True)
class Outcome:
    """What schemathesis did and found."""

    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    excused: int = 0  # what schemathesis alone takes for failures
    exits: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Schemathesis:
    """The program, what it goes through, and the folder of its reports."""

    program: Path
    routes: str  # a regular expression, searched for in the paths
    workers: int
    into: Path
    ids: Ids  # of what there is
    until: float  # of the monotonic clock

    @property
    def seconds_left(self) -> float | None:
        """How long it may still run; None: for ever."""
        return None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())


def run(shot: Target, tool: Schemathesis, phases: str, *, examples: int, seed: int) -> Outcome:
    """Run some phases over the operations and read the report."""
    report = tool.into / f"{phases.replace(',', '-')}-{seed}.ndjson"
    command = [
        str(tool.program),
        "run",
        f"{shot.url}/openapi.json",
        "--include-path-regex",
        tool.routes,
        "--header",
        f"Authorization: Bearer {shot.key}",
        "--phases",
        phases,
        "--max-examples",
        str(examples),
        "--workers",
        str(tool.workers),
        "--seed",
        str(seed),
        "--request-timeout",
        str(REQUEST_SECONDS),
        "--exclude-checks",
        ",".join(CHECKS_OFF),
        "--suppress-health-check",
        "all",
        "--continue-on-failure",
        "--generation-database",
        "none",
        "--no-shrink",
        "--no-color",
        "--warnings",
        "off",
        "--report",
        "ndjson",
        "--report-ndjson-path",
        str(report),
    ]
    log, status = tool.into / f"{report.stem}.log", 0  # where the time is over, what it has done counts
    with log.open("w") as output, suppress(subprocess.TimeoutExpired):
        status = subprocess.run(
            command,
            check=False,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tool.into,
            env=_environment(shot, tool.ids),
            timeout=tool.seconds_left,
        ).returncode
    outcome = read(report) if report.exists() else Outcome()
    outcome.exits.append(status)
    if status not in {0, 1}:
        outcome.failures.append(f"schemathesis ended with {status}: {log.read_text()[-2000:]}")
    elif status == 1 and not (outcome.failures or outcome.excused or NO_LINKS in (said := log.read_text())):
        outcome.failures.append(said[-6000:])
    return outcome


def read(report: Path) -> Outcome:
    """Return what a report says."""
    outcome = Outcome()
    with report.open() as lines:
        for line in lines:
            if not line.endswith("\n"):  # it was cut off
                break
            ((kind, event),) = json.loads(line).items()
            if kind == "ScenarioFinished":
                _read_scenario(event["recorder"], outcome)
            elif kind in {"NonFatalError", "FatalError"}:
                if CPYTHONS_OWN in line or FAILED_ONCE in line:
                    outcome.excused += 1
                else:
                    outcome.failures.append(f"{kind}: {line[:1000]}")
    return outcome


def _read_scenario(scenario: dict[str, Any], outcome: Outcome) -> None:
    label = scenario["label"]
    for case, interaction in scenario.get("interactions", {}).items():
        response = interaction.get("response")
        outcome.cases += 1
        outcome.operations[label] += 1
        outcome.statuses["none" if response is None else str(response["status_code"])] += 1
        for check in scenario.get("checks", {}).get(case, []):
            failure = (check.get("failure_info") or {}).get("failure") or {}
            if check["status"] == "success":
                continue
            if _is_excused(failure.get("message") or "", interaction["request"]):
                outcome.excused += 1
            else:
                outcome.failures.append(
                    f"{label}: {check['name']}: {failure.get('title')}: {failure.get('message')}"
                    f" <- {json.dumps(interaction.get('request'))[:1500]}"
                )


def _is_excused(message: str, request: dict[str, Any]) -> bool:
    path = urlsplit(request["uri"]).path
    excuses = [ANY_HEADER]
    if path.endswith(FORMS):
        excuses.append(UNCHANGED)
    if path.endswith(NEED_NO_BODY) and request.get("body") in NO_BODIES:
        excuses += [UNCHANGED, NULL_BODY]
    return any(words in message for words in excuses)


def _environment(shot: Target, ids: Ids) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON"))}
    known = {PARAMETERS[kind]: made for kind, made in ids.items()}
    known |= {"previous_response_id": ids["response"], "input_file_id": ids["file"]}
    hooks = {"PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks"}
    return kept | hooks | {"FUZZ_IDS": json.dumps(known), "FUZZ_MODEL": "model", "FUZZ_KEY": shot.key}


def enough(shot: Target, tool: Schemathesis, cases: int, *, seed: int) -> Outcome:
    """Go through examples and borders once, then make cases up until there are enough, and follow links."""
    whole = Outcome()

    def add(phases: str, examples: int, seed: int) -> int:
        part = run(shot, tool, phases, examples=examples, seed=seed)
        print(f"{phases}: {part.cases} cases, {len(part.failures)} failures", flush=True)
        whole.cases += part.cases
        whole.statuses += part.statuses
        whole.operations += part.operations
        whole.failures += part.failures
        whole.exits += part.exits
        return part.cases

    add("examples,coverage", LEAST_EXAMPLES, seed)
    add("stateful", LEAST_EXAMPLES, seed)
    while whole.cases < cases and time.monotonic() < tool.until:
        seed += 1
        missing = cases - whole.cases
        if not add("fuzzing", max(LEAST_EXAMPLES, missing // max(1, len(whole.operations))), seed):
            if time.monotonic() < tool.until:
                whole.failures.append("schemathesis makes no more cases")
            break
    return whole


def main() -> int:
    """Run a deployment and let schemathesis at it; the status is 1 if there is a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.openapi", description=__doc__)
    parser.add_argument("--schemathesis", type=Path, required=True, help="its command")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--routes", default="^/", help="a regular expression of paths; default: all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after these, with fewer cases")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder for logs and data, which then stay")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-fuzz-", ignore_cleanup_errors=True) as temporary:
        directory = (arguments.keep or Path(temporary)).resolve()
        directory.mkdir(exist_ok=True, parents=True)
        directory.chmod(0o755)  # Postgres may run as another user
        command = Path(os.path.abspath(arguments.schemathesis))  # noqa: PTH100 - a link in an environment stays one
        with target(directory) as shot:
            until = started + arguments.seconds
            ids = prepare(shot)
            of_experiments = [one.replace("experiment_", "batch_") for one in ids["experiment"]]
            for batch_id in (*ids["batch"], *of_experiments):
                shot.running.wait_for(batch_id)  # a paused one would keep its followers waiting
            tool = Schemathesis(command, arguments.routes, arguments.workers, directory, ids, until)
            outcome = enough(shot, tool, arguments.cases, seed=arguments.seed)
            findings = outcome.failures + aftermath(shot)
    for finding, number in Counter(findings).most_common(50):
        print(number, finding)
    print(
        json.dumps(
            {
                "cases": outcome.cases,
                "operations": len(outcome.operations),
                "statuses": dict(sorted(outcome.statuses.items())),
                "failures": len(findings),
                "checks_off": CHECKS_OFF,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    is_short = outcome.cases < arguments.cases and time.monotonic() < started + arguments.seconds
    return 1 if findings or is_short else 0


if __name__ == "__main__":
    sys.exit(main())
