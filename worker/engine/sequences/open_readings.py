"""Turns a reading request into Sequences, and their readouts into its outcome."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from typing import Any

from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import InvalidRequestError, TooLongError
from worker.engine.requests.generation import Reading, ReadingRequest
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.requests.stats import ModelInfo
from worker.engine.sequences.readout import PooledReadout, Readout, ScoredReadout
from worker.engine.sequences.sequence import Sequence, device_seconds, first_start
from worker.engine.sequences.vocabulary import check_token_ids
from worker.values.requests import Pooling
from worker.values.sampling import SamplingParams

NO_OUTPUT = SamplingParams(max_tokens=1, temperature=0.0)  # no token is generated, but 1 is the minimum


class OpenEmbedding:
    """An embedding request as one Sequence; raises InvalidRequestError naming the fault in the request."""

    def __init__(self, request: EmbeddingRequest, info: ModelInfo, arrivals: Iterator[int]) -> None:
        prompt = _checked(request.prompt, "the prompt", info)
        _check_length(len(prompt), "the prompt has", info)
        dimensions = request.params.dimensions
        if dimensions is not None and dimensions > info.hidden_size:
            raise InvalidRequestError(
                f"dimensions is {dimensions}, but the model's vectors have only {info.hidden_size}"
            )
        is_mean = request.params.pooling is Pooling.MEAN
        self.request = request
        self.num_prompt_tokens = len(prompt)
        self._readout = PooledReadout(0 if is_mean else len(prompt) - 1, len(prompt))
        # A mean needs every row, so it cannot use the prefix cache; its own Blocks there would evict Blocks
        # that others can use.
        self.sequences = [_sequence(request, prompt, self._readout, next(arrivals), is_shareable=not is_mean)]

    def outcome(self) -> Embedding:
        """Return the embedding; call it after every row was read."""
        params = self.request.params
        return Embedding(
            self.request.id,
            self._readout.vector(params.dimensions, is_normalised=params.normalize),
            self.num_prompt_tokens,
            self.sequences[0].num_cached_tokens or 0,
            **_times(self.sequences),
        )


class OpenScoring:
    """A scoring request, with one Sequence for each distinct continuation less its last token.

    The last token needs no forward: the row before it gives its logprob. Raises InvalidRequestError naming
    the fault in the request.
    """

    def __init__(self, request: ScoringRequest, info: ModelInfo, arrivals: Iterator[int]) -> None:
        prompt = _checked(request.prompt, "the prompt", info)
        self._continuations: list[list[int]] = []
        last_tokens: dict[tuple[int, ...], list[int]] = {}  # by the tokens before them
        for index, continuation in enumerate(request.continuations):
            name = f"continuations[{index}]"
            token_ids = _checked(continuation, name, info)
            _check_length(len(prompt) + len(token_ids), f"the prompt and {name} have", info)
            self._continuations.append(token_ids)
            last_tokens.setdefault(tuple(token_ids[:-1]), []).append(token_ids[-1])
        self.request = request
        self.num_prompt_tokens = len(prompt)
        self._readouts = {
            head: ScoredReadout(len(prompt) - 1, head, tuple(tokens)) for head, tokens in last_tokens.items()
        }
        self.sequences = [
            _sequence(request, [*prompt, *head], readout, next(arrivals))
            for head, readout in self._readouts.items()
        ]

    def outcome(self) -> Scores:
        """Return the scores; call it after every row was read."""
        found = {head: iter(readout.scores()) for head, readout in self._readouts.items()}
        return Scores(
            self.request.id,
            tuple(next(found[tuple(token_ids[:-1])]) for token_ids in self._continuations),
            self.num_prompt_tokens,
            self.sequences[0].num_cached_tokens or 0,
            **_times(self.sequences),
        )


OpenReading = OpenEmbedding | OpenScoring


def open_reading(request: ReadingRequest, info: ModelInfo, arrivals: Iterator[int]) -> OpenReading:
    """Return the open reading of a request whose texts are token ids; raises InvalidRequestError."""
    if isinstance(request, EmbeddingRequest):
        return OpenEmbedding(request, info, arrivals)
    return OpenScoring(request, info, arrivals)


def empty_outcome(
    request: ReadingRequest,
    *,
    num_prompt_tokens: int = 0,
    error: InvalidRequestError | None = None,
    is_cancelled: bool = False,
    sequences: Tokens[Sequence] = (),
) -> Reading:
    """Return the outcome, without results, of a reading that failed or was cancelled."""
    kind = Embedding if isinstance(request, EmbeddingRequest) else Scores
    message = None if error is None else str(error)
    is_too_long = isinstance(error, TooLongError)
    times = _times(sequences)
    return kind(request.id, (), num_prompt_tokens, 0, message, is_cancelled, is_too_long, **times)


def _times(sequences: Tokens[Sequence]) -> dict[str, Any]:
    return {
        "started_at": first_start(sequences),
        "seconds": device_seconds(sequences),
    }


def _checked(given: str | Tokens[int], name: str, info: ModelInfo) -> list[int]:
    token_ids = [int(token) for token in given]
    if not token_ids:
        raise InvalidRequestError(f"{name} is empty")
    check_token_ids(token_ids, f"{name} has", info)
    return token_ids


def _check_length(num_tokens: int, what: str, info: ModelInfo) -> None:
    if num_tokens > info.max_model_len:
        raise TooLongError(f"{what} {num_tokens} tokens; this model takes at most {info.max_model_len}")


def _sequence(
    request: ReadingRequest,
    token_ids: list[int],
    readout: Readout,
    arrival: int,
    *,
    is_shareable: bool = True,
) -> Sequence:
    return Sequence(
        request_id=request.id,
        arrival=arrival,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        params=NO_OUTPUT,
        seed=0,
        stop_token_ids=frozenset(),
        readout=readout,
        is_generating=False,
        is_urgent=request.priority > 0,
        share=request.share,
        is_shareable=is_shareable,
    )
