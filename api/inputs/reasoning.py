"""Defines the fields that say how a model reasons before its answer, and what they make of a request."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from api.inputs.checkpoint import Checkpoint
from api.inputs.sampling import refusal
from api.inputs.schema import JsonObject, Schema
from worker.values.parsing import Family, Parsing
from worker.values.sampling import RANGES, FormatKind, SamplingParams
from worker.values.thinking import Thinking, ThinkingStyle

# Variables of chat templates that the server sets itself.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
SWITCHES = ("enable_thinking", "thinking")  # variables of templates that switch reasoning on and off
# What gpt-oss takes for the efforts that it does not know.
HARMONY_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high"}
ThinkingBudget = Annotated[int, RANGES["thinking_budget"]]


class ReasoningFields(Schema):
    """How a model reasons before its answer, and how its prompt ends."""

    chat_template_kwargs: JsonObject | None = Field(
        default=None, description="Variables of the model's chat template, such as `enable_thinking`."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None,
        description="`none` switches reasoning off; the others reach the chat template, if it knows them.",
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description="For the chat template, if it knows it."
    )
    enable_thinking: bool | None = Field(default=None, description="Switches reasoning on or off.")
    thinking_budget: ThinkingBudget | None = Field(
        default=None, description="Most tokens of reasoning; then the model has to answer."
    )
    thinking_token_budget: ThinkingBudget | None = Field(
        default=None, description="vLLM's name of `thinking_budget`."
    )
    include_reasoning: bool | None = Field(default=None, description="false: the answer has no reasoning.")
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: Literal[True] | None = None
    continue_final_message: bool | None = Field(
        default=None, description="The output continues the last message, instead of a new one."
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="false: the prompt does not begin the model's turn."
    )

    @property
    def budget(self) -> int | None:
        """Most tokens of reasoning; None: as many as the model likes."""
        return self.thinking_token_budget if self.thinking_budget is None else self.thinking_budget

    @property
    def is_enabled(self) -> bool | None:
        """Whether the model is to reason; None: as its template likes."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"


def template_variables(checkpoint: Checkpoint, fields: ReasoningFields, path: str) -> dict[str, Any]:
    """Return the variables of the chat template that a body sets.

    Raises:
        InvalidInputError: a field is wrong; `param` is its name after `path`.

    """
    given = dict(fields.chat_template_kwargs or {})
    if wrong := given.keys() & OWN_VARIABLES:
        raise refusal(path, f"chat_template_kwargs.{min(wrong)}", "is set by the server")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise refusal(path, "add_generation_prompt", "cannot be combined with continue_final_message")
    known = checkpoint.template.variables
    found: dict[str, Any] = {}
    if fields.is_enabled is not None:
        found = {name: fields.is_enabled for name in SWITCHES if name in known}
    effort = fields.reasoning_effort
    if effort is not None and "reasoning_effort" in known:
        is_harmony = checkpoint.family is Family.HARMONY
        if not (is_harmony and effort == "none"):
            found["reasoning_effort"] = HARMONY_EFFORTS.get(effort, effort) if is_harmony else effort
    if fields.verbosity is not None:
        if "verbosity" in known:
            found["verbosity"] = fields.verbosity
        elif fields.verbosity != "medium":
            raise refusal(path, "verbosity", "the model's chat template knows none; ask for it in a message")
    return found | given


def with_reasoning(
    checkpoint: Checkpoint,
    fields: ReasoningFields,
    params: SamplingParams,
    *,
    prompt: str,
    continued: str | None = None,
) -> SamplingParams:
    """Return parameters that tell the reasoning from the answer, if the model reasons after this prompt.

    `continued` is the content of the message that the output continues.
    """
    thinking = _after(prompt, continued, checkpoint.thinking_style)
    known = checkpoint.template.variables
    is_harmony = checkpoint.family is Family.HARMONY
    if thinking is not None and params.format is not None:
        is_certain = thinking.is_open or is_harmony or not known.isdisjoint(SWITCHES)
        # The grammars of gpt-oss's calls begin at its reasoning.
        if not is_certain or (params.format.kind is FormatKind.LARK and is_harmony):
            thinking = None
    parsing = params.parsing
    if thinking is not None:
        parsing = replace(parsing or Parsing(checkpoint.family), thinking=thinking)
    if parsing is None:
        return params
    if fields.include_reasoning is False:
        parsing = replace(parsing, hides_reasoning=True)
    budget = fields.budget
    switches = SWITCHES if is_harmony else (*SWITCHES, "reasoning_effort")
    if fields.is_enabled is False and known.isdisjoint(switches):
        budget = 0
    are_special = thinking is not None and thinking.closing in checkpoint.special_tokens
    return replace(
        params,
        parsing=parsing,
        thinking_budget=None if thinking is None else budget,
        skip_special_tokens=params.skip_special_tokens and not are_special,
    )


def _after(prompt: str, continued: str | None, style: ThinkingStyle | None) -> Thinking | None:
    """Return the marks of the thoughts that may follow a prompt; None if it has closed them."""
    if style is None:
        return None
    marks = Thinking(style)
    if continued is not None and continued.strip():
        is_open = continued.rfind(marks.opening) > continued.rfind(marks.closing)
        return Thinking(style, is_open=True) if is_open else None
    ending = prompt.rstrip()
    if ending.endswith(marks.closing):
        return None
    return Thinking(style, is_open=ending.endswith(marks.opening))
