"""Prepares tuning: reads the workload for a model, and opens the study in Postgres. Loads no engine."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from api.cli.show import fail
from api.cli.workload import WorkloadError, read_workload, sample_workload
from api.inputs.checkpoint import Checkpoint, ModelDirectoryError
from worker.contract.access import TENANT_NAME
from worker.contract.models import identify
from worker.cores import usable_cores
from worker.settings import DEMO_MODEL, NO_SERVICES, Settings, direct_url, read_settings
from worker.tuning.measuring import MeasuredSetting, Measurer
from worker.tuning.records import Objective
from worker.tuning.requests import write_requests
from worker.tuning.space import (
    ADMISSION,
    BLOCK_SIZE,
    DTYPE,
    KV_CACHE_DTYPE,
    PREFIX_CACHE,
    SEQUENCES,
    SPECULATION,
    THREADS,
    TOKENS,
    VALUES,
    Dimension,
    Setting,
    exact,
    search_space,
)
from worker.tuning.trial_process import MODEL, TrialFailedError, Trials
from worker.values.kv_formats import default_kv_format

if TYPE_CHECKING:
    from worker.tuning.study import Search

DEMO_WORKLOAD = DEMO_MODEL / "workload.jsonl"
OF_TENANT = re.compile(rf"tenant:(?P<tenant>{TENANT_NAME})(:(?P<most>[1-9][0-9]{{0,5}}))?")
SAMPLE = 200  # requests, of a tenant's
TRIAL_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Tuning:
    """A workload that is ready to be measured with a model on this machine."""

    config: Settings
    measurer: Measurer
    study_name: str
    models: tuple[Path, ...]  # that were given: the exact one, then others to search among

    @property
    def current(self) -> dict[str, str]:
        """The settings of this process, as far as they are searched."""
        config = self.config
        return {
            DTYPE: config.dtype,
            KV_CACHE_DTYPE: config.kv_cache_dtype or default_kv_format(config.device, config.dtype),
            SEQUENCES: str(config.max_num_sequences or ""),
            TOKENS: str(config.max_tokens_per_step or ""),
            BLOCK_SIZE: str(config.block_size),
            PREFIX_CACHE: config.prefix_cache,
            ADMISSION: config.admission,
            SPECULATION: config.speculation,
            THREADS: str(config.threads or ""),
        }

    def variables(self, setting: Setting) -> dict[str, str]:
        """Return a setting as variables of an environment file."""
        model = {MODEL: str(self.config.model)} if self.models else {}
        return {**model, **setting}


@contextmanager
def prepared(
    workload: str | None = None, models: Sequence[Path] = (), concurrency: int | None = None
) -> Iterator[Tuning]:
    """Yield a workload that is ready to be measured; by default the demo's, the served model, all at once.

    `tenant:NAME` is a sample of what that tenant has stored; `tenant:NAME:500` has so many requests at most.
    Ends the process if a file cannot be used, or if the tenant has not allowed it.
    """
    given = workload or str(DEMO_WORKLOAD)
    sampled = OF_TENANT.fullmatch(given)
    config = read_settings(**NO_SERVICES, **({"model": models[0]} if models else {}))
    config = config.model_copy(update={"model": config.model.resolve()})
    try:
        checkpoint = Checkpoint.load(config.model, aliases=config.model_aliases)
        prints = [identify(one).fingerprint for one in models or [config.model]]
        if sampled is None:
            most_bytes = config.max_prompt_bytes
            requests, expected = read_workload(Path(given), checkpoint, max_prompt_bytes=most_bytes)
        else:
            most = int(sampled["most"] or SAMPLE)
            requests, expected = sample_workload(direct_url(), sampled["tenant"], checkpoint, most=most)
    except (ModelDirectoryError, WorkloadError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"Cannot read {error.filename or given}: {error.strerror}")
    at_once = min(concurrency or len(requests), len(requests))
    with TemporaryDirectory() as folder:
        lines = Path(folder, "requests.jsonl")
        write_requests(lines, requests)
        answers = "".join(f"{number} {one}\n" for number, one in sorted(expected.items()))
        digest = hashlib.sha256(lines.read_bytes() + answers.encode() + "".join(prints).encode())
        name = (
            f"{digest.hexdigest()[:32]} {config.device}, {usable_cores()} cores, {at_once} at once, {VALUES}"
        )
        trials = Trials(config.model, lines, at_once, TRIAL_SECONDS)
        measurer = Measurer(trials, exact(config.device), expected)
        yield Tuning(config, measurer, name, tuple(one.resolve() for one in models))


@contextmanager
def open_search(tuning: Tuning, objective: Objective) -> Iterator["Search"]:
    """Yield the study of this workload, model and machine, in the service's Postgres."""
    try:
        from worker.tuning.study import Search, open_storage  # noqa: PLC0415 - of an extra
    except ImportError:
        fail("Tuning needs Optuna: pip install 'headrace[tune]'")
    device = tuning.config.device
    space = search_space(device, num_cores=usable_cores())
    if len(tuning.models) > 1:
        space = (*space, Dimension(MODEL, tuple(map(str, tuning.models))))
    defaults = {one.variable: one.values[0] for one in space}
    defaults |= {SEQUENCES: "64", TOKENS: "512", THREADS: str(usable_cores())}
    current = defaults | {name: value for name, value in tuning.current.items() if value}
    eight_bits = {DTYPE: "int8", KV_CACHE_DTYPE: default_kv_format(device, "int8")}
    first = [current, defaults, defaults | eight_bits]
    with open_storage(direct_url()) as storage:
        yield Search(storage, tuning.study_name, space, objective, first=first)


def has_database() -> bool:
    """Return whether a Postgres is given, or one of a running deployment."""
    try:
        direct_url()
    except SystemExit:
        return False
    return True


def measured(measure: Callable[[], MeasuredSetting]) -> MeasuredSetting:
    """Return a measurement that everything else depends on; end the process if it cannot be made."""
    try:
        return measure()
    except TrialFailedError as error:
        fail(f"The engine does not run this workload: {error}")
