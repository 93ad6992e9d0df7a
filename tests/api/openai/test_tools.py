"""Tools in a request, and what they make of its prompt, its output's form and its answer."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.errors import ApiError, InvalidInputError
from api.inputs.checkpoint import Checkpoint
from api.openai.answers import to_answer
from api.openai.bodies import Endpoint, read_body
from api.openai.growing import GrowingChat
from api.openai.requests import from_line, to_request
from tests.api.openai.test_answers import RESULT
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.store.requests.requests import NewRequest
from worker.values.delta import Delta
from worker.values.grammar import Grammar
from worker.values.outcomes import FinishReason
from worker.values.parsing import Family, Parsing
from worker.values.sampling import SamplingParams

CHAT = Endpoint.CHAT_COMPLETIONS
HELLO = [{"role": "user", "content": "hello"}]
# Knows tools as Qwen's does: definitions before the messages, calls and results between tags.
HERMES = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city, in °C & more",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "maxProperties": 0}},
}
Loader = Callable[[str], Checkpoint]


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    return lambda template: Checkpoint.load(write_checkpoint(tmp_path, chat_template=template))


def asked(checkpoint: Checkpoint, **body: Any) -> NewRequest:
    return to_request(checkpoint, read_body(CHAT, {"model": checkpoint.name, "messages": HELLO} | body))


def sampling(request: NewRequest) -> SamplingParams:
    assert isinstance(request.params, SamplingParams)
    return request.params


def accepts(checkpoint: Checkpoint, request: NewRequest, text: str) -> bool:
    """Return whether an output's format accepts a whole text, a token for each byte."""
    wanted = sampling(request).format
    assert wanted is not None
    matcher = Grammar.of(wanted.kind, wanted.source).compile(checkpoint.vocabulary)
    token_ids = checkpoint._tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(token_ids) == len(token_ids) and bool(matcher.is_accepting())


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_a_template_that_knows_tools_gets_their_definitions(load: Loader) -> None:
    request = asked(load(HERMES), tools=[WEATHER, TIME])
    definition, _, rest = request.prompt.removeprefix("<tools>").partition(
        '{"type": "function", "function": {"name": "get_time"'
    )
    assert json.loads(definition) == WEATHER
    assert "°C & more" in definition
    assert rest.endswith("<user>hello<assistant>")
    params = sampling(request)
    assert (params.format, params.skip_special_tokens) == (None, False)
    assert params.parsing == Parsing(Family.HERMES, ("get_weather", "get_time"))
    assert SamplingParams.from_json(json.loads(json.dumps(params.to_json()))) == params


def test_a_template_that_knows_none_gets_them_in_a_system_message(load: Loader) -> None:
    checkpoint = load(TEMPLATE)
    request = asked(checkpoint, tools=[TIME], messages=[{"role": "system", "content": "Be brief."}, *HELLO])
    assert request.prompt.startswith("<system>Be brief.\n\n# Tools")
    assert '<tools>\n{"name": "get_time"' in request.prompt
    assert sampling(request).parsing == Parsing(Family.HERMES, ("get_time",))
    assert asked(checkpoint, tools=[TIME]).prompt.startswith("<system># Tools")


def test_a_template_without_system_messages_gets_them_in_the_users(load: Loader) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + TEMPLATE
    assert asked(load(template), tools=[TIME]).prompt.startswith("<user>hello\n\n# Tools")


def test_without_a_choice_to_call_there_are_no_tools(load: Loader) -> None:
    checkpoint = load(HERMES)
    assert asked(checkpoint, tools=[TIME], tool_choice="none") == asked(checkpoint)


RECORDED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "at": 1}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "3 °C"}]},
    {"role": "user", "content": "Thanks."},
]


def test_a_recorded_conversation_goes_through_the_template(load: Loader) -> None:
    assert asked(load(HERMES), messages=RECORDED).prompt == (
        '<user>Weather?<assistant><tool_call>{"name": "get_weather", "arguments": {"city": "Oslo", "at": 1}}'
        "</tool_call><tool>3 °C<user>Thanks.<assistant>"
    )


def test_a_template_that_knows_no_tools_gets_calls_and_results_as_text(load: Loader) -> None:
    assert asked(load(TEMPLATE), messages=RECORDED).prompt == (
        "<user>Weather?<assistant>"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "at": 1}}\n'
        "</tool_call><user><tool_response>\n3 °C\n</tool_response><user>Thanks.<assistant>"
    )


RAW = "{{ messages[0].tool_calls[0].function.arguments.a }}"


@pytest.mark.parametrize("template", [HERMES, TEMPLATE, RAW])
@pytest.mark.parametrize("arguments", ['{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": ' + "[" * 50_000])
def test_arguments_that_hide_what_cannot_be_stored_break_nothing(
    load: Loader, template: str, arguments: str
) -> None:
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    prompt = ""
    with suppress(InvalidInputError):
        prompt = asked(load(template), messages=[{"role": "assistant", "tool_calls": calls}, *HELLO]).prompt
    assert "\0" not in prompt
    prompt.encode()


def test_the_older_form_means_the_same(load: Loader) -> None:
    checkpoint = load(HERMES)
    older = asked(
        checkpoint,
        functions=[WEATHER["function"]],
        function_call={"name": "get_weather"},
        messages=[
            RECORDED[0],
            {
                "role": "assistant",
                "content": None,
                "function_call": RECORDED[1]["tool_calls"][0]["function"],
            },
            {"role": "function", "name": "get_weather", "content": "3 °C"},
        ],
    )
    newer = asked(
        checkpoint,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        messages=RECORDED[:3],
    )
    assert older.prompt == newer.prompt
    assert sampling(older).format == sampling(newer).format
    assert sampling(older).parsing == Parsing(Family.HERMES, ("get_weather",), is_older=True)


@pytest.mark.parametrize("template", [HERMES, TEMPLATE])
def test_a_required_call_fits_its_schema(load: Loader, template: str) -> None:
    checkpoint = load(template)
    request = asked(checkpoint, tools=[WEATHER, TIME], tool_choice="required")
    good, other = call("get_weather", '{"city": "Oslo", "days": 3}'), call("get_time", "{}")
    for text in (good, other, f"{good}\n{other}"):
        assert accepts(checkpoint, request, text)
    for text in (
        "Hello",
        call("get_weather", '{"days": 3}'),
        call("get_weather", '{"days": 3, "city": "Oslo"}'),
        call("get_weather", '{"city": "Oslo", "other": 1}'),
        call("another", "{}"),
        good + " and text",
    ):
        assert not accepts(checkpoint, request, text)
    one = asked(checkpoint, tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
    assert accepts(checkpoint, one, good)
    assert not accepts(checkpoint, one, f"{good}\n{other}")


def test_a_named_call_is_of_that_function(load: Loader) -> None:
    checkpoint = load(HERMES)
    chosen = {"type": "function", "function": {"name": "get_time"}}
    request = asked(checkpoint, tools=[WEATHER, TIME], tool_choice=chosen)
    assert accepts(checkpoint, request, call("get_time", "{}"))
    assert not accepts(checkpoint, request, call("get_weather", '{"city": "Oslo"}'))


def test_a_strict_schema_holds_where_a_call_is_optional(load: Loader) -> None:
    checkpoint = load(HERMES)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    request = asked(checkpoint, tools=[strict, TIME])
    good = call("get_weather", '{"city": "Oslo"}')
    for text in ("Hello <b>", f"Look: {good}", good + "\n" + call("get_time", '{"any": [1]}')):
        assert accepts(checkpoint, request, text)
    for text in (f"Look: {call('get_weather', '{}')}", "Look: <tool_call> what"):
        assert not accepts(checkpoint, request, text)


def test_content_beside_tools_can_have_a_schema(load: Loader) -> None:
    checkpoint = load(HERMES)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    request = asked(checkpoint, tools=[WEATHER], response_format=wanted)
    assert accepts(checkpoint, request, '{"a": 3}')
    assert accepts(checkpoint, request, call("get_weather", '{"city": "Oslo"}'))
    assert not accepts(checkpoint, request, "text")


NEVER: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "not": {}}}
FAMILIES = {
    Family.LLAMA: ("<|python_tag|>", '{"name": "get_weather", "parameters": {"city": "Oslo"}}'),
    Family.MISTRAL: ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
    Family.GEMMA: ("<start_function_call>", call("get_weather", '{"city": "Oslo"}')),
    Family.HARMONY: (
        "<|channel|>",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}',
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_call_has_the_familys_form(load: Loader, family: Family) -> None:
    mark, text = FAMILIES[family]
    checkpoint = load("{% if tools %}{{ '" + mark + "' }}{% endif %}" + TEMPLATE)
    assert checkpoint.family is family
    request = asked(checkpoint, tools=[WEATHER], tool_choice="required")
    assert accepts(checkpoint, request, text)
    assert not accepts(checkpoint, request, text.replace("city", "town"))
    result = replace(RESULT, output=text, finish_reason="stop", parsing=sampling(request).parsing)
    said = to_answer(checkpoint, CHAT, result, batch_id="batch_a")
    ChatCompletion.model_validate(said)
    (found,) = said["choices"][0]["message"]["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [TIME], "functions": [TIME["function"]]}, "functions"),
        ({"tools": [TIME], "guided_regex": "a"}, "tools"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": RECORDED[1]["tool_calls"]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "strict": True,
                            "parameters": {"type": "object", "not": {}},
                        },
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_name(load: Loader, body: dict[str, Any], param: str) -> None:
    checkpoint = load(HERMES)
    with pytest.raises(ApiError) as raised:
        asked(checkpoint, **body)
    assert raised.value.param == param
    with pytest.raises(ApiError) as raised:
        from_line(checkpoint, CHAT, {"model": checkpoint.name, "messages": HELLO} | body, custom_id="a")
    assert raised.value.param == f"body.{param}"


OSLO = call("get_weather", '{"city": "Oslo"}')
TEXT = f"Let me see.\n{OSLO}\n{call('get_time', '{}')}"
BOTH = Parsing(Family.HERMES, ("get_weather", "get_time"))


def test_an_answer_has_its_calls(load: Loader) -> None:
    checkpoint = load(HERMES)
    result = replace(RESULT, output=TEXT, finish_reason="stop", parsing=BOTH)
    said = to_answer(checkpoint, CHAT, result, batch_id="batch_ab")
    choice = ChatCompletion.model_validate(said).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert [one["function"] for one in said["choices"][0]["message"]["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        {"name": "get_time", "arguments": "{}"},
    ]
    cut = replace(result, finish_reason="length")
    assert to_answer(checkpoint, CHAT, cut, batch_id="b")["choices"][0]["finish_reason"] == "length"
    older = replace(result, parsing=replace(BOTH, is_older=True))
    (older_choice,) = to_answer(checkpoint, CHAT, older, batch_id="b")["choices"]
    assert older_choice["finish_reason"] == "function_call"
    assert older_choice["message"]["function_call"]["name"] == "get_weather"
    only = replace(result, output=call("get_time", "{}"))
    assert to_answer(checkpoint, CHAT, only, batch_id="b")["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_says_what_the_answer_says(load: Loader, size: int) -> None:
    checkpoint = load(HERMES)
    result = replace(RESULT, output=TEXT, finish_reason="stop", parsing=BOTH)
    own_id = to_answer(checkpoint, CHAT, result, batch_id="batch_ab")["id"]
    message = to_answer(checkpoint, CHAT, result, batch_id="batch_ab")["choices"][0]["message"]
    request = NewRequest("x", 1, params=SamplingParams(parsing=BOTH))
    chat = GrowingChat(checkpoint, request, own_id=own_id)

    def told() -> Iterator[dict[str, Any]]:
        for start in range(0, len(TEXT), size):
            is_last = start + size >= len(TEXT)
            reason = FinishReason.STOP if is_last else None
            yield from chat.feed(Delta(1, 0, start, TEXT[start : start + size], finish_reason=reason))

    content, calls, reasons, roles = "", list[dict[str, Any]](), list[str](), list[str]()
    frame = {"id": own_id, "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for fields in told():
        (choice,) = fields["choices"]
        ChatCompletionChunk.model_validate(frame | {"choices": [choice]})
        delta = choice["delta"]
        roles += [delta["role"]] if "role" in delta else []
        content += delta.get("content") or ""
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert (content, calls) == (message["content"], message["tool_calls"])
    assert (reasons, roles) == (["tool_calls"], ["assistant"])


def test_of_a_family_that_writes_no_json_it_is_known_what_is_no_text(load: Loader) -> None:
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "code": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "where": {"type": ["array", "null"]},
        "odd": {"anyOf": 5, "enum": 7, "type": 3},
        "any": True,
    }
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tool = {"type": "function", "function": function}
    coder = load(HERMES + "{# <function=f> #}")
    expected = Parsing(Family.CODER, ("f",), ("f.days", "f.where", "f.odd"))
    assert sampling(asked(coder, tools=[tool])).parsing == expected
    forced = sampling(asked(coder, tools=[WEATHER], tool_choice="required"))
    assert forced.parsing == Parsing(Family.HERMES, ("get_weather",))
    assert sampling(asked(load(HERMES), tools=[tool])).parsing == Parsing(Family.HERMES, ("f",))
