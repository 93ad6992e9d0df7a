"""Turns a Result into the body that OpenAI's clients read."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from api.batches.tool_turns import tool_turns_of
from api.generate.outputs import choices_of, num_reasoning_tokens
from api.inputs.checkpoint import Checkpoint, NumberSpelling, Spelling
from api.openai.answer_schemas import ModelAnswer
from api.openai.bodies import Endpoint
from api.openai.logprobs import TextOffsets, to_chat_logprobs, to_completion_logprobs, to_prompt_logprobs
from api.parsing.messages import finish_reason, to_message
from worker.contract.processes import ModelState
from worker.store.requests.models import ServedModelView
from worker.store.requests.result_views import ResultView
from worker.values.caching import Source
from worker.values.logprobs import Logprobs
from worker.values.parsing import Parsing
from worker.values.requests import Prompt
from worker.values.results import Choice, Payload, to_floats

ID_PREFIXES = {Endpoint.CHAT_COMPLETIONS: "chatcmpl-", Endpoint.COMPLETIONS: "cmpl-"}
OBJECTS = {Endpoint.CHAT_COMPLETIONS: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
MODEL_OWNER = "headrace"


def to_answer(
    checkpoint: Checkpoint, endpoint: Endpoint, result: ResultView, *, batch_id: str
) -> dict[str, Any]:
    """Return the body of a completed result. Its id is the same every time."""
    payload = result.payload or Payload()
    model = result.model
    made_by = {
        "model": checkpoint.name if model is None else model.name,
        "system_fingerprint": None if model is None else system_fingerprint(model),
    }
    if endpoint is Endpoint.EMBEDDINGS:
        return {
            "object": "list",
            **made_by,
            "data": [
                {"object": "embedding", "index": index, "embedding": _to_vector(vector, payload)}
                for index, vector in enumerate(payload.embeddings)
            ],
            "usage": {"prompt_tokens": result.num_prompt_tokens, "total_tokens": result.num_prompt_tokens},
            **_origin(result),
        }
    spelling = checkpoint.spelling_of(None if model is None else model.fingerprint)
    writer = _Writer(spelling, payload, result.parsing, answer_id(endpoint, batch_id, result.position))
    choices = choices_of(result)
    is_chat = endpoint is Endpoint.CHAT_COMPLETIONS
    return {
        "id": writer.own_id,
        "object": OBJECTS[endpoint],
        "created": int(result.created_at.timestamp()),
        **made_by,
        "choices": writer.chat_choices(choices) if is_chat else writer.completion_choices(choices),
        "usage": to_usage(result),
        **(writer.of_prompt(0) if is_chat else {}),
        **tool_turns_of(result),
        **_origin(result),
    }


def system_fingerprint(model: ServedModelView) -> str:
    """Return a model's identity besides its name: its revision, its weights' format, and its dtype."""
    return f"{model.fingerprint}-{model.weight_format}-{model.dtype}"


def _origin(result: ResultView) -> dict[str, Any]:
    """Return the source fields of an answer that was not computed for its request."""
    if result.source is Source.ENGINE:
        return {}
    return {"source": result.source} | (
        {} if result.similarity is None else {"similarity": result.similarity}
    )


def answer_id(endpoint: Endpoint, batch_id: str, position: int) -> str:
    """Return the id of a completion."""
    return f"{ID_PREFIXES[endpoint]}{batch_id.removeprefix('batch_')}-{position}"


def to_usage(result: ResultView) -> dict[str, Any]:
    """Return the tokens of a completion, including those of choices that `best_of` did not keep."""
    details = {
        "prompt_tokens_details": {"cached_tokens": result.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning_tokens(result)},
    }
    return to_usage_so_far(result.num_prompt_tokens, result.num_output_tokens) | details


def to_usage_so_far(num_prompt_tokens: int, num_output_tokens: int) -> dict[str, Any]:
    """Return the tokens of a completion that still grows."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
    }


def to_model(checkpoint: Checkpoint, name: str, status: ModelState) -> ModelAnswer:
    """Return the served model as /v1/models shows it under one of its names."""
    return ModelAnswer(
        id=name,
        object="model",
        created=checkpoint.created,
        owned_by=MODEL_OWNER,
        root=checkpoint.name,
        parent=None,
        max_model_len=checkpoint.max_model_len,
        type="model",
        display_name=name,
        created_at=datetime.fromtimestamp(checkpoint.created, UTC),
        lifecycle="active",
        max_input_tokens=checkpoint.max_model_len,
        status=status,
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the choices of one result."""

    spelling: Spelling
    payload: Payload
    parsing: Parsing | None
    own_id: str  # of the answer

    def chat_choices(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """Return the choices of a chat."""
        return [self._chat_choice(index, choice) for index, choice in enumerate(choices)]

    def completion_choices(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """Return the choices of all prompts, each after the text of its prompt if the answer repeats it."""
        found = []
        each = len(choices) // self._num_prompts
        for index, choice in enumerate(choices):
            part = index // each
            echo = self._echo(part)
            found.append(
                {
                    "index": index,
                    "text": echo + choice.text,
                    "logprobs": self._completion_logprobs(part, echo, choice),
                    "finish_reason": choice.finish_reason,
                    **self.of_prompt(part),
                    **self._token_ids(choice),
                }
            )
        return found

    def of_prompt(self, part: int) -> dict[str, Any]:
        """Return what was asked for of the prompt's tokens, unless the logprobs of an echo have it."""
        payload, found = self.payload, dict[str, Any]()
        if payload.prompt_logprobs and not self._has_echoed_logprobs:
            found["prompt_logprobs"] = to_prompt_logprobs(self.spelling, payload.prompt_logprobs[part])
        if payload.has_token_ids and payload.prompt_token_ids:
            found["prompt_token_ids"] = list(payload.prompt_token_ids[part])
        return found

    def _chat_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        logprobs = choice.logprobs
        message = to_message(choice.text, self.parsing, seed=call_seed(self.own_id, index))
        has_calls = "tool_calls" in message or "function_call" in message
        return {
            "index": index,
            "message": message,
            "logprobs": None if logprobs is None else to_chat_logprobs(self._token_spelling, logprobs),
            "finish_reason": finish_reason(choice.finish_reason, self.parsing, has_calls=has_calls),
            **self._token_ids(choice),
        }

    @property
    def _num_prompts(self) -> int:
        payload = self.payload
        return max(1, *map(len, (payload.echoes, payload.prompt_logprobs, payload.prompt_token_ids)))

    @property
    def _has_echoed_logprobs(self) -> bool:
        choices = self.payload.choices
        return bool(self.payload.echoes and choices) and choices[0].logprobs is not None

    @property
    def _token_spelling(self) -> Spelling:
        return NumberSpelling() if self.payload.has_tokens_as_ids else self.spelling

    def _echo(self, part: int) -> str:
        return to_echo(self.spelling, self.payload.echoes[part]) if self.payload.echoes else ""

    def _token_ids(self, choice: Choice) -> dict[str, Any]:
        return {"token_ids": list(choice.token_ids)} if self.payload.has_token_ids else {}

    def _completion_logprobs(self, part: int, echo: str, choice: Choice) -> dict[str, Any] | None:
        logprobs = choice.logprobs
        if logprobs is None:
            return None
        offsets = TextOffsets(self.spelling, start=len(echo), text=choice.text).push(_ids(logprobs))
        first = None
        if self._has_echoed_logprobs:
            logprobs = self.payload.prompt_logprobs[part] + logprobs
            prompt = self.payload.prompt_token_ids[part]
            first = prompt[0]
            offsets = TextOffsets(self.spelling, text=echo).push(prompt) + offsets
        return to_completion_logprobs(self._token_spelling, logprobs, offsets, first_token_id=first)


def call_seed(own_id: str, index: int) -> str:
    """Return what the ids of the calls of a choice follow from: the answer's id and the choice's index."""
    return f"{own_id}-{index}"


def to_echo(spelling: Spelling, prompt: Prompt) -> str:
    """Return the text of a prompt that an answer repeats."""
    return prompt if isinstance(prompt, str) else spelling.text_of(prompt)


def _ids(logprobs: Logprobs) -> list[int]:
    return [token.token_id for token in logprobs]


def _to_vector(vector: bytes, payload: Payload) -> list[float] | str:
    return base64.b64encode(vector).decode() if payload.is_base64 else to_floats(vector)
