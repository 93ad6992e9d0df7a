"""What formats cost the demo model, on the start of its held-out text, through the files that are written."""

import pytest

from benchmarks import distilled, quality
from worker.engine.quantize import mixing


@pytest.mark.slow
def test_formats_cost_what_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "CALIBRATION_CHARACTERS", 6_000)
    monkeypatch.setattr(mixing, "MOST_MEASURED", 1)
    few = distilled.texts()[:8]
    monkeypatch.setattr(distilled, "texts", lambda: few)
    found = quality.measure(4092, steps=2)
    ppl = {name: row["ppl"] / found["bf16"]["ppl"] for name, row in found.items()}
    assert tuple(found) == quality.NAMES
    assert ppl["int8"] < 1.01
    assert ppl["fp8"] < 1.015
    assert ppl["fp8_weights"] < 1.008
    assert ppl["fp8_compensated"] < 1.01
    assert ppl["int8_kv"] < 1.003
    assert ppl["int4_compensated"] < 1.03
    assert ppl["int4_compensated"] < ppl["int4"] < 1.08
    assert 1.005 < ppl["nf4"] < 1.08
    assert found["int8"]["bytes"] < 0.65 * found["bf16"]["bytes"]
    assert found["int4"]["bytes"] < 0.47 * found["bf16"]["bytes"]
    assert ppl["fp16"] < 1.005
    assert ppl["int8"] - 0.005 < ppl["int8_static"] < 1.2
    assert found["auto"]["is_smaller_than_int8"]
    assert ppl["auto"] < 1.015
    assert 0 < found["auto"]["divergence"] < found["int4"]["divergence"]
    assert found["int8_kv"]["kv_bytes_per_token"] < 0.55 * found["bf16"]["kv_bytes_per_token"]
    assert found["distilled"]["bytes"] < 0.6 * found["bf16"]["bytes"]
    assert found["distilled"]["kv_bytes_per_token"] == found["bf16"]["kv_bytes_per_token"] / 3
    assert ppl["distilled"] > 2
    assert found["distilled"]["speedup"] > 0
