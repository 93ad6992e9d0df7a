import random

import pytest

from tests.fixtures.scheduling import make_sequence
from tests.fixtures.tiny_llama import END, tiny_tokenizer
from worker.engine.sequences.grammar_matcher import GrammarMatcher
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation import lookup
from worker.engine.speculation.lookup import LookupProposer, TokenIndex
from worker.engine.speculation.proposer import GuessedTokens
from worker.values.grammar import Grammar, vocabulary_of


def propose(finder: LookupProposer, sequence: Sequence, limit: int = 4) -> tuple[int, ...]:
    (guess,) = finder.propose([sequence], [limit])
    return guess.token_ids


def end(finder: LookupProposer, sequence: Sequence) -> None:
    sequence.state = SequenceState.FINISHED
    finder.ended(sequence)


def tokens_of(text: str) -> list[int]:
    return list(tiny_tokenizer().encode(text, add_special_tokens=False).ids)


def matcher_of(*keys: str) -> GrammarMatcher:
    grammar = Grammar.json_schema(
        {
            "type": "object",
            "properties": {key: {"type": "integer"} for key in keys},
            "required": list(keys),
            "additionalProperties": False,
        }
    )
    size = tiny_tokenizer().get_vocab_size()
    vocabulary = vocabulary_of(
        tiny_tokenizer().to_str(), tokenizer_size=size, vocab_size=size, end_token_ids=[END]
    )
    return GrammarMatcher(grammar, grammar.compile(vocabulary))


def test_it_goes_on_as_after_the_latest_equal_tokens() -> None:
    finder, sequence = LookupProposer(), make_sequence(0, [5, 6, 7, 8, 5, 6, 9, 1, 5, 6])
    assert propose(finder, sequence) == (9, 1, 5, 6)
    sequence.token_ids += [7, 8]
    assert propose(finder, sequence, 2) == (5, 6)
    sequence.token_ids.append(3)
    assert propose(finder, sequence) == ()


@pytest.mark.parametrize("seed", range(4))
def test_a_long_beginning_is_searched_as_if_it_were_indexed(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, found = random.Random(seed), []
    token_ids = [chance.randrange(9) for _ in range(300)]
    for long in (100, 1_000):
        monkeypatch.setattr(lookup, "LONG", long)
        index = TokenIndex(token_ids[:200])
        ends = []
        for token_id in token_ids[200:]:
            ends.append(index.find(index.token_ids)[:2])
            index.token_ids.append(token_id)
        found.append(ends)
    searched, indexed = found
    # Of single tokens that are steady, a search knows one time less.
    assert [one for one in searched if one[1] > 1] == [one for one in indexed if one[1] > 1]
    assert len({length for _, length in searched}) > 3


def test_the_longer_match_is_taken() -> None:
    finder, sequence = LookupProposer(), make_sequence(0, [1, 2, 3, 4, 70, 3, 4, 80, 1, 2, 3, 4])
    (guess,) = finder.propose([sequence], [1])
    assert guess == GuessedTokens((70,), (("lookup", (4, 0)),))
    short = make_sequence(1, [3, 4, 80, 1, 3, 4])
    assert finder.propose([short], [1])[0].kinds == (("lookup", (2, 0)),)


def test_a_loop_is_continued_past_its_end() -> None:
    assert propose(LookupProposer(), make_sequence(0, [1, 2, 3, 1, 2, 3]), 7) == (1, 2, 3, 1, 2, 3, 1)


def test_earlier_outputs_of_the_job_are_known_and_no_others() -> None:
    finder = LookupProposer()
    done = make_sequence(0, [40, 41, 42, 43], job="a")
    done.token_ids += [50, 51, 52, 53]
    end(finder, done)
    assert propose(finder, make_sequence(1, [9, 50, 51], job="a")) == (52, 53), (
        "it ends where the output ends"
    )
    assert propose(finder, make_sequence(2, [9, 40, 41], job="a")) == (), "prompts are not remembered"
    assert propose(finder, make_sequence(3, [9, 50, 51], job="b")) == ()
    assert propose(finder, make_sequence(4, [9, 50, 51])) == ()


def test_a_token_that_always_followed_is_told_from_one_that_did_once() -> None:
    finder = LookupProposer()
    for number, value in enumerate([60, 61, 62, 63, 64]):
        done = make_sequence(number, [1], job="a")
        done.token_ids += [10, 11, 12, value, 13, 14, 15, 16]
        end(finder, done)
    (guess,) = finder.propose([make_sequence(9, [2, 10, 11], job="a")], [8])
    assert guess.token_ids == (12, 64, 13, 14, 15, 16)
    assert [how for _, how in guess.kinds] == [(2, 3), (3, 0), (4, 0), (4, 0), (4, 0), (4, 0)]
    (guess,) = finder.propose([make_sequence(9, [2, 99, 13], job="a")], [8])
    assert guess.token_ids == (14, 15, 16), "a single token is enough if the next one is steady"
    assert [how for _, how in guess.kinds] == [(1, 3), (2, 3), (3, 3)]
    assert propose(finder, make_sequence(9, [2, 99, 12], job="a")) == ()


def test_text_that_a_grammar_forces_is_guessed_between_what_was_found() -> None:
    finder = LookupProposer()
    for number in range(4):
        done = make_sequence(number, [0], job="a")
        done.token_ids += tokens_of(f'{{"first": {number}, "second": {number}, "third": 5}}')
        end(finder, done)
    sequence = make_sequence(9, [0], job="a")
    sequence.matcher = matcher_of("first", "second", "third")
    for token_id in tokens_of('{"first": 77,'):
        sequence.token_ids.append(token_id)
        sequence.matcher.push(token_id)
    (guess,) = finder.propose([sequence], [40])
    assert tiny_tokenizer().decode(guess.token_ids).startswith(' "second": '), "after a 77 of no output"
    sources = [source for source, _ in guess.kinds]
    assert sources[0] == "lookup"
    assert "grammar" in sources
    assert sequence.matcher.num_allowed(guess.token_ids) == len(guess.token_ids)
    assert finder.propose([sequence], [1])[0] == guess.first(1)
    alone = make_sequence(10, [0])
    alone.matcher = matcher_of("first")
    assert {source for source, _ in finder.propose([alone], [40])[0].kinds} == {"grammar"}


def test_memory_is_bounded() -> None:
    finder = LookupProposer()
    for number in range(30):
        long = make_sequence(number, [1], job=f"job {number % 10}")
        long.token_ids += [7] * (lookup.MAX_TOKENS // 5)
        end(finder, long)
        sizes = [len(index.token_ids) for index in finder._jobs.values()]
        assert sum(sizes) == finder._num_tokens <= lookup.MAX_TOKENS
    assert len(finder._jobs) == 4
    for number in range(500):  # cancelled, so `ended` is not called
        sequence = make_sequence(number, [1, 2, 3])
        propose(finder, sequence)
        sequence.state = SequenceState.FINISHED
    assert len(finder._own) < 100
