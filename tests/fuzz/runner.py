"""Runs inputs in processes that are watched: what raises, dies, hangs or keeps memory is a finding."""

import gc
import multiprocessing
import os
import resource
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tests.fuzz import surfaces

HANG_SECONDS = 5.0  # of its own processor time: the machine may be busy
SILENT_SECONDS = 120.0  # of looking on: then it waits for something
LOOK_SECONDS = 0.5
MAX_GROWTH_BYTES = 300 << 20  # of a process over one surface, its caches included
WARM_UP = 0.05  # of a surface's inputs: what is loaded and cached once is no leak


@dataclass(frozen=True, slots=True)
class Finding:
    """What should not have happened, and the input that did it."""

    surface: str
    seed: str
    kind: str
    message: str


@dataclass(slots=True)
class Report:
    """What came of the inputs, by surface."""

    findings: list[Finding] = field(default_factory=list)
    inputs: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    slowest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    growth: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Some inputs of one surface."""

    surface: str
    seed: str
    first: int
    count: int

    def after(self, number: int) -> "Part":
        """Return what is left after input `number`."""
        return Part(self.surface, self.seed, number + 1, self.first + self.count - number - 1)


@dataclass(slots=True)
class Job:
    """One process and what it works on."""

    process: Any
    reports: Connection
    current: Any  # shared: the number of the input it is at, and its processor time when that began
    parts: list[Part]
    silent_looks: int = 0
    seen: int = -1


def fuzz(names: Sequence[str], num_inputs: int, *, seed: str, jobs: int) -> Report:
    """Run so many inputs, shared out over the surfaces, in `jobs` processes."""
    report = Report()
    total = sum(surfaces.SHARES[surfaces.BY_NAME[name]] for name in names)
    counts = {name: num_inputs * surfaces.SHARES[surfaces.BY_NAME[name]] // total for name in names}
    counts[names[0]] += num_inputs - sum(counts.values())
    running = []
    for job in range(jobs):
        parts = [Part(name, f"{seed}.{job}", 0, (count + job) // jobs) for name, count in counts.items()]
        running.append(_start([part for part in parts if part.count]))
    while running:
        time.sleep(LOOK_SECONDS)
        running = [next_ for job in running if (next_ := _look(job, report)) is not None]
    return report


def _start(parts: list[Part]) -> Job:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    current = context.Array("d", [-1.0, 0.0], lock=False)
    process = context.Process(target=_work_quietly, args=(parts, theirs, current))
    process.start()
    theirs.close()
    return Job(process, ours, current, parts)


def _look(job: Job, report: Report) -> Job | None:
    """Take in what a process has reported; end it if it hangs, and go on after the input that ended it."""
    for message in _messages(job.reports):
        if isinstance(message, Finding):
            report.findings.append(message)
        else:
            _add(report, message)
            job.parts.pop(0)
    if not job.parts:
        job.process.join()
        return None
    number, began = int(job.current[0]), job.current[1]
    job.silent_looks = 0 if number != job.seen else job.silent_looks + 1
    job.seen = number
    kind = ""
    if not job.process.is_alive():
        kind = f"the process died, status {job.process.exitcode}"
    elif number >= 0 and _processor_seconds(job.process.pid) - began > 2 * HANG_SECONDS:
        kind = "hangs"
    elif job.silent_looks * LOOK_SECONDS > SILENT_SECONDS:
        kind = "waits for ever"
    if not kind:
        return job
    job.process.kill()
    job.process.join()
    part = job.parts[0]
    report.findings.append(Finding(part.surface, f"{part.seed}/{number}", f"{part.surface}: {kind}", kind))
    report.inputs[part.surface] += max(0, number + 1 - part.first)
    rest = part.after(max(number, part.first))
    return _start([one for one in (rest, *job.parts[1:]) if one.count > 0])


def _processor_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _messages(reports: Connection) -> Iterator[Any]:
    try:
        while reports.poll():
            yield reports.recv()
    except EOFError:
        return


def _add(report: Report, done: dict[str, Any]) -> None:
    name = done["surface"]
    report.inputs[name] += done["inputs"]
    report.accepted[name] += done["accepted"]
    report.seconds[name] += done["seconds"]
    report.slowest[name] = max(report.slowest[name], done["slowest"])
    report.growth[name] += done["growth"]
    report.peak_bytes = max(report.peak_bytes, done["peak"])


def _work_quietly(parts: list[Part], reports: Connection, current: Any) -> None:
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - libraries print what they think of such inputs
        os.dup2(nowhere.fileno(), 2)
    work(parts, reports, current)


def work(parts: list[Part], reports: Connection, current: Any) -> None:
    """Run inputs one after the other and report what came of them, a part at a time."""
    process = psutil.Process()
    for part in parts:
        current[1] = _processor_seconds(process.pid)
        current[0] = part.first
        surfaces.run(part.surface, "warm up")
        accepted, slowest, began, warm = 0, 0.0, time.process_time(), 0
        for number in range(part.first, part.first + part.count):
            if number == part.first + int(part.count * WARM_UP):
                warm = process.memory_info().rss
            started = time.process_time()
            current[1] = started
            current[0] = number
            seed = f"{part.seed}/{number}"
            try:
                accepted += surfaces.run(part.surface, seed)
            except Exception as error:  # noqa: BLE001 - this is what we are looking for
                reports.send(_finding(part.surface, seed, error))
            took = time.process_time() - started
            slowest = max(slowest, took)
            if took > HANG_SECONDS:
                reports.send(Finding(part.surface, seed, f"{part.surface}: slow", f"{took:.1f} s"))
        gc.collect()
        growth = process.memory_info().rss - warm
        if growth > MAX_GROWTH_BYTES:
            reports.send(Finding(part.surface, part.seed, f"{part.surface}: keeps memory", f"{growth} bytes"))
        reports.send(
            {
                "surface": part.surface,
                "inputs": part.count,
                "accepted": accepted,
                "seconds": time.process_time() - began,
                "slowest": slowest,
                "growth": growth,
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )


def _finding(surface: str, seed: str, error: Exception) -> Finding:
    at = traceback.extract_tb(error.__traceback__)[-1]
    kind = f"{surface}: {type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}"  # noqa: PTH119
    return Finding(surface, seed, kind, repr(error)[:1000])
