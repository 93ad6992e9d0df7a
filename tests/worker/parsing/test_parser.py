"""Outputs of each family as real models write them, parsed whole and cut into parts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.parsing import deepseek
from worker.parsing.parser import OutputParser, call_id, parse
from worker.parsing.pieces import ArgumentsPiece, CallPiece, ContentPiece, ParsedCall, ParsedOutput, Piece
from worker.values.parsing import Family, Parsing

TOOLS = ("get_weather", "get_time")
# Family, the model's own text, and what it means: content, reasoning, calls.
RECORDED: list[tuple[Family, str, str, str, list[tuple[str, str]]]] = [
    (
        Family.HERMES,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>',
        "",
        "",
        [("get_weather", '{"city": "Paris", "days": 3}')],
    ),
    (
        Family.HERMES,
        (
            "I will look that up.\n\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a \\"{quoted}\\" </tool_call>"}}'
            "\n</tool_call>\n"
            '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
        ),
        "I will look that up.",
        "",
        [("get_weather", '{"city": "a \\"{quoted}\\" </tool_call>"}'), ("get_time", "{}")],
    ),
    (Family.HERMES, '<tool_call>{"name": "get_time"}</tool_call>', "", "", [("get_time", "{}")]),
    (
        Family.HERMES,
        '<tool_call>{"arguments": "{\\"city\\": \\"Oslo\\"}", "name": "get_weather"}</tool_call> done',
        "done",
        "",
        [("get_weather", '{"city": "Oslo"}')],
    ),
    (Family.HERMES, "a <tool_call> b </tool_call>\n", "a <tool_call> b </tool_call>\n", "", []),
    (Family.HERMES, "5 < 6 and <tool_cal", "5 < 6 and <tool_cal", "", []),
    (
        Family.LLAMA,
        '{"name": "get_weather", "parameters": {"city": "Lima"}}',
        "",
        "",
        [("get_weather", '{"city": "Lima"}')],
    ),
    (
        Family.LLAMA,
        (
            '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Lima"}}; '
            '{"name": "get_time", "parameters": {}}'
        ),
        "",
        "",
        [("get_weather", '{"city": "Lima"}'), ("get_time", "{}")],
    ),
    (Family.LLAMA, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', "", []),
    (Family.LLAMA, ' {"a": [1, 2', ' {"a": [1, 2', "", []),
    (
        Family.MISTRAL,
        (
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Nice"}}, '
            '{"name": "get_time", "arguments": {}, "id": "D681PevKs"}]'
        ),
        "",
        "",
        [("get_weather", '{"city": "Nice"}'), ("get_time", "{}")],
    ),
    (
        Family.MISTRAL,
        (
            'Bien sûr.[TOOL_CALLS]get_weather[ARGS]{"city": "Nice"}[TOOL_CALLS]get_time'
            "[CALL_ID]D681PevKs[ARGS]{}"
        ),
        "Bien sûr.",
        "",
        [("get_weather", '{"city": "Nice"}'), ("get_time", "{}")],
    ),
    (
        Family.MISTRAL,
        '[TOOL_CALLS]get_weather{"city": "[TOOL_CALLS]"}',
        "",
        "",
        [("get_weather", '{"city": "[TOOL_CALLS]"}')],
    ),
    (
        Family.GEMMA,
        (
            "<start_function_call>call:get_weather{city:<escape>Köln, {am} Rhein<escape>,days:3,exact:true,"
            "where:{at:[50.9,<escape>x<escape>,null]}}<end_function_call>"
        ),
        "",
        "",
        [
            (
                "get_weather",
                '{"city":"Köln, {am} Rhein","days":3,"exact":true,"where":{"at":[50.9,"x",null]}}',
            )
        ],
    ),
    (
        Family.GEMMA,
        'Sure.<|tool_call>call:get_weather{city:<|"|>Bonn<|"|>}<tool_call|><|tool_call>call:get_time{}<tool_call|>',
        "Sure.",
        "",
        [("get_weather", '{"city":"Bonn"}'), ("get_time", "{}")],
    ),
    (
        Family.HARMONY,
        (
            "<|channel|>analysis<|message|>We need the weather.<|end|><|start|>assistant<|channel|>commentary"
            ' to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome"}<|call|>'
        ),
        "",
        "We need the weather.",
        [("get_weather", '{"city":"Rome"}')],
    ),
    (
        Family.HARMONY,
        (
            "<|channel|>analysis<|message|>Call it.<|end|><|start|>assistant<|channel|>commentary<|message|>"
            "Looking.<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
            '{"city":"Rome"}'
        ),
        "Looking.",
        "Call it.",
        [("get_weather", '{"city":"Rome"}')],
    ),
    (
        Family.HARMONY,
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.\n",
        "It is 4.\n",
        "Easy.",
        [],
    ),
    (
        Family.CODER,
        (
            "I will look.\n<tool_call>\n<function=get_weather>\n"
            '<parameter=city>\nSão\n"Paulo" 5</parameter>\n<parameter=days>\n3\n</parameter>\n'
            "<parameter=exact>True</parameter>\n<parameter=unit>\n7\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>"
        ),
        "I will look.",
        "",
        [
            ("get_weather", '{"city": "São\\n\\"Paulo\\" 5", "days": 3, "exact": true, "unit": "7"}'),
            ("get_time", "{}"),
        ],
    ),
    (
        Family.CODER,
        (
            "<function=get_weather>\n<parameter=days>\nthree\n"
            '<parameter=where>\n[1, {"a": null}]\n</function>'
            ' done <tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
        ),
        "done",
        "",
        [("get_weather", '{"days": "three", "where": [1, {"a": null}]}'), ("get_time", "{}")],
    ),
    (
        Family.CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nLi",
        "",
        "",
        [("get_weather", '{"city": "Li"')],
    ),
    (Family.CODER, "a <function=what is this> b", "a <function=what is this> b", "", []),
    (
        Family.DEEPSEEK,
        (
            "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n'
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "Sure.",
        "",
        [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")],
    ),
    (
        Family.DEEPSEEK,
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather"
            '<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "",
        "",
        [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")],
    ),
    (
        Family.DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no call",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no call",
        "",
        [],
    ),
    (Family.NONE, "<tool_call> is text\n", "<tool_call> is text\n", "", []),
]
TYPED = ("get_weather.days", "get_weather.exact", "get_weather.where")  # of the others, all values are texts


def parts(text: str, parsing: Parsing | None, *cuts: int) -> ParsedOutput:
    parser = OutputParser(parsing, seed="s")
    found: list[Piece] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += parser.feed(text[start:end])
    return ParsedOutput.of([*found, *parser.end()])


@pytest.mark.parametrize(("family", "text", "content", "reasoning", "calls"), RECORDED)
def test_a_recorded_output_is_parsed(
    family: Family, text: str, content: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    assert parse(text, Parsing(family, TOOLS, TYPED), seed="s") == ParsedOutput(
        content,
        reasoning,
        tuple(
            ParsedCall(call_id(f"s-{i}", is_short=family is Family.MISTRAL), name, arguments)
            for i, (name, arguments) in enumerate(calls)
        ),
    )


@pytest.mark.parametrize(("family", "text"), [(family, text) for family, text, *_ in RECORDED])
def test_however_it_is_cut_a_stream_says_the_same(family: Family, text: str) -> None:
    parsing = Parsing(family, TOOLS, TYPED)
    whole = parse(text, parsing, seed="s")
    assert all(parts(text, parsing, cut) == whole for cut in range(len(text) + 1))
    assert parts(text, parsing, *range(1, len(text))) == whole


MARKS = st.sampled_from(
    sorted(
        {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "call:f"}
        | {
            "<start_function_call>",
            "<end_function_call>",
            "<escape>",
            "<|tool_call>",
            "<tool_call|>",
            '<|"|>',
            *("<function=f>", "<parameter=a>", "</parameter>", "</function>"),
            *(deepseek.CALLS, deepseek.CALL, deepseek.SEPARATOR, "```json", "```", deepseek.CALL_END),
        }
        | {"<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant", "<|call|>", "final", "analysis"}
        | {
            " to=functions.f",
            '{"name": "f", ',
            '"arguments": ',
            '"parameters": ',
            '{"a": 1}',
            "}",
            "{",
            "[",
            "]",
        }
        | {'"', "\\", ",", ":", ";", " ", "\n", "x", "é"}
    )
)


@given(st.sampled_from(Family), st.lists(MARKS, max_size=12).map("".join), st.data())
def test_any_text_is_parsed_alike_whole_and_in_parts(family: Family, text: str, data: st.DataObject) -> None:
    parsing = Parsing(family, ("f",))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert parts(text, parsing, *cuts) == parse(text, parsing, seed="s")


@given(st.sampled_from(Family), st.text())
def test_text_without_marks_is_content(family: Family, text: str) -> None:
    assert parse(text, Parsing(family, ("f",)), seed="s") == ParsedOutput(text, "", ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON), st.booleans())
def test_arguments_are_passed_on_as_they_are_written(arguments: dict[str, object], is_ascii: bool) -> None:
    written = json.dumps(arguments, ensure_ascii=is_ascii)
    calls = {
        Family.HERMES: f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>',
        Family.LLAMA: f'{{"name": "f", "parameters": {written}}}',
        Family.MISTRAL: f'[TOOL_CALLS][{{"name": "f", "arguments": {written}}}]',
        Family.HARMONY: f"<|channel|>commentary to=functions.f<|message|>{written}<|call|>",
    }
    for family, text in calls.items():
        (call,) = parse(text, Parsing(family, ("f",)), seed="s").calls
        assert (call.name, call.arguments) == ("f", written)


def test_pieces_come_as_soon_as_they_are_certain() -> None:
    parser = OutputParser(Parsing(Family.HERMES, ("f",)), seed="s")
    assert parser.feed("Yes <tool") == [ContentPiece("Yes")]
    assert parser.feed("_call>") == []
    assert parser.feed('\n{"name": "f", "arguments": {"a') == [
        CallPiece(0, call_id("s-0"), "f"),
        ArgumentsPiece(0, '{"a'),
    ]
    assert parser.feed('": 1') == [ArgumentsPiece(0, '": 1')]
    assert parser.feed("}}\n</tool_call>") == [ArgumentsPiece(0, "}")]
    assert parser.end() == []


def test_without_a_parsing_all_text_is_content() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert parse(text, None, seed="s").content == text
    assert parse(text, Parsing(Family.HERMES), seed="s").content == text


def test_deep_nesting_ends_no_parser() -> None:
    for family, opening in (
        (Family.GEMMA, "<|tool_call>call:f{a:"),
        (Family.HERMES, '<tool_call>{"arguments":'),
    ):
        parsed = parse(opening + "[" * 20_000, Parsing(family, ("f",)), seed="s")
        assert len(parsed.calls) == (family is Family.GEMMA)


def test_a_parsing_survives_storage() -> None:
    for parsing in (Parsing(Family.CODER, ("f", "g"), ("f.a",), is_older=True), Parsing(Family.NONE)):
        assert Parsing.from_json(json.loads(json.dumps(parsing.to_json()))) == parsing
