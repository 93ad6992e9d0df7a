from worker.engine.scheduling.admission.output_lengths import FIRST_GUESS, MAX_JOBS, WINDOW, OutputLengths


def taught(lengths: list[int], *, is_cut: bool = False) -> OutputLengths:
    known = OutputLengths()
    for length in lengths:
        known.learn("job", length, is_cut=is_cut)
    return known


def test_a_guess_is_twice_what_there_is() -> None:
    known = OutputLengths()
    assert not known.is_known("job")
    assert known.expect("job", 0, 1000) == FIRST_GUESS
    assert known.expect("job", 300, 1000) == 600
    assert known.expect("job", 300, 400) == 400


def test_the_first_to_end_tells() -> None:
    known = taught([5])
    assert known.is_known("job")
    assert known.expect("job", 0, 1000) == 5
    assert known.expect("another", 0, 1000) == FIRST_GUESS


def test_the_median_of_those_that_went_on_from_here() -> None:
    known = taught(list(range(1, 101)))
    assert known.expect("job", 0, 1000) == 51
    assert known.expect("job", 80, 1000) == 91
    assert known.expect("job", 100, 1000) == 200, "longer than any known: a guess"
    assert known.expect("job", 0, 30) == 30


def test_an_output_that_was_cut_says_at_least() -> None:
    known = taught([20] * 50, is_cut=True)
    assert known.expect("job", 0, 20) == 20
    assert known.expect("job", 0, 500) == 500


def test_what_is_long_ago_is_forgotten() -> None:
    known = taught([1000] * WINDOW + [3] * WINDOW)
    assert known.expect("job", 0, 2000) == 3
    for number in range(MAX_JOBS):
        known.learn(number, 1, is_cut=False)
    assert not known.is_known("job")
    assert known.is_known(MAX_JOBS - 1)
