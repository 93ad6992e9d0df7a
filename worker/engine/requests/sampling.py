"""Defines the sampling options of a request."""

import math
from dataclasses import dataclass

from worker.engine.requests.errors import InvalidRequestError
from worker.values.grammar import Grammar

MAX_LOGPROBS = 20
MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request; raises InvalidRequestError naming the field that is out of range.

    Length: the output ends at `max_tokens`, or earlier when the model's context is full. With `must_fit`, a
    request whose prompt and `max_tokens` exceed the context is refused.

    Choice: `temperature=0` is greedy. `top_k=0`, `top_p=1` and `min_p=0` are off; they apply in that order,
    after the temperature. `seed=None` draws a random seed.

    End: `stop` strings and `stop_token_ids` end the output, which is cut before them. `ignore_eos` ignores
    only the checkpoint's end tokens. `min_tokens` suppresses every end before that length, unless the
    `grammar` allows nothing else; a complete grammar always ends the output.

    Logprobs: `logprobs` is the number of likeliest tokens reported beside each chosen one, from the model's
    own logits; `prompt_logprobs` is the same for each prompt token after the first. None reports nothing.

    Choices: `n` is their number. Each has a seed derived from `seed`; the first uses `seed` itself. `best_of`
    generates that many and keeps the `n` with the highest mean logprob, best first.
    """

    max_tokens: int = 256
    must_fit: bool = False
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0  # on tokens of prompt and output; 1 is off
    frequency_penalty: float = 0.0  # on tokens of the output, for each occurrence
    presence_penalty: float = 0.0  # on tokens of the output, once
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None  # None: n
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        problems = {
            "max_tokens": self.max_tokens < 1,
            "temperature": not (0 <= self.temperature < math.inf),
            "top_p": not 0 < self.top_p <= 1,
            "top_k": self.top_k < 0,
            "min_p": not 0 <= self.min_p <= 1,
            "min_tokens": not 0 <= self.min_tokens <= self.max_tokens,
            "repetition_penalty": not 0 < self.repetition_penalty < math.inf,
            "frequency_penalty": not -2 <= self.frequency_penalty <= 2,
            "presence_penalty": not -2 <= self.presence_penalty <= 2,
            "logit_bias": any(not math.isfinite(bias) for _, bias in self.logit_bias),
            "logprobs": self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS,
            "prompt_logprobs": (
                self.prompt_logprobs is not None and not 0 <= self.prompt_logprobs <= MAX_LOGPROBS
            ),
            "n": not 1 <= self.n <= MAX_CHOICES,
            "best_of": self.best_of is not None and not self.n <= self.best_of <= MAX_CHOICES,
            "stop": any(not text for text in self.stop),
        }
        for name, is_wrong in problems.items():
            if is_wrong:
                raise InvalidRequestError(f"{name} is out of range: {getattr(self, name)!r}")

    @property
    def is_greedy(self) -> bool:
        """True if the most likely token is always chosen."""
        return self.temperature == 0

    @property
    def num_choices(self) -> int:
        """Number of choices to generate."""
        return self.best_of or self.n

    @property
    def needs_logprobs(self) -> bool:
        """True if the logprob of each chosen token is needed."""
        return self.logprobs is not None or self.num_choices > self.n

    @property
    def has_logit_rules(self) -> bool:
        """True if any option changes the logits before a token is chosen."""
        return bool(
            self.grammar is not None
            or self.logit_bias
            or self.min_tokens
            or self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
        )
