"""Conversations, through chat templates of the kinds that checkpoints ship."""

from functools import cache

from api.inputs.checkpoint import ChatTemplateError, Checkpoint
from tests.fixtures.checkpoint import TEMPLATE
from tests.fixtures.tiny_llama import tiny_tokenizer
from tests.fuzz.chaos import Chaos
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
        text = _checkpoint(template).render_chat(messages)
    except ChatTemplateError as error:
        assert str(error)
        return False
    if template in {TEMPLATE, THINKING}:
        assert all(m["content"] in text for m in messages if "</think>" not in m["content"])
    return True
