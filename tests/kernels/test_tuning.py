import pytest
from triton.runtime.errors import OutOfResources

from kernels.crossover import Regime
from kernels.tuning import runnable

SMALL, LARGE, HUGE = (Regime("tile", None, block_m=rows) for rows in (16, 64, 256))


def run_small(regime: Regime) -> None:
    if regime.block_m > LARGE.block_m:
        raise OutOfResources(regime.block_m, LARGE.block_m, "shared memory")


def fail(regime: Regime) -> None:
    raise ZeroDivisionError(regime.kind)


def test_a_regime_that_the_gpu_has_no_room_for_is_left_out() -> None:
    assert runnable([SMALL, HUGE, LARGE], run_small) == [SMALL, LARGE]


def test_any_other_failure_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        runnable([SMALL], fail)
