"""Keep the tool loops of one run: their turns, the calls that are out, and the prompts that follow.

One thread, the run's, calls everything here. The calls themselves are made in threads of a pool.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from worker.chat.conversation import REASONING, Turn, to_prompt
from worker.chat.template import ChatTemplate, ChatTemplateError
from worker.engine.requests.generation import Answer, Completion
from worker.parsing.parser import parse
from worker.runs.translation import failed
from worker.store.requests.requests import ShardRequest
from worker.values.outcomes import FinishReason
from worker.values.parsing import Family
from worker.values.results import Choice, MadeCall, NewResult, Payload, ToolTurn, storable
from worker.values.sampling import SamplingParams
from worker.values.tool_loops import OnFailure, ToolLoop
from worker.webhooks.tool_calls import CallStop, NewCall, ToolCaller

logger = logging.getLogger(__name__)

CALL_FAILED = "tool_call_failed"


@dataclass(frozen=True, slots=True)
class LoopTools:
    """What a process needs to run tool loops: who makes the calls, and the model's chat template."""

    caller: ToolCaller
    template: Callable[[], ChatTemplate]


@dataclass(slots=True)
class Conversation:
    """A request with a tool loop, and its turns so far."""

    request: ShardRequest
    loop: ToolLoop
    tools: LoopTools
    turns: list[ToolTurn]
    first_token_at: float | None = None
    is_calling: bool = False  # the calls of the last turn were given to the pool

    def params(self, number: int) -> SamplingParams:
        """Return the parameters of the turn of this number."""
        if self.loop.forced is not None and number <= self.loop.forced_turns:
            return self.loop.forced
        return cast("SamplingParams", self.request.params)  # only a chat has a tool loop

    def seed(self, number: int) -> str:
        """Return what the ids of the calls of a turn follow from."""
        return f"{self.request.id}-{number}"

    def calls_in(self, text: str) -> tuple[MadeCall, ...]:
        """Return the calls that an output makes as the next turn."""
        number = len(self.turns) + 1
        parsed = parse(text, self.params(number).parsing, seed=self.seed(number))
        return tuple(
            MadeCall(_clean(call.id), _clean(call.name), _clean(call.arguments)) for call in parsed.calls
        )

    def messages(self) -> Iterator[Turn]:
        """Return the messages of the next turn's prompt."""
        yield from self.loop.messages
        for turn in self.turns:
            parsed = parse(turn.output, self.params(turn.number).parsing, seed=self.seed(turn.number))
            said: dict[str, object] = {"role": "assistant", "content": parsed.content}
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _to_object(call.arguments)},
                }
                for call in turn.calls
            ]
            yield said | (dict.fromkeys(REASONING, parsed.reasoning) if parsed.reasoning else {})
            for call in turn.calls:
                content = json.dumps({"error": call.error}) if call.answer is None else call.answer
                yield {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}

    @property
    def seconds_left(self) -> float:
        """The seconds that further calls may take."""
        return self.loop.total_seconds - sum(call.seconds for turn in self.turns for call in turn.calls)


@dataclass(slots=True)
class ToolLoops:
    """The tool loops of one run."""

    requests: Iterable[ShardRequest]
    batch_id: str
    tools: LoopTools | None  # None: this process makes no calls, so the first output is the last
    on_answer: Callable[[], None]  # called in a thread of the pool
    unsaved: dict[int, ToolTurn] = field(default_factory=dict)  # new or changed turns, by request id
    _open: dict[int, Conversation] = field(default_factory=dict)
    _waiting: dict[int, Conversation] = field(default_factory=dict)  # of the open ones, not in the engine
    _answers: deque[tuple[int, int, int, MadeCall]] = field(default_factory=deque)
    _stop: CallStop = field(default_factory=CallStop)
    _pool: ThreadPoolExecutor | None = None

    def __post_init__(self) -> None:
        for request in self.requests:
            if request.tool_loop is not None and self.tools is not None:
                turns = list(request.tool_turns)
                self._open[request.id] = Conversation(request, request.tool_loop, self.tools, turns)
        self._waiting = {one.request.id: one for one in self._open.values() if one.turns}

    @property
    def has_open(self) -> bool:
        """Whether conversations go on, in the engine or not."""
        return bool(self._open)

    @property
    def is_waiting(self) -> bool:
        """Whether conversations go on that have no request in the engine."""
        return bool(self._waiting)

    @property
    def recorded_tokens(self) -> int:
        """The output tokens of the turns so far."""
        return sum(turn.num_output_tokens for one in self._open.values() for turn in one.turns)

    def first(self, request: ShardRequest) -> ShardRequest | None:
        """Return what the engine runs of a request first; None: it goes on from recorded turns."""
        conversation = self._open.get(request.id)
        if conversation is None:
            return request
        return None if conversation.turns else replace(request, params=conversation.params(1))

    def take(self, request: ShardRequest, outcome: Answer) -> bool:
        """Take an outcome that calls tools as a turn, which is to be saved; return False for any other."""
        conversation = self._open.get(request.id)
        if conversation is None or not isinstance(outcome, Completion):
            return False
        number = len(conversation.turns) + 1
        if outcome.finish_reason is not FinishReason.STOP or number >= conversation.loop.max_turns:
            return False
        calls = conversation.calls_in(outcome.text)
        if not calls:
            return False
        turn = ToolTurn(
            number,
            outcome.text,
            calls,
            num_prompt_tokens=outcome.num_prompt_tokens,
            num_cached_tokens=outcome.num_cached_tokens,
            num_output_tokens=outcome.num_output_tokens,
            num_reasoning_tokens=outcome.choices[0].num_reasoning_tokens,
            num_guessed_tokens=outcome.num_guessed_tokens,
            num_right_tokens=outcome.num_right_tokens,
            seconds=outcome.seconds,
            started_at=outcome.started_at,
        )
        if number == 1:
            conversation.first_token_at = outcome.first_token_at
        conversation.turns.append(turn)
        conversation.is_calling = False
        self._waiting[request.id] = conversation
        self.unsaved[request.id] = turn
        return True

    def collect(self) -> None:
        """Note the answers that have come; each is to be saved."""
        while self._answers:
            request_id, number, index, call = self._answers.popleft()
            conversation = self._waiting.get(request_id)
            if conversation is None or len(conversation.turns) != number:
                continue
            turn = conversation.turns[-1]
            calls = (*turn.calls[:index], call, *turn.calls[index + 1 :])
            conversation.turns[-1] = self.unsaved[request_id] = replace(turn, calls=calls)

    def proceed(self) -> Iterator[ShardRequest | Completion | NewResult]:
        """Make the calls of saved turns; of conversations whose answers are saved, yield what comes next.

        That is a request to the engine, an outcome that ends the conversation, or its failure.
        """
        for request_id, conversation in list(self._waiting.items()):
            if request_id in self.unsaved:
                continue
            if conversation.turns[-1].is_done:
                del self._waiting[request_id]
                yield self._next(conversation)
            elif not conversation.is_calling:
                conversation.is_calling = True
                self._call(conversation)

    def drop(self, request_ids: Collection[int]) -> list[ShardRequest]:
        """Give up conversations that wait; return the requests of those. Their turns stay to be saved."""
        dropped = [self._waiting.pop(request_id) for request_id in request_ids if request_id in self._waiting]
        return [one.request for one in dropped]

    def drop_all(self) -> list[ShardRequest]:
        """Give up every conversation that waits."""
        return self.drop(list(self._waiting))

    def complete(self, result: NewResult) -> NewResult:
        """Return the result of a request with what its turns have said and used."""
        conversation = self._open.pop(result.request_id, None)
        self._waiting.pop(result.request_id, None)
        self.unsaved.pop(result.request_id, None)
        if conversation is None or not conversation.turns:
            return result
        turns = conversation.turns
        payload = result.payload or Payload()
        starts = [turn.started_at for turn in turns if turn.started_at is not None]
        return replace(
            result,
            num_prompt_tokens=result.num_prompt_tokens + sum(turn.num_prompt_tokens for turn in turns),
            num_cached_tokens=result.num_cached_tokens + sum(turn.num_cached_tokens for turn in turns),
            num_output_tokens=result.num_output_tokens + sum(turn.num_output_tokens for turn in turns),
            seconds=sum((turn.seconds for turn in turns), result.seconds),
            started_at=min(starts, default=result.started_at),
            first_token_at=conversation.first_token_at,
            payload=replace(
                payload,
                tool_turns=tuple(turns),
                num_reasoning_tokens=sum(
                    (turn.num_reasoning_tokens for turn in turns), payload.num_reasoning_tokens
                ),
                num_guessed_tokens=sum(
                    (turn.num_guessed_tokens for turn in turns), payload.num_guessed_tokens
                ),
                num_right_tokens=sum((turn.num_right_tokens for turn in turns), payload.num_right_tokens),
            ),
        )

    def close(self) -> None:
        """Make no further call; answers that still come are lost."""
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _call(self, conversation: Conversation) -> None:
        """Give the calls of the last turn that have no answer to the pool."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(conversation.tools.caller.at_once, thread_name_prefix="tool-call")
        turn = conversation.turns[-1]
        for index, call in enumerate(turn.calls):
            if not call.is_done:
                make = partial(self._make, conversation, turn.number, index, call, conversation.seconds_left)
                self._pool.submit(make)

    def _make(
        self, conversation: Conversation, number: int, index: int, call: MadeCall, seconds_left: float
    ) -> None:
        """Make a call and tell the run its answer; runs in the pool."""
        request, loop = conversation.request, conversation.loop
        try:
            arguments = _to_object(call.arguments)
            if (problem := _problem(call, arguments, loop)) is not None:
                made = replace(call, error=problem)
            else:
                key = f"{self.batch_id}-{request.position}-{number}-{index}"
                body = {
                    "type": "tool.call",
                    "id": key,
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": arguments,
                    "turn": number,
                    "batch_id": self.batch_id,
                    "index": request.position,
                    "custom_id": request.custom_id,
                }
                new = NewCall(loop.url, key, body, loop.timeout_seconds, seconds_left)
                made = conversation.tools.caller.make(call, new, self._stop)
        except Exception as error:  # a conversation without its answer would wait for ever
            logger.exception("a tool call of request %s was not made", request.id)
            made = replace(call, error=f"{type(error).__name__}: {error}", has_failed=True)
        self._answers.append((request.id, number, index, made))
        self.on_answer()

    def _next(self, conversation: Conversation) -> ShardRequest | Completion | NewResult:
        request, loop = conversation.request, conversation.loop
        failures = [call for call in conversation.turns[-1].calls if call.has_failed]
        if failures and loop.on_failure is OnFailure.FAIL:
            told = f"the call of {failures[0].name!r} failed: {failures[0].error}"
            return failed(request, told, code=CALL_FAILED)
        left = request.max_tokens - sum(turn.num_output_tokens for turn in conversation.turns)
        if left <= 0:
            return self.ended(request, FinishReason.LENGTH)
        number = len(conversation.turns) + 1
        params = conversation.params(number)
        try:
            template = conversation.tools.template()
            render = partial(template.render, variables=loop.variables)
            family = Family.NONE if params.parsing is None else params.parsing.family
            prompt = _clean(to_prompt(template, family, list(conversation.messages()), loop.tools, render))
        except (ChatTemplateError, OSError, ValueError) as error:
            return failed(request, str(error))
        return replace(request, prompts=(prompt,), params=params, max_tokens=left)

    def ended(self, request: ShardRequest, reason: FinishReason) -> Completion:
        """Return the outcome of a conversation that ends between two turns, with its last output."""
        last = self._open[request.id].turns[-1]
        return Completion(
            (request.id, 0),
            (Choice(last.output, reason),),
            num_prompt_tokens=0,
            num_cached_tokens=0,
            num_output_tokens=0,
        )


def _to_object(arguments: str) -> object:
    """Return arguments as an object, or as the model wrote them where they are none."""
    try:
        value = json.loads(arguments or "{}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _problem(call: MadeCall, arguments: object, loop: ToolLoop) -> str | None:
    """Return why a call cannot be made, as the model reads it; None if it can."""
    names = [tool["function"]["name"] for tool in loop.tools]
    if call.name not in names:
        return f"there is no function {call.name!r}; there are {', '.join(map(repr, names))}"
    return None if isinstance(arguments, dict) else "the arguments are not a JSON object"


def _clean(text: str) -> str:
    """Return a text that can be stored: the JSON of a call can hide half a pair of surrogates."""
    return storable(text.encode(errors="replace").decode())
