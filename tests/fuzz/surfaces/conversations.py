"""Conversations, through chat templates of the kinds that checkpoints ship."""

from functools import cache

from api.errors import ApiError
from api.inputs.checkpoint import Checkpoint
from api.openai.bodies import Endpoint
from api.openai.requests import from_line
from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.tiny_llama import tiny_tokenizer
from tests.fuzz.chaos import Chaos
from tests.fuzz.surfaces.samples import TOOL_CHAT
from tests.fuzz.surfaces.storable import check_error, check_request
from worker.chat.template import ChatTemplateError
from worker.contract.models import Model

ALTERNATING = """
{% if messages[0]['role'] == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}
{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}
{% for message in turns %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}
{% if loop.index0 == 0 %}{{ bos_token + system + '\n' + message['content'].strip() }}
{% else %}{{ ' ' + message['content'] | trim + eos_token }}{% endif %}
{% endfor %}
"""
THINKING = """
{%- if tools %}{{ tools | tojson }}{%- endif %}
{%- for m in messages %}{%- set content = m.content %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}
{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
# Ask for what is not there, count, divide, add text to numbers, never end.
FAILING = (
    "{% for m in messages %}{{ m['content'][0] }}{{ m.name.upper() }}{% endfor %}",
    "{% for m in messages %}{{ 1 / (m.content | length) }}{% endfor %}{{ messages[0].content + 1 }}",
    "{{ messages[3].content }}{{ messages | map(attribute='role') | join(',') }}",
    "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content | replace('a', m.role) }}{% endfor %}",
    "{% macro turn(m) %}{{ m.role ~ turn(m) }}{% endmacro %}{{ turn(messages[0]) }}",
    "{{ messages.append(1) }}{{ messages[0].__class__.__mro__ }}{{ ''.__class__ }}",
)
TEMPLATES = (TEMPLATE, TEMPLATE, ALTERNATING, THINKING, THINKING, *FAILING)
WORDS = ("hello", "{{", "}}", "{% endfor %}", "{{ 7*7 }}", "</think>", "<|im_end|>", "\n", "{# #}", "%", "a")


# Of the families of models that write calls and thoughts each in their own way.
KNOWING_TOOLS = (
    (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}{{ m.content }}"
        "{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.id }}{{ call.function.arguments.items() }}"
        "{% endfor %}{% endfor %}"
    ),
    (
        "{% for t in tools %}{{ t.function.name + t.function.description }}{% endfor %}{# <tool_call> #}"
        "{% for m in messages %}{{ m.content + (m.reasoning_content or '') }}{% for call in m.tool_calls %}"
        "{{ call.function | tojson }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<think>{% if enable_thinking is false %}</think>{% endif %}{% endif %}"
    ),
    "{{ tools }}{% for m in messages %}<|start_header_id|>ipython{{ m | tojson }}{% endfor %}",
    (
        "{{ tools }}{{ reasoning_effort }}{{ verbosity }}{% for m in messages %}<|channel|>{{ m.content }}"
        "{{ m.thinking }}{% endfor %}"
    ),
    "{{ tools }}<start_function_call>{% for m in messages %}{{ m.content | upper }}{% endfor %}",
)


NEEDED = ("model", "messages", "tools")


@cache
def _checkpoint(template: str) -> Checkpoint:
    return Checkpoint(
        model=Model("tiny", "0" * 32, "0" * 32),
        max_model_len=128,
        vocab_size=320,
        hidden_size=48,
        created=0,
        tokenizer=tiny_tokenizer(),
        end_token_ids=(),
        config={"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}},
    )


def chats(chaos: Chaos) -> bool:
    """Read a conversation with tools and reasoning, through the templates of every family."""
    template = chaos.choice((*KNOWING_TOOLS, TEMPLATE, THINKING))
    keep = chaos.random()
    body = {name: value for name, value in TOOL_CHAT.items() if name in NEEDED or chaos.random() < keep}
    try:
        request = from_line(
            _checkpoint(template), Endpoint.CHAT_COMPLETIONS, chaos.spoiled(body), custom_id=None
        )
    except ApiError as error:
        check_error(error)
        return False
    assert request.params is not None
    check_request(request, request.params)
    return True


def conversations(chaos: Chaos) -> bool:
    """Write a conversation down: what a message says is never read as a template."""
    messages = [
        {
            "role": chaos.choice(("user", "assistant", "system", "alien", chaos.text())),
            "content": chaos.line_of(WORDS),
        }
        for _ in range(chaos.choice((1, 1, 2, 3, 5)))
    ]
    template = chaos.choice(TEMPLATES)
    try:
        text = _checkpoint(template).template.render(messages)
    except ChatTemplateError as error:
        assert str(error)
        return False
    if template in {TEMPLATE, THINKING}:
        assert all(m["content"] in text for m in messages if "</think>" not in m["content"])
    return True
