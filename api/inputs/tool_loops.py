"""Turns a conversation whose calls an endpoint makes into its first prompt, its parameters and its loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from api.errors import InvalidInputError
from api.inputs.chat import ToolUse, to_chat
from api.inputs.checkpoint import Checkpoint
from api.inputs.reasoning import ReasoningFields, template_variables
from api.inputs.sampling import refusal
from api.inputs.tools import ToolEndpoint
from worker.chat.conversation import Turn
from worker.settings import Settings
from worker.values.sampling import SamplingParams
from worker.values.tool_loops import OnFailure, ToolLoop
from worker.webhooks.targets import ForbiddenTargetError, Targets

FIELD = "tool_endpoint"


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What this deployment allows tool loops."""

    targets: Targets = Targets()
    max_turns: int = 32
    max_seconds: float = 60.0

    @classmethod
    def of(cls, config: Settings) -> Self:
        """Return the limits that the settings give."""
        targets = Targets(config.allowed_networks, config.webhook_ports)
        return cls(targets, config.max_tool_turns, config.max_tool_seconds)

    def check(self, loop: ToolLoop | None, path: str) -> None:
        """Raise InvalidInputError if a loop exceeds them, or if its address may never be called."""
        if loop is None:
            return
        field = f"{path}.{FIELD}" if path else FIELD
        for name, value, most in (
            ("max_turns", loop.max_turns, self.max_turns),
            ("timeout_seconds", loop.timeout_seconds, self.max_seconds),
        ):
            if value > most:
                param = f"{field}.{name}"
                raise InvalidInputError(
                    f"{param}: must be at most {most:g} on this server, but is {value:g}",
                    param=param,
                    code="out_of_range",
                )
        try:
            self.targets.check_url(loop.url)
        except ForbiddenTargetError as error:
            param = f"{field}.url"
            raise InvalidInputError(f"{param}: {error}", param=param, code="forbidden_url") from error


def refuse_endpoint(endpoint: ToolEndpoint | None) -> None:
    """Raise InvalidInputError if a request whose client waits for it, or polls for it alone, names one."""
    if endpoint is not None:
        raise refusal("", FIELD, "is for requests of batches; make the calls yourself, or send a batch")


def to_loop(
    checkpoint: Checkpoint,
    turns: Sequence[Turn],
    use: ToolUse,
    params: SamplingParams,
    path: str,
    fields: ReasoningFields,
    endpoint: ToolEndpoint,
) -> tuple[str, SamplingParams, ToolLoop]:
    """Return the first prompt of a conversation, the parameters of its free turns, and its loop.

    Raises:
        InvalidInputError: the fields do not fit together, or `to_chat` raises it.

    """
    _check(use, params, path, fields, endpoint)
    prompt, first = to_chat(checkpoint, turns, use, params, path, fields)
    free, forced_turns = first, 0
    if use.is_forced:
        _, free = to_chat(checkpoint, turns, replace(use, choice="auto"), params, path, fields)
        forced_turns = endpoint.forced_turns or 1
    loop = ToolLoop(
        url=endpoint.url,
        messages=list(turns),
        tools=[function.for_template() for function in use.functions],
        variables=template_variables(checkpoint, fields, path),
        max_turns=endpoint.max_turns,
        forced_turns=forced_turns,
        forced=first if use.is_forced else None,
        timeout_seconds=endpoint.timeout_seconds,
        total_seconds=endpoint.total_seconds,
        on_failure=OnFailure(endpoint.on_failure),
    )
    return prompt, free, loop


def _check(
    use: ToolUse, params: SamplingParams, path: str, fields: ReasoningFields, endpoint: ToolEndpoint
) -> None:
    if not use.callable or use.is_older:
        raise refusal(path, FIELD, "requires tools, and a tool_choice other than 'none'")
    if params.num_choices > 1:
        raise refusal(path, FIELD, "requires n and best_of to be 1")
    if params.prompt_logprobs is not None:
        raise refusal(path, FIELD, "cannot be combined with prompt_logprobs")
    if fields.continue_final_message or fields.add_generation_prompt is False:
        raise refusal(path, FIELD, "requires a prompt that begins the model's turn")
    if endpoint.forced_turns is not None and not use.is_forced:
        name = f"{FIELD}.forced_turns"
        raise refusal(path, name, "requires tool_choice to be 'required' or a named function")
