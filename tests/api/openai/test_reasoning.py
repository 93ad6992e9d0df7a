"""What a model reasons before its answer, by the forms of its family's chat template."""

from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from api.anthropic.bodies import NewMessage
from api.anthropic.requests import to_message_request
from api.errors import ApiError
from api.inputs.checkpoint import Checkpoint
from api.openai.answers import to_answer
from api.openai.bodies import Endpoint, read_body
from api.openai.requests import from_line, to_request
from api.parsing.messages import GrowingMessage
from tests.api.openai.test_answers import RESULT
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from worker.store.requests.requests import NewRequest
from worker.values.parsing import Family, Parsing
from worker.values.results import Payload
from worker.values.sampling import SamplingParams
from worker.values.thinking import Thinking, ThinkingStyle

CHAT = Endpoint.CHAT_COMPLETIONS
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TURNS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% if not loop.last or add_generation_prompt %}<end>{% endif %}{% endfor %}"
)
TEMPLATES = {
    # Its model opens the thoughts itself.
    "qwen": TURNS + "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}",
    # The prompt opens them, and nothing switches them off.
    "deepseek": TURNS + "{% if add_generation_prompt %}<assistant><think>\n{% endif %}{# </think> #}",
    "mistral": TURNS + "{% if add_generation_prompt %}[/INST]{% endif %}{# [THINK] #}",
    "harmony": "{{ reasoning_effort }}" + TURNS
    + "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# <|channel|> #}",
    "none": TEMPLATE,
    "wordy": "{{ verbosity }}" + TURNS,
}  # fmt: skip
TAGS, OPEN = Thinking(ThinkingStyle.TAGS), Thinking(ThinkingStyle.TAGS, is_open=True)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    def load(name: str) -> Checkpoint:
        return Checkpoint.load(write_checkpoint(tmp_path_factory.mktemp(name), chat_template=TEMPLATES[name]))

    return {name: load(name) for name in TEMPLATES}


def asked(checkpoint: Checkpoint, **body: Any) -> tuple[str, SamplingParams]:
    found: NewRequest = to_request(
        checkpoint, read_body(CHAT, {"model": checkpoint.name, "messages": HELLO, **body})
    )
    assert isinstance(found.params, SamplingParams)
    return found.prompt, found.params


@pytest.mark.parametrize(
    ("name", "thinking"),
    [
        ("qwen", TAGS),
        ("deepseek", OPEN),
        ("mistral", Thinking(ThinkingStyle.MISTRAL)),
        ("harmony", Thinking(ThinkingStyle.HARMONY)),
        ("none", None),
    ],
)
def test_a_template_tells_how_its_model_marks_thoughts(
    checkpoints: dict[str, Checkpoint], name: str, thinking: Thinking | None
) -> None:
    assert asked(checkpoints[name])[1].thinking == thinking


@pytest.mark.parametrize(
    "body",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"enable_thinking": False, "thinking_budget": 9, "reasoning_effort": "high"},
    ],
)
def test_reasoning_is_switched_off(checkpoints: dict[str, Checkpoint], body: dict[str, Any]) -> None:
    prompt, params = asked(checkpoints["qwen"], **body)
    assert prompt == "<user>hi<end><assistant><think>\n\n</think>\n\n"
    assert (params.thinking, params.thinking_budget) == (None, None)


def test_where_a_template_cannot_switch_it_off_the_engine_ends_it(checkpoints: dict[str, Checkpoint]) -> None:
    for name in ("deepseek", "harmony"):
        _, params = asked(checkpoints[name], reasoning_effort="none")
        assert params.thinking is not None
        assert params.thinking_budget == 0
    assert asked(checkpoints["none"], reasoning_effort="none")[1] == asked(checkpoints["none"])[1]


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh"])
def test_an_effort_reaches_the_template(checkpoints: dict[str, Checkpoint], effort: str) -> None:
    known = {"minimal": "low", "xhigh": "high"}.get(effort, effort)
    assert asked(checkpoints["harmony"], reasoning_effort=effort)[0].startswith(f"{known}<user>")
    for name in ("qwen", "deepseek", "none"):
        assert asked(checkpoints[name], reasoning_effort=effort) == asked(checkpoints[name])


@pytest.mark.parametrize("field", ["thinking_budget", "thinking_token_budget"])
def test_a_budget_reaches_the_engine(checkpoints: dict[str, Checkpoint], field: str) -> None:
    assert asked(checkpoints["qwen"], **{field: 7})[1].thinking_budget == 7
    assert asked(checkpoints["none"], **{field: 7})[1].thinking_budget is None


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, {"thinking_budget": 7}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    ],
)
def test_anthropics_names_do_the_same(
    checkpoints: dict[str, Checkpoint], body: dict[str, Any], same: dict[str, Any]
) -> None:
    for name in ("qwen", "deepseek"):
        checkpoint = checkpoints[name]
        given = {"model": checkpoint.name, "max_tokens": 9, "messages": HELLO, **body}
        found = to_message_request(checkpoint, NewMessage.model_validate(given))
        assert isinstance(found.params, SamplingParams)
        prompt, params = asked(checkpoint, **same)
        assert (found.prompt, found.params.parsing, found.params.thinking_budget) == (
            prompt,
            params.parsing,
            params.thinking_budget,
        )


def test_a_prompt_ends_as_asked_for(checkpoints: dict[str, Checkpoint]) -> None:
    qwen = checkpoints["qwen"]
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    prompt, params = asked(qwen, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert prompt == "<user>hi<end><assistant>Well, "
    assert params.thinking is None
    thinking = [*HELLO, {"role": "assistant", "content": "<think>Well, "}]
    prompt, params = asked(qwen, messages=thinking, continue_final_message=True)
    assert prompt == "<user>hi<end><assistant><think>Well, "
    assert params.thinking == OPEN
    assert asked(qwen, add_generation_prompt=False)[0] == "<user>hi"


def test_earlier_reasoning_comes_back_in(checkpoints: dict[str, Checkpoint]) -> None:
    for field in ("reasoning_content", "reasoning"):
        turns = [*HELLO, {"role": "assistant", "content": "a", field: "hm"}, *HELLO]
        assert "<assistant><think>hm</think>a" in asked(checkpoints["qwen"], messages=turns)[0]


def test_verbosity_is_the_templates(checkpoints: dict[str, Checkpoint]) -> None:
    assert asked(checkpoints["wordy"], verbosity="low")[0].startswith("low<user>")
    assert asked(checkpoints["none"], verbosity="medium") == asked(checkpoints["none"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"verbosity": "low"}, "verbosity"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"separate_reasoning": False}, "separate_reasoning"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ],
)
def test_what_cannot_be_is_refused(
    checkpoints: dict[str, Checkpoint], body: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as raised:
        asked(checkpoints["qwen"], **body)
    assert raised.value.param == param
    line = {"model": checkpoints["qwen"].name, "messages": HELLO, **body}
    with pytest.raises(ApiError, match=f"body.{param}"):
        from_line(checkpoints["qwen"], CHAT, line, custom_id="a")


@pytest.mark.parametrize(
    ("text", "parsing", "content", "reasoning"),
    [
        ("<think>\nhm\n</think>\n\nyes", Parsing(Family.HERMES, thinking=TAGS), "yes", "hm"),
        ("hm\n</think>\n\nyes", Parsing(Family.NONE, thinking=OPEN), "yes", "hm"),
        ("yes", Parsing(Family.NONE, thinking=TAGS), "yes", None),
        ("hm", Parsing(Family.NONE, thinking=OPEN), "", "hm"),
        ("hm</think>yes", Parsing(Family.NONE, thinking=OPEN, hides_reasoning=True), "yes", None),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
            Parsing(Family.HARMONY, thinking=Thinking(ThinkingStyle.HARMONY)),
            "yes",
            "hm",
        ),
        (
            "[THINK]hm[/THINK]yes",
            Parsing(Family.MISTRAL, thinking=Thinking(ThinkingStyle.MISTRAL)),
            "yes",
            "hm",
        ),
    ],
)
def test_answers_tell_reasoning_from_content(
    checkpoints: dict[str, Checkpoint], text: str, parsing: Parsing, content: str, reasoning: str | None
) -> None:
    result = replace(RESULT, output=text, parsing=parsing, payload=Payload(num_reasoning_tokens=5))
    body = to_answer(checkpoints["qwen"], CHAT, result, batch_id="batch_ab")
    message = body["choices"][0]["message"]
    assert message["content"] == content
    assert (message.get("reasoning_content"), message.get("reasoning")) == (reasoning, reasoning)
    read = ChatCompletion.model_validate(body)
    assert read.usage is not None
    assert read.usage.completion_tokens_details is not None
    assert read.usage.completion_tokens_details.reasoning_tokens == 5
    growing = GrowingMessage(parsing, seed="s")
    deltas = [one for character in text for one in growing.feed(character, is_end=False)]
    deltas += growing.feed("", is_end=True)
    assert "".join(one.get("content", "") for one in deltas) == content
    assert "".join(one.get("reasoning_content", "") for one in deltas) == (reasoning or "")
