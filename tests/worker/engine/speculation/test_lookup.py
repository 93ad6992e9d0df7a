from tests.fixtures.scheduling import make_sequence
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.speculation import lookup
from worker.engine.speculation.lookup import LookupProposer


def propose(finder: LookupProposer, sequence: Sequence, limit: int = 4) -> tuple[int, ...]:
    (guess,) = finder.propose([sequence], [limit])
    return guess.token_ids


def end(finder: LookupProposer, sequence: Sequence) -> None:
    sequence.state = SequenceState.FINISHED
    finder.ended(sequence)


def test_it_goes_on_as_after_the_latest_equal_tokens() -> None:
    finder, sequence = LookupProposer(), make_sequence(0, [5, 6, 7, 8, 5, 6, 9, 1, 5, 6])
    assert propose(finder, sequence) == (9, 1, 5, 6)
    sequence.token_ids += [7, 8]
    assert propose(finder, sequence, 2) == (5, 6)
    sequence.token_ids.append(3)
    assert propose(finder, sequence) == ()


def test_the_longer_match_is_taken() -> None:
    finder, sequence = LookupProposer(), make_sequence(0, [1, 2, 3, 4, 70, 3, 4, 80, 1, 2, 3, 4])
    (guess,) = finder.propose([sequence], [1])
    assert (guess.token_ids, guess.kind) == ((70,), 4)
    short = make_sequence(1, [3, 4, 80, 1, 3, 4])
    assert finder.propose([short], [1])[0].kind == 2


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


def test_memory_is_bounded() -> None:
    finder = LookupProposer()
    for number in range(3 * lookup.MAX_JOBS):
        end(finder, make_sequence(number, [1, 2, 3], job=f"job {number}"))
    assert len(finder._jobs) == lookup.MAX_JOBS
    for number in range(500):  # cancelled, so `ended` is not called
        sequence = make_sequence(number, [1, 2, 3])
        propose(finder, sequence)
        sequence.state = SequenceState.FINISHED
    assert len(finder._own) < 100
