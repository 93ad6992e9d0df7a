"""Takes generation requests through their Steps to a Completion."""

import time
from collections import Counter
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Items
from functools import partial
from math import isnan

from worker.engine.requests.errors import InvalidRequestError, TooLongError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.requests.stats import ModelInfo
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.open_request import OpenRequest, open_request
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.text.encoding import encode_requests
from worker.engine.text.grammar import GrammarCompiler
from worker.engine.text.output import Output
from worker.engine.text.thinking import new_thoughts
from worker.engine.text.tokenizer import Tokenizer
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason

NOT_FINITE = "the model's logits are not finite numbers"


class Generations:
    """Holds the generation requests that have no Completion yet, and what the next `collect` reports.

    A request ends as a whole: with its last choice, or for all choices when one fails or it is cancelled.
    """

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        eos_token_ids: frozenset[int],
        scheduler: Scheduler,
        arrivals: Iterator[int],
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._eos_token_ids = eos_token_ids
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._open: dict[Hashable, OpenRequest] = {}
        self._outputs: dict[Sequence, Output] = {}  # of Sequences that have not ended
        self._read: list[
            tuple[StepPlan, OpenRequest]
        ] = []  # without output, by Steps that are not charged yet
        self._num_new_tokens: Counter[Hashable] = Counter()
        self._completions: list[Completion] = []
        self._deltas: list[Delta] = []

    def __bool__(self) -> bool:
        return bool(self._open or self._completions)

    @property
    def has_ended(self) -> bool:
        """True if a Completion waits for the next `collect`."""
        return bool(self._completions)

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self._open

    def add(self, request: GenerationRequest) -> None:
        """Queue a request; one that cannot run ends in the next Step with an error."""
        try:
            (request,) = encode_requests([request], self._tokenizer)
            opened = open_request(
                request,
                self._info,
                self._arrivals,
                self._eos_token_ids,
                self._grammars.matcher,
                partial(new_thoughts, tokenizer=self._tokenizer),
            )
            outputs = [
                Output(sequence, self._tokenizer, index, is_streamed=request.is_streamed)
                for index, sequence in enumerate(opened.sequences)
            ]
            for output in outputs:
                output.resume(request.output_token_ids, self._info.vocab_size)
        except InvalidRequestError as error:
            is_too_long = isinstance(error, TooLongError)
            self._completions.append(Completion.failed(request.id, str(error), is_too_long=is_too_long))
            return
        self._open[request.id] = opened
        self._outputs.update(zip(opened.sequences, outputs, strict=True))
        for sequence in opened.sequences:
            self._scheduler.add(sequence)

    def cancel(self, request_id: Hashable) -> None:
        """End a request with the output so far; ignores unknown ids."""
        opened = self._open.get(request_id)
        if opened is not None:
            for sequence in opened.unfinished:
                self._end(sequence, FinishReason.CANCELLED)
            self._close(opened.completion(is_cancelled=True))

    def fail(self, request_id: Hashable, error: str) -> None:
        """End a request with an error."""
        opened = self._open[request_id]
        for sequence in opened.unfinished:
            self._end(sequence, FinishReason.ERROR)
        num_tokens, started_at = opened.num_output_tokens, opened.started_at
        self._close(Completion.failed(request_id, error, num_tokens, started_at=started_at))

    def take(self, sequences: Items[Sequence], tokens: Items[Items[NextToken]]) -> None:
        """Append the tokens that a Step chose for each Sequence: all after the first were guessed."""
        for sequence, chosen in zip(sequences, tokens, strict=True):
            sequence.num_pending_tokens = 0
            for index, token in enumerate(chosen):
                # The Sequence may have ended already: by its previous token, by `cancel`, or because another
                # choice of its request failed.
                if sequence.state is SequenceState.FINISHED:
                    break
                if index:
                    sequence.keep_guess()
                self._append(sequence, token)

    def _append(self, sequence: Sequence, token: NextToken) -> None:
        if token.token_id is None:
            # Its Blocks may hold the same bad values as its logits, so no other Sequence may share them.
            self._scheduler.block_pool.clear_cache()
            self.fail(sequence.request_id, NOT_FINITE)
            return
        self._num_new_tokens[sequence.request_id] += 1
        if len(sequence.token_ids) == sequence.num_prompt_tokens:
            sequence.first_token_at = time.monotonic()
        if token.logprob is not None:
            sequence.logprobs.append(token.logprob)
        output = self._outputs[sequence]
        try:
            reason = output.push(token.token_id)
        except InvalidRequestError as error:
            self.fail(sequence.request_id, str(error))
            return
        if reason is not None:
            self._end(sequence, reason)
            opened = self._open[sequence.request_id]
            if not opened.unfinished:
                self._complete(opened)
        elif output.stream is not None and (delta := output.stream.push(token.token_id)) is not None:
            self._deltas.append(delta)

    def end_read(self, plan: StepPlan) -> None:
        """End the Sequences that generate nothing and whose prompt this Step has computed."""
        for entry in plan.entries:
            sequence = entry.sequence
            if sequence.is_generating or sequence.num_uncomputed_tokens or sequence not in self._outputs:
                continue
            self._end(sequence, FinishReason.LENGTH)
            opened = self._open[sequence.request_id]
            if not opened.unfinished:
                self._read.append((plan, opened))

    def charged(self, plan: StepPlan) -> None:
        """Close the requests that `end_read` has ended with this Step: its share of time is known now."""
        for ended_by, opened in self._read:
            if ended_by is plan and self._open.get(opened.id) is opened:  # not cancelled in between
                self._complete(opened)
        self._read = [one for one in self._read if one[0] is not plan]

    def collect(self) -> tuple[Counter[Hashable], tuple[Completion, ...], tuple[Delta, ...]]:
        """Return the numbers of new tokens by request, the Completions and the Deltas since the last call."""
        news = self._num_new_tokens, tuple(self._completions), tuple(self._deltas)
        self._num_new_tokens, self._completions, self._deltas = Counter(), [], []
        return news

    def output_so_far(self, request_id: Hashable) -> tuple[int, ...] | None:
        """Return the output tokens of an open request that can resume from them; None for any other.

        Safe to call from any thread: it reads once a list that only grows.
        """
        opened = self._open.get(request_id)
        if opened is None or len(opened.sequences) > 1 or opened.sequences[0].needs_logprobs:
            return None
        sequence = opened.sequences[0]
        return tuple(sequence.token_ids[sequence.num_prompt_tokens :])

    def started_at(self, request_id: Hashable) -> float | None:
        """Return `time.monotonic()` at the first start of an open request; None before it."""
        opened = self._open.get(request_id)
        return None if opened is None else opened.started_at

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Remove a Sequence from the Scheduler and record its Choice."""
        self._scheduler.finish(sequence, reason)
        output = self._outputs.pop(sequence)
        choice = output.choice(reason)
        self._open[sequence.request_id].choices[sequence] = choice
        if output.stream is not None:
            self._deltas.append(output.stream.close(choice))

    def _complete(self, opened: OpenRequest) -> None:
        """Close a request whose choices have all ended."""
        completion = opened.completion()
        if any(isnan(one.logprob) for one in completion.prompt_logprobs or ()):
            self._scheduler.block_pool.clear_cache()
            self.fail(opened.id, NOT_FINITE)
        else:
            self._close(completion)

    def _close(self, completion: Completion) -> None:
        del self._open[completion.id]
        self._completions.append(completion)
