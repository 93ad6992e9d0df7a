"""Holds the demo model's chat template: a turn is its role's name, a line break and its text.

The assistant's turns end with the end token, so an answer ends by itself.
"""

import json
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

BOS, EOS = "<|bos|>", "<|eos|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages if message.role in ['system', 'developer'] %}"
    "{{ 'System:\\n' + message.content + '\\n\\n' }}"
    "{% endfor %}"
    "{% if tools %}{{ 'Functions:\\n' }}"
    "{% for tool in tools %}{{ tool.function | tojson }}{{ '\\n' }}{% endfor %}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ 'Assistant:\\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}"
    "{% if message.content or not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ '<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' }}"
    "{% endfor %}{{ eos_token + '\\n\\n' }}"
    "{% elif message.role == 'tool' %}{{ 'Result:\\n' + message.content + '\\n\\n' }}"
    "{% elif message.role not in ['system', 'developer'] %}{{ 'User:\\n' + message.content + '\\n\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}"
)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]], *, begins_turn: bool) -> str:
    """Return a conversation as text, ready for the assistant's turn if it `begins_turn`."""
    return _TEMPLATE.render(
        messages=messages,
        tools=tools,
        add_generation_prompt=begins_turn,
        bos_token=BOS,
        eos_token=EOS,
    )


_ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
# Jinja's own filter escapes JSON for HTML; the service and transformers write it as it is.
_ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_TEMPLATE = _ENVIRONMENT.from_string(CHAT_TEMPLATE)
