"""Which requests share a shard, and in which order shards come."""

import random
from collections import Counter

import pytest

from worker.store.requests.placement import Placement
from worker.store.requests.requests import NewRequest

MANUAL = "You answer questions about the manual of a washing machine, in one sentence. " * 2
LAW = "You answer questions about the law of the sea, and you quote its articles in full. " * 2


def place(given: list[NewRequest], *, size: int = 2, priorities: list[int] | None = None) -> list[list[int]]:
    """Return the indices of the requests in each shard, in the order of the shards."""
    placed = Placement(size)
    indices = placed.place_all(given, [None] * len(given), priorities or [0] * len(given))
    shards: list[list[int]] = [[] for _ in placed.shards]
    for index, shard in enumerate(indices):
        shards[shard].append(index)
    assert [shard.num_requests for shard in placed.shards] == list(map(len, shards))
    return shards


def ask(*prompts: str, max_tokens: int = 10) -> list[NewRequest]:
    return [NewRequest(prompt=prompt, max_tokens=max_tokens) for prompt in prompts]


def test_prompts_that_begin_alike_share_shards() -> None:
    given = ask(
        MANUAL + "a", LAW + "a", MANUAL + "b", LAW + "b", MANUAL + "c", LAW + "c", "short", MANUAL + "d"
    )
    assert place(given) == [[0, 2], [4, 7], [1, 3], [5, 6]]


def test_within_a_common_beginning_longer_ones_stay_together() -> None:
    turns = [MANUAL, MANUAL + "It is loud. " * 9, MANUAL + "It is wet. " * 9, MANUAL + "It is loud. " * 12]
    assert place(ask(*turns, turns[2] + "Why?", turns[3] + "Why?")) == [[0, 1], [3, 5], [2, 4]]


def test_token_ids_that_begin_alike_share_shards() -> None:
    one, other = tuple(range(100, 130)), tuple(range(900, 930))
    given = [
        NewRequest(prompt="", max_tokens=10, inputs=((*start, end),))
        for end in range(2)
        for start in (one, other)
    ]
    assert place(given) == [[0, 2], [1, 3]]


def test_prompts_with_nothing_in_common_keep_their_order() -> None:
    given = ask(*(f"{i}: {'nothing in common ' * i}" for i in range(9)))
    assert place(given) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_long_outputs_go_first() -> None:
    given = [*ask("a", "b"), *ask("c", max_tokens=900), *ask("d"), *ask("e", max_tokens=700)]
    assert place(given) == [[2, 4], [0, 1], [3]]
    # Neighbours of a long one go with it, so that their common beginning is computed once.
    given = [*ask("a", "b", MANUAL + "a"), *ask(MANUAL + "b", max_tokens=900)]
    assert place(given) == [[2, 3], [0, 1]]


def test_priority_goes_before_all_else() -> None:
    given = [*ask(MANUAL + "a"), *ask(MANUAL + "b", max_tokens=900), *ask("c"), *ask(MANUAL + "d")]
    assert place(given, priorities=[0, 0, 5, 5]) == [[2, 3], [0, 1]]


@pytest.mark.parametrize("seed", range(20))
def test_every_request_has_one_place(seed: int) -> None:
    chaos = random.Random(seed)
    given = [
        NewRequest(
            prompt=chaos.choice(["", MANUAL, LAW, MANUAL + LAW]) * chaos.randrange(3) + chaos.choice("ab"),
            max_tokens=chaos.choice([0, 1, 50, 1000]),
        )
        for _ in range(chaos.randrange(1, 60))
    ]
    priorities = [chaos.randrange(2) for _ in given]
    size = chaos.randrange(1, 9)
    shards = place(given, size=size, priorities=priorities)
    assert Counter(index for shard in shards for index in shard) == Counter(range(len(given)))
    assert all(len({priorities[index] for index in shard}) == 1 for shard in shards)
    levels = [priorities[shard[0]] for shard in shards]
    assert levels == sorted(levels, reverse=True)
    assert max(map(len, shards)) <= size
