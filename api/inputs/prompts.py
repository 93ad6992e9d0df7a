"""Checks prompts against the served model: their bytes, their tokens, the context that they leave."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from api.errors import InvalidInputError
from api.inputs.checkpoint import Checkpoint
from worker.store.requests.requests import NewRequest
from worker.values.requests import Params
from worker.values.sampling import SamplingParams


def fit(
    checkpoint: Checkpoint,
    requests: Sequence[NewRequest],
    *,
    default: SamplingParams,
    max_prompt_bytes: int,
    name: Callable[[int], str],
) -> list[NewRequest]:
    """Count the prompts' tokens, check them against the context, cap max_tokens at what is left of it.

    Only a max_tokens that the client did not set is capped. `default` holds the parameters of requests
    without their own; `name` returns the path of the field that held a request's prompts. A request for
    another served model than the checkpoint's is checked against that one.

    Raises:
        InvalidInputError: a prompt cannot be run.

    """
    counts: list[list[int]] = [[0] * len(request.prompts) for request in requests]
    served = [checkpoint.serving(request.model) for request in requests]
    texts: dict[tuple[Checkpoint, bool], list[tuple[int, int, str]]] = defaultdict(list)
    for i, request in enumerate(requests):
        for j, prompt in enumerate(request.prompts):
            if not isinstance(prompt, str):
                check_token_ids(served[i], prompt, _path(request, name(i), j))
                counts[i][j] = len(prompt)
            else:
                check_size(prompt, max_prompt_bytes, _path(request, name(i), j))
                texts[served[i], request.add_special_tokens].append((i, j, prompt))
    for (its, has_special), chosen in texts.items():
        found = its.count_tokens([text for *_, text in chosen], add_special_tokens=has_special)
        for (i, j, _), count in zip(chosen, found, strict=True):
            counts[i][j] = count
    return [
        _fitted(served[i], request, request.params or default, counts[i], name(i))
        for i, request in enumerate(requests)
    ]


def check_size(prompt: str, max_prompt_bytes: int, path: str) -> None:
    """Raise InvalidInputError for a prompt that is too long to count its tokens."""
    if len(prompt) > max_prompt_bytes or len(prompt.encode()) > max_prompt_bytes:
        raise InvalidInputError(
            f"{path}: the prompt is longer than the limit of {max_prompt_bytes} bytes",
            param=path,
            code="prompt_too_long",
        )


def _fitted(
    checkpoint: Checkpoint, request: NewRequest, params: Params, counts: Sequence[int], name: str
) -> NewRequest:
    context = checkpoint.max_model_len
    is_generating = isinstance(params, SamplingParams) and request.max_tokens > 0
    must_fit = isinstance(params, SamplingParams) and params.must_fit
    if isinstance(params, SamplingParams):
        counts = [params.kept_prompt_tokens(count, context) for count in counts]
    for j, count in enumerate(counts):
        path = _path(request, name, j)
        if count == 0:
            raise InvalidInputError(f"{path}: the prompt has no tokens; it needs at least one", param=path)
        limit = f"the context of model {checkpoint.name} is {context} tokens"
        if count + is_generating > context:
            rest = ", and the output needs at least one" if is_generating else ""
            problem = f"the prompt has {count} tokens, but {limit}{rest}. Shorten the prompt."
        elif must_fit and count + request.max_tokens > context:
            problem = (
                f"the prompt has {count} tokens and max_tokens is {request.max_tokens}, but {limit}."
                f" Set max_tokens to at most {context - count}, shorten the prompt, or send"
                " truncate_prompt_tokens: -1 to lose the beginning of it."
            )
        else:
            continue
        raise InvalidInputError(f"{path}: {problem}", param=path, code="context_length_exceeded")
    max_tokens = min(request.max_tokens, context - min(counts))
    return replace(request, num_prompt_tokens=sum(counts), max_tokens=max_tokens)


def check_token_ids(checkpoint: Checkpoint, token_ids: Sequence[int], path: str) -> None:
    """Raise InvalidInputError if a token is not in the model's vocabulary."""
    most = checkpoint.vocab_size - 1
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) <= most:
        wrong = next(token for token in token_ids if not 0 <= token <= most)
        raise InvalidInputError(f"{path}: token id {wrong} is not in the vocabulary, 0 to {most}", param=path)


def _path(request: NewRequest, name: str, index: int) -> str:
    return name if len(request.prompts) == 1 else f"{name}[{index}]"
