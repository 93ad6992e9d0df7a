import json

import pytest

from worker.contract.feed import Message, Saved, read_message
from worker.values.delta import Delta
from worker.values.logprobs import TokenLogprob
from worker.values.outcomes import FinishReason

LOGPROBS = (TokenLogprob(5, -0.5, ((5, -0.5), (9, -1.0))),)


@pytest.mark.parametrize(
    "message", [Saved(), Delta(3, 1, 7, "a", 1), Delta(3, 1, 8, "b", 1, LOGPROBS, FinishReason.STOP)]
)
def test_a_message_survives_the_feed(message: Message) -> None:
    assert read_message(message.to_json().encode()) == message


def test_messages_keep_the_form_that_other_releases_read() -> None:
    last = Delta(3, 1, 8, "b", 1, LOGPROBS, FinishReason.STOP)
    assert json.loads(last.to_json()) == {
        "position": 3,
        "index": 1,
        "offset": 8,
        "text": "b",
        "num_tokens": 1,
        "logprobs": [[5, -0.5, [[5, -0.5], [9, -1.0]]]],
        "finish_reason": "stop",
    }
