"""Optimizations one after another, over measurements that are made up."""

import pytest

from tests.fixtures.tuning import MadeUp
from worker.tuning.measuring import MeasuredSetting
from worker.tuning.optimizing import optimize
from worker.tuning.space import DTYPE, SEQUENCES, Setting, plain
from worker.tuning.trial_process import Report, TrialFailedError


def test_it_stops_when_the_target_is_met() -> None:
    made_up = MadeUp()
    found = optimize(100, 0.98, measurer=made_up, device="cpu")
    assert found.optimizations == ("int8 quantization",)
    assert found.to_json() == {
        "optimizations": ["int8 quantization"],
        "final_latency_ms": 80.0,
        "final_quality": 1.0,
    }
    assert (found.is_met, found.first_latency_ms, len(made_up.settings)) == (True, 160.0, 2)


def test_where_quality_forbids_quantization_16_bits_come_next_and_then_batching() -> None:
    told: list[tuple[str, bool]] = []
    found = optimize(
        10,
        0.98,
        measurer=MadeUp(loss_of_int8=0.05),
        device="cpu",
        told=lambda name, _, is_kept: told.append((name, is_kept)),
    )
    assert told == [
        ("none", True),
        ("int8 quantization", False),
        ("16 bits", False),  # it made nothing faster
        ("batching (64 sequences)", True),
    ]
    assert found.setting == plain("cpu") | {SEQUENCES: "64"}
    assert (found.final_quality, found.is_met) == (1.0, True)


def test_everything_is_tried_and_a_missed_target_is_told() -> None:
    made_up = MadeUp(loss_of_int8=0.01)
    found = optimize(0.5, 0.98, measurer=made_up, device="cpu")
    assert found.optimizations == ("int8 quantization", "batching (64 sequences)")
    assert not found.is_met
    assert found.final_quality == pytest.approx(0.99)
    assert len(made_up.settings) == 8  # also caches, speculation, admission and blocks
    assert all(one[DTYPE] == "int8" for one in made_up.settings[1:])


def test_what_cannot_run_is_told_and_left_out() -> None:
    class WithoutInt8(MadeUp):
        def measure(self, setting: Setting, report: Report = lambda *_: True) -> MeasuredSetting:
            if setting[DTYPE] == "int8":
                raise TrialFailedError("no such kernel")
            return super().measure(setting, report)

    failed: list[tuple[str, str]] = []
    found = optimize(
        10,
        0.98,
        measurer=WithoutInt8(),
        device="cpu",
        failed=lambda name, error: failed.append((name, str(error))),
    )
    assert failed == [("int8 quantization", "no such kernel")]
    assert found.optimizations == ("batching (64 sequences)",)
