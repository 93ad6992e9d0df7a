import random

import pytest

from worker.forecasts.calibration import calibrate
from worker.store.watching.outlook import ForecastOutcome


def outcomes(
    draw: random.Random, count: int, *, overhead: float, factor: float, noise: float
) -> list[ForecastOutcome]:
    found = []
    for _ in range(count):
        forecast = draw.lognormvariate(0.5, 1.3)
        found.append(
            ForecastOutcome(forecast, (overhead + factor * forecast) * draw.lognormvariate(0, noise))
        )
    return found


def test_it_finds_what_batches_take_on_their_way_and_how_far_forecasts_are_off() -> None:
    found = calibrate(outcomes(random.Random(1), 60, overhead=0.4, factor=1.3, noise=0.05))
    assert found.overhead == pytest.approx(0.4, abs=0.11)
    assert found.factor == pytest.approx(1.3, rel=0.1)


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.5])
def test_the_truth_is_within_what_is_stated_nine_times_in_ten(noise: float) -> None:
    draw = random.Random(2)
    past = outcomes(draw, 70, overhead=0.3, factor=1.2, noise=noise)
    hits, widths = 0, []
    for _ in range(150):
        (new,) = outcomes(draw, 1, overhead=0.3, factor=1.2, noise=noise)
        stated = calibrate(past).apply(new.forecast_seconds)
        hits += stated.low <= new.seconds <= stated.high
        widths.append(stated.high / stated.low)
        past = [new, *past][:100]
    assert hits / 150 >= 0.84
    # A quiet machine is not given the interval of a noisy one.
    assert sorted(widths)[75] < 2.7182818 ** (2 * 1.645 * noise) * 1.5


def test_an_accident_does_not_widen_everything_after_it() -> None:
    draw = random.Random(3)
    past = outcomes(draw, 40, overhead=0.3, factor=1.0, noise=0.1)
    before = calibrate(past).apply(2.0)
    after = calibrate([ForecastOutcome(2.0, 60.0), *past]).apply(2.0)
    assert after.high < 1.3 * before.high


def test_without_a_past_it_is_modest() -> None:
    stated = calibrate([]).apply(1.0)
    assert stated.low < 0.9
    assert stated.expected == pytest.approx(1.3, rel=0.01)
    assert stated.high / stated.low > 4
