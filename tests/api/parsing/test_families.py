"""Chat templates, in the parts that tell their families apart."""

import pytest

from api.parsing.families import find_family
from worker.values.parsing import Family


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{%- if tools %}For each call return <tool_call>\n{{ x }}\n</tool_call>{% endif %}", Family.HERMES),
        (
            (
                "{{ '<|start_header_id|>ipython<|end_header_id|>' }}"
                """Respond in the format {"name": function name, "parameters": dictionary}"""
            ),
            Family.LLAMA,
        ),
        ("{%- if message.tool_calls %}[TOOL_CALLS][{{ x }}]{% endif %}", Family.MISTRAL),
        ("{{ '<tool_call>\n<function=' + call.name + '>' }}", Family.CODER),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}", Family.DEEPSEEK),
        ("{{ '<start_function_call>call:' + name }}", Family.GEMMA),
        ("{{ '<|tool_call>call:' + name }}", Family.GEMMA),
        ("{{ '<|start|>assistant<|channel|>analysis<|message|>' }}", Family.HARMONY),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", Family.NONE),
        (None, Family.NONE),
    ],
)
def test_a_template_names_its_family(template: str | None, family: Family) -> None:
    assert find_family(template, (), None) is family


def test_without_a_template_a_token_or_the_type_names_it() -> None:
    assert find_family(None, {"[TOOL_CALLS]": 5}, "mistral") is Family.MISTRAL
    assert find_family(None, (), "gpt_oss") is Family.HARMONY
