import json

import pytest

from api import json_lines


@pytest.mark.parametrize("point", [*range(0x80, 0xA0), 0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x2028, 0x2029, 0x1F600])
def test_no_reader_finds_a_line_break_within_a_line(point: int) -> None:
    value = {"output": f"one{chr(point)}two"}
    line = json_lines.dumps(value)
    assert line.splitlines() == [line]
    assert json.loads(line) == value


def test_other_text_stays_as_it_is() -> None:
    assert json_lines.dumps(["水車 — ü"]) == '["水車 — ü"]'
