"""Search the settings of the engine with Optuna, in a study that Postgres keeps. Knows no engine.

The study resumes where it ended, and several machines may work on it at once. It has three objectives, so no
pruner of Optuna applies: `Search` prunes by the median rule itself, on tokens a second after each quarter.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median

import optuna
import psycopg
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import make_url

from worker.tuning.measuring import Measurer
from worker.tuning.records import Objective, TrialFigures, TrialRecord, pareto_front, speed
from worker.tuning.space import Dimension, Setting, allowed
from worker.tuning.trial_process import TrialFailedError, TrialPrunedError

SCHEMA = "tuning"
# Of tokens a second, p95 latency, and quality loss.
DIRECTIONS = (StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE, StudyDirection.MINIMIZE)
NUM_UNPRUNED = 4  # first trials, which always run to their end
MOST_ASKED = 4  # times as many suggestions as trials: some repeat what was measured
# What is kept of a trial beside Optuna's own.
SETTING, RATES, FIGURES, PROBLEM = "setting", "rates", "figures", "problem"
STATES = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@contextmanager
def open_storage(database_url: str) -> Iterator[RDBStorage]:
    """Yield Optuna's storage, in a schema of its own of the service's Postgres."""
    url = make_url(database_url)
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    ours = url.update_query_dict({"options": f"-csearch_path={SCHEMA}"})
    storage = RDBStorage(ours.render_as_string(hide_password=False))
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


class Search:
    """A study: asks for settings, measures them, and tells what came of them."""

    def __init__(
        self,
        storage: RDBStorage | None,
        name: str,
        space: Sequence[Dimension],
        objective: Objective,
        *,
        first: Sequence[Setting] = (),
        seed: int | None = None,  # None: another one in every process
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._objective = objective
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            directions=DIRECTIONS,
            load_if_exists=True,
            sampler=TPESampler(seed=seed),
        )
        for setting in first:
            self._study.enqueue_trial(self._to_params(setting), skip_if_exists=True)

    @property
    def records(self) -> list[TrialRecord]:
        """All trials of the study, also those of other machines, by number; without repeated settings."""
        trials = self._study.get_trials(deepcopy=False)
        return [_record(trial) for trial in trials if SETTING in trial.user_attrs]

    @property
    def num_ended(self) -> int:
        """The number of trials that have ended in any way."""
        return sum(one.state != "running" for one in self.records)

    def run(self, num_trials: int, measurer: Measurer, changed: Callable[[], None] = lambda: None) -> None:
        """Measure settings until `num_trials` have ended in the study; call `changed` at every change."""
        for _ in range(MOST_ASKED * num_trials):
            if self.num_ended >= num_trials:
                return
            trial = self._study.ask()
            setting = self._suggest(trial)
            if any(one.setting == setting for one in self.records):
                self._study.tell(trial, state=TrialState.FAIL)
                continue
            trial.set_user_attr(SETTING, setting)
            changed()
            self._run(trial, setting, measurer)
            changed()

    def front(self) -> list[TrialRecord]:
        """Return the trials that no other one beats in every objective, the fastest first."""
        return pareto_front(self.records)

    def winner(self) -> TrialRecord | None:
        """Return the fastest trial that meets every constraint; None: there is none."""
        good = [one for one in self.records if one.figures and self._objective.is_met(one.figures)]
        return max(good, key=speed, default=None)

    def _run(self, trial: Trial, setting: Setting, measurer: Measurer) -> None:
        rates: dict[str, float] = {}

        def report(part: int, rate: float) -> bool:
            rates[str(part)] = rate
            trial.set_user_attr(RATES, rates)
            return not self._is_slow(part, rate)

        try:
            figures = TrialFigures.of(measurer.measure(setting, report))
        except TrialPrunedError:
            self._study.tell(trial, state=TrialState.PRUNED)
        except TrialFailedError as error:
            trial.set_user_attr(PROBLEM, str(error))
            self._study.tell(trial, state=TrialState.FAIL)
        except BaseException:  # Ctrl-C: the study does not show it as running for ever
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        else:
            trial.set_user_attr(FIGURES, asdict(figures))
            for name, excess in self._objective.excesses(figures).items():
                trial.set_constraint(name, excess)
            self._study.tell(trial, figures.objectives)

    def _is_slow(self, part: int, rate: float) -> bool:
        """Return whether a trial is slower after a quarter than the median of those that ran to their end."""
        done = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        rates = [one.user_attrs[RATES].get(str(part)) for one in done]
        known = [one for one in rates if one is not None]
        return len(known) >= NUM_UNPRUNED and rate < median(known)

    def _suggest(self, trial: Trial) -> dict[str, str]:
        setting = {}
        for one in self._space:
            if one.is_ordered:
                setting[one.variable] = one.values[trial.suggest_int(one.variable, 0, len(one.values) - 1)]
            else:
                setting[one.variable] = trial.suggest_categorical(one.variable, one.values)
        return allowed(setting)

    def _to_params(self, setting: Setting) -> dict[str, str | int]:
        """Return a setting as Optuna's parameters, without values that are not searched."""
        return {
            one.variable: one.values.index(value) if one.is_ordered else value
            for one in self._space
            if (value := setting.get(one.variable)) in one.values
        }


def _record(trial: FrozenTrial) -> TrialRecord:
    figures = trial.user_attrs.get(FIGURES)
    return TrialRecord(
        trial.number,
        trial.user_attrs[SETTING],
        STATES[trial.state],
        None if figures is None else TrialFigures(**figures),
        trial.user_attrs.get(PROBLEM, ""),
    )
