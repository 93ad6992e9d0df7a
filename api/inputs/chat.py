"""Turns a conversation, and the tools that it offers, into a prompt and the parameters of its output."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from api.inputs.checkpoint import Checkpoint
from api.inputs.formats import check_format
from api.inputs.reasoning import ReasoningFields, template_variables, with_reasoning
from api.inputs.sampling import refusal
from api.inputs.schema import storable
from api.inputs.tools import FunctionDefinition, NamedToolChoice, ToolCall, ToolChoice, ToolFields
from api.parsing.grammars import WITHOUT_GRAMMAR, CallGrammar, json_rule
from worker.chat.conversation import REASONING, Turn, to_prompt
from worker.chat.template import ChatTemplateError
from worker.values.endless_schema import is_endless
from worker.values.grammar import ENDLESS, JSON_WHITESPACE, GrammarError
from worker.values.parsing import Family, Parsing
from worker.values.sampling import FormatKind, OutputFormat, SamplingParams


class SentMessage(Protocol):
    """A message as a client sends it."""

    @property
    def role(self) -> str:
        """Whose it is."""

    @property
    def content(self) -> object:
        """What it says; None: nothing."""

    @property
    def text(self) -> str:
        """The content as one text."""

    @property
    def tool_calls(self) -> Sequence[ToolCall] | None:
        """The calls of tools that it makes."""

    @property
    def past_reasoning(self) -> str | None:
        """What the model wrote before it."""

    @property
    def tool_call_id(self) -> str | None:
        """The call that it answers."""

    @property
    def name(self) -> str | None:
        """The function that it answers."""


NO_WISHES = ReasoningFields()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request offers, and what it wants of them."""

    functions: Sequence[FunctionDefinition] = ()
    choice: ToolChoice = "auto"
    is_parallel: bool = True
    is_older: bool = False  # asked with `functions` and `function_call`
    field: str = "tools"  # that has them

    @classmethod
    def of(cls, fields: ToolFields, path: str) -> "ToolUse":
        """Read the fields of a body.

        Raises:
            InvalidInputError: they do not fit together; `param` is the field's name after `path`.

        """
        functions = [tool.function for tool in fields.tools or ()]
        choice = fields.tool_choice or "auto"
        use = cls(functions, choice, fields.parallel_tool_calls is not False)
        use.check(path, "tool_choice")
        return use

    def check(self, path: str, choice_field: str) -> None:
        """Raise InvalidInputError unless the names differ and the choice is among them."""
        names = [function.name for function in self.functions]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise refusal(path, f"{self.field}[{i}]", f"another one has the name {name!r} too")
        if self.choice in ("none", "auto"):
            return
        if not names:
            raise refusal(path, choice_field, f"requires {self.field}")
        if isinstance(self.choice, NamedToolChoice) and self.choice.function.name not in names:
            raise refusal(
                path, choice_field, f"names {self.choice.function.name!r}, which is not in {self.field}"
            )

    @property
    def callable(self) -> Sequence[FunctionDefinition]:
        """The functions that the output may call."""
        if self.choice == "none":
            return ()
        if isinstance(self.choice, NamedToolChoice):
            return [one for one in self.functions if one.name == self.choice.function.name]
        return self.functions

    @property
    def is_forced(self) -> bool:
        """Whether the output must be a call."""
        return self.choice not in ("none", "auto")


def to_turns(messages: Sequence[SentMessage], path: str = "") -> list[dict[str, Any]]:
    """Return a conversation as chat templates take it.

    Raises:
        InvalidInputError: a message says nothing, or calls tools without being the assistant's.

    """
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of the functions that were called, by the call's id
    for i, message in enumerate(messages):
        if message.content is None and not message.tool_calls:
            raise refusal(path, f"messages[{i}].content", "is required")
        if message.tool_calls and message.role != "assistant":
            raise refusal(path, f"messages[{i}].tool_calls", "only a message of role assistant has them")
        turn: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.tool_calls:
            turn["tool_calls"] = [call.for_template() for call in message.tool_calls]
            names |= {call.id: call.function.name for call in message.tool_calls}
        if message.past_reasoning:
            turn |= dict.fromkeys(REASONING, message.past_reasoning)
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            turn |= {"tool_call_id": call_id, "name": message.name or names.get(call_id, "")}
        turns.append(turn)
    return turns


def to_chat(
    checkpoint: Checkpoint,
    turns: Sequence[Turn],
    use: ToolUse,
    params: SamplingParams,
    path: str = "",
    fields: ReasoningFields = NO_WISHES,
) -> tuple[str, SamplingParams]:
    """Return the prompt of a conversation, and `params` with what tools and reasoning make of the output.

    Raises:
        InvalidInputError: the model cannot take these messages, tools or wishes; `param` is the field's name
            after `path`.

    """
    is_continued = bool(fields.continue_final_message)
    render = partial(
        checkpoint.template.render,
        variables=template_variables(checkpoint, fields, path),
        begins_turn=fields.add_generation_prompt is not False,
        continues_last=is_continued,
    )
    tools = [function.for_template() for function in (use.functions if use.choice != "none" else ())]
    try:
        # The arguments of a call can hide what cannot be stored.
        prompt = storable(to_prompt(checkpoint.template, checkpoint.family, turns, tools, render))
    except (ChatTemplateError, ValueError) as error:
        raise refusal(path, "messages", str(error)) from error
    except RecursionError as error:
        raise refusal(path, "messages", "the arguments of a call are nested too deeply") from error
    family = checkpoint.family
    if tools and not checkpoint.template.knows_tools:
        family = Family.HERMES  # as INSTRUCTION says
    params = _with_tools(checkpoint, family, use, params, path)
    continued = str(turns[-1]["content"]) if is_continued else None
    return prompt, with_reasoning(checkpoint, fields, params, prompt=prompt, continued=continued)


def _with_tools(
    checkpoint: Checkpoint, family: Family, use: ToolUse, params: SamplingParams, path: str
) -> SamplingParams:
    if not use.callable:
        if family is not Family.HARMONY:
            return params
        return replace(params, parsing=Parsing(family), skip_special_tokens=False)
    if use.is_forced and family in WITHOUT_GRAMMAR:
        family = Family.HERMES  # whose arguments are JSON, which a grammar can hold to a schema
    found = _to_format(checkpoint, family, use, params.format, path)
    return replace(
        params,
        format=params.format if found is None else found,
        parsing=Parsing(
            family,
            tuple(one.name for one in use.callable),
            typed=_typed(use.callable) if family is Family.CODER else (),
            is_older=use.is_older,
        ),
        skip_special_tokens=False,
    )


def _typed(functions: Sequence[FunctionDefinition]) -> tuple[str, ...]:
    """Return the parameters that are no texts, as `function.parameter`."""
    found: list[str] = []
    for function in functions:
        properties = (function.parameters or {}).get("properties")
        if isinstance(properties, dict):
            found += [
                f"{function.name}.{name}"
                for name, schema in properties.items()
                if isinstance(schema, dict) and not _is_text(schema)
            ]
    return tuple(found)


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema, or a branch of it, is one of texts."""
    listed = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    kinds = [one.get("type") for one in (schema, *chain(*listed)) if isinstance(one, dict)]
    values = [schema.get("const"), *(schema["enum"] if isinstance(schema.get("enum"), list) else ())]
    return any("string" in kind if isinstance(kind, list) else kind == "string" for kind in kinds) or any(
        isinstance(value, str) for value in values
    )


def _to_format(
    checkpoint: Checkpoint, family: Family, use: ToolUse, content: OutputFormat | None, path: str
) -> OutputFormat | None:
    """Return the format of an output that may be a call; None: the one that it has without tools."""
    for i, function in enumerate(use.functions):
        if function.parameters and is_endless(function.parameters):
            raise refusal(path, f"{use.field}[{i}]", f"its parameters: {ENDLESS}")
    grammar = CallGrammar(
        family,
        [function.for_grammar() for function in use.callable],
        checkpoint.special_tokens,
        use.is_parallel and not isinstance(use.choice, NamedToolChoice),
    )
    source = grammar.forced() if use.is_forced else grammar.offered(_content_rule(content, path))
    if source is None:
        return None
    found = OutputFormat(FormatKind.LARK, source)
    try:
        check_format(found, checkpoint)
    except GrammarError as error:
        raise refusal(path, use.field, str(error).partition(": ")[2]) from error
    return found


def _content_rule(content: OutputFormat | None, path: str) -> str | None:
    """Return the rule of content that must have a format besides calls that need not."""
    if content is None:
        return None
    options = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    if content.kind is FormatKind.JSON_OBJECT:
        return json_rule({"type": "object", **options})
    if content.kind is FormatKind.JSON_SCHEMA:
        schema = json.loads(str(content.source))
        return json_rule({**schema, **options})
    raise refusal(path, "tools", f"cannot be combined with an output format of kind {content.kind.value}")
