"""The search, over trials that are made up: what is stored, resumed, pruned, and chosen."""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests.fixtures.tuning import MadeUp
from worker.settings import Settings
from worker.tuning.records import Objective, pareto_front
from worker.tuning.report import summary, write_csv, write_environment, write_png
from worker.tuning.space import DTYPE, SEQUENCES, TOKENS, Dimension, allowed, plain, search_space

pytest.importorskip("optuna", reason="the extra `tune` is not installed")
pytest.importorskip("matplotlib", reason="the extra `tune` is not installed")

from worker.tuning.study import SCHEMA, Search, open_storage

SPACE = (
    Dimension(DTYPE, ("f32", "int8", "broken")),
    Dimension(SEQUENCES, ("1", "2", "4", "8", "16", "32"), is_ordered=True),
)
FIRST = ({DTYPE: "f32", SEQUENCES: "8"}, {DTYPE: "int8", SEQUENCES: "8"})


def test_every_searched_value_is_one_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "cuda"):
        for dimension in search_space(device, num_cores=4):
            for value in dimension.values:
                monkeypatch.setenv(dimension.variable, value)
                Settings()  # type: ignore[call-arg]  # raises on a wrong value
        for name in plain(device):
            assert name in {one.variable for one in search_space(device, num_cores=4)}


def test_a_step_holds_a_token_of_each_sequence() -> None:
    assert allowed({SEQUENCES: "256", TOKENS: "64"}) == {SEQUENCES: "256", TOKENS: "256"}
    assert allowed({SEQUENCES: "", TOKENS: "64"}) == {SEQUENCES: "", TOKENS: "64"}


def test_a_study_resumes_and_is_shared_and_has_tables_of_its_own(database_url: str) -> None:
    objective, again = Objective(max_quality_loss=0.02), MadeUp()
    with open_storage(database_url) as storage:
        first = Search(storage, "resumed", SPACE, objective, first=FIRST)
        first.run(2, MadeUp())
        with open_storage(database_url) as other:
            Search(other, "resumed", SPACE, objective, first=FIRST).run(5, again)
        assert [one.setting for one in first.records][:2] == list(FIRST)
        assert (first.num_ended, len(again.settings)) == (5, 3)
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection:
        rows = connection.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_name IN ('studies', 'trials')"
        ).fetchall()
    assert {schema for (schema,) in rows} == {SCHEMA}


def test_the_winner_is_the_fastest_whose_loss_is_surely_allowed() -> None:
    made_up = MadeUp(loss_of_int8=0.015, width=0.01)
    loose, strict = (
        Search(None, name, SPACE, Objective(max_quality_loss=most), first=FIRST)
        for name, most in (("loose", 0.03), ("strict", 0.02))
    )
    for search in (loose, strict):
        search.run(2, made_up)
    assert [(one.winner() or one.records[0]).setting[DTYPE] for one in (loose, strict)] == ["int8", "f32"]
    none = Search(None, "none", SPACE, Objective(max_latency_p95_ms=0.001), first=FIRST)
    none.run(2, made_up)
    assert none.winner() is None


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on() -> None:
    search = Search(None, "failing", SPACE, Objective(), first=({DTYPE: "broken", SEQUENCES: "1"}, *FIRST))
    search.run(3, MadeUp())
    assert [one.state for one in search.records] == ["failed", "complete", "complete"]
    assert search.records[0].problem == "broken"


def test_a_slow_trial_is_pruned_by_the_median_of_those_before() -> None:
    fast = [{DTYPE: dtype, SEQUENCES: n} for dtype in ("f32", "int8") for n in ("16", "32")]
    slow = {DTYPE: "f32", SEQUENCES: "1"}
    search = Search(None, "pruned", SPACE, Objective(), first=(slow, *fast, {DTYPE: "f32", SEQUENCES: "2"}))
    search.run(6, MadeUp())
    assert [one.state for one in search.records] == [*["complete"] * 5, "pruned"]


def test_no_setting_is_measured_twice() -> None:
    made_up = MadeUp()
    Search(None, "few", SPACE[:1], Objective()).run(10, made_up)
    assert sorted(one[DTYPE] for one in made_up.settings) == ["broken", "f32", "int8"]


def test_a_trial_that_is_interrupted_does_not_run_for_ever() -> None:
    made_up = MadeUp(error=KeyboardInterrupt())
    search = Search(None, "interrupted", SPACE, Objective(), first=FIRST)
    with pytest.raises(KeyboardInterrupt):
        search.run(2, made_up)
    assert [one.state for one in search.records] == ["failed"]


@pytest.fixture
def searched() -> Search:
    search = Search(None, "reported", SPACE, Objective(), first=FIRST)
    search.run(3, MadeUp(loss_of_int8=0.01))
    return search


def test_the_front_is_written_as_a_table_and_a_picture(searched: Search, tmp_path: Path) -> None:
    front = pareto_front(searched.records)
    assert all(one.figures for one in front)
    write_csv(tmp_path / "front.csv", front)
    header, first, *_ = (tmp_path / "front.csv").read_text().splitlines()
    assert header.split(",") == [
        *("trial", "tokens_per_second", "latency_p95_ms", "peak_memory_mb", "quality_loss", "low", "high"),
        *(DTYPE, SEQUENCES),
    ]
    assert first.endswith(",".join(front[0].setting[name] for name in (DTYPE, SEQUENCES)))
    assert write_png(tmp_path / "front.png", searched.records, front, searched.winner())
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_an_environment_file_keeps_what_it_had(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(f"# ours\nPORT=8123\nexport {DTYPE}=f32\n{TOKENS}=64\n")
    write_environment(file, {DTYPE: "int8", TOKENS: "", SEQUENCES: "16"})
    assert file.read_text() == f"# ours\nPORT=8123\n{DTYPE}=int8\n{SEQUENCES}=16\n"


def test_a_summary_has_the_gain_and_the_interval() -> None:
    made_up = MadeUp(loss_of_int8=0.01, width=0.005)
    before, after = (made_up.measure({DTYPE: dtype, SEQUENCES: "8"}) for dtype in ("f32", "int8"))
    assert summary(before, after, 3) == {
        "before_tok_s": 800.0,
        "after_tok_s": 1600.0,
        "gain": 2.0,
        "quality_loss": 0.01,
        "interval": [0.005, 0.015],
        "trials": 3,
    }
