"""Render the chat template of a checkpoint, a program that may fail in many ways."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from jinja2.meta import find_undeclared_variables

from worker.chat.environment import ENVIRONMENT, TEMPLATE_FAILURES, compiled

# Template variables that a tokenizer_config.json may set, as strings or as {"content": ...}.
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
CUT = "\U0010fffc"  # where a prompt that continues a message ends; in no text


class ChatTemplateError(Exception):
    """The model's chat template cannot turn the messages into a prompt."""


class ChatTemplate:
    """The chat template of one checkpoint, if it has one."""

    def __init__(self, model_name: str, config: Mapping[str, Any]) -> None:
        """Compile the template of a tokenizer_config.json; raises TemplateError for a wrong one."""
        self._model_name = model_name
        self.tokens = {key: _token_text(config.get(key)) for key in TOKEN_NAMES}
        self.source, self.tool_source = _sources(config.get("chat_template"))
        self._template = None if self.source is None else compiled(self.source)
        self._tool_template = None if self.tool_source is None else compiled(self.tool_source)
        # What it reads.
        self.variables = frozenset(
            () if self.tool_source is None else find_undeclared_variables(ENVIRONMENT.parse(self.tool_source))
        )

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the template of a model directory; raises OSError, ValueError or TemplateError."""
        file = directory / "tokenizer_config.json"
        config = json.loads(file.read_text("utf-8")) if file.exists() else {}
        return cls(directory.name, config | own_template(directory))

    @property
    def knows_tools(self) -> bool:
        """Whether it writes the definitions of tools into its prompt."""
        return "tools" in self.variables

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
        begins_turn: bool = True,
        continues_last: bool = False,
    ) -> str:
        """Return the prompt for a conversation, ready for the assistant's turn if it `begins_turn`.

        A template that does not know tools, or one of the `variables`, ignores them. With `continues_last`
        the prompt ends where the content of the last message does.

        Raises:
            ChatTemplateError: the model has no chat template, or it refuses these messages.

        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise ChatTemplateError(
                f"model {self._model_name} has no chat template, so it takes no messages; send a `prompt`"
                " instead"
            )
        if continues_last:
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{CUT}"}]
        try:
            prompt = template.render(
                self.tokens
                | dict(variables)
                | {
                    "messages": messages,
                    "tools": list(tools) or None,
                    "add_generation_prompt": begins_turn and not continues_last,
                }
            )
        except TEMPLATE_FAILURES as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        if not continues_last:
            return prompt
        continued, mark, _ = prompt.rpartition(CUT)
        if not mark:
            raise ChatTemplateError("the model's chat template leaves out the last message")
        return continued


def own_template(directory: Path) -> dict[str, str]:
    """Return the template in a file of its own, which goes before that of tokenizer_config.json."""
    file = directory / "chat_template.jinja"
    return {"chat_template": file.read_text("utf-8")} if file.exists() else {}


def _sources(given: object) -> tuple[str | None, str | None]:
    """Return the chat template, and the one for conversations with tools; a list has both by name."""
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        source = named.get("default") or next(iter(named.values()), None)
        both = source, named.get("tool_use") or source
    else:
        both = given, given
    return tuple(one if isinstance(one, str) else None for one in both)  # type: ignore[return-value]


def _token_text(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
