from worker.engine.admission.output_lengths import FIRST_GUESS, MAX_JOBS, MIN_KNOWN, WINDOW, OutputLengths


def taught(lengths: list[int], *, is_cut: bool = False) -> OutputLengths:
    known = OutputLengths()
    for length in lengths:
        known.learn("job", length, is_cut=is_cut)
    return known


def test_too_few_are_not_believed() -> None:
    known = taught([5] * (MIN_KNOWN - 1))
    assert not known.is_known("job")
    assert known.expect("job", 0, 1000) == FIRST_GUESS
    known.learn("job", 5, is_cut=False)
    assert known.is_known("job")
    assert known.expect("job", 0, 1000) == 5


def test_a_guess_grows_with_the_longest_of_the_job() -> None:
    known = OutputLengths()
    known.observe("job", 100)
    assert known.expect("job", 0, 1000) == 200
    assert known.expect("job", 300, 1000) == 600
    assert known.expect("job", 300, 400) == 400
    assert known.expect("another", 0, 1000) == FIRST_GUESS


def test_a_quantile_of_those_that_went_on_from_here() -> None:
    known = taught(list(range(1, 101)))
    assert known.expect("job", 0, 1000) == 76
    assert known.expect("job", 80, 1000) == 96
    assert known.expect("job", 100, 1000) == 1000, "longer than any known: its limit"
    assert known.expect("job", 0, 50) == 50


def test_an_output_that_was_cut_says_at_least() -> None:
    known = taught([20] * 50, is_cut=True)
    assert known.expect("job", 0, 20) == 20
    assert known.expect("job", 0, 500) == 500


def test_what_is_long_ago_is_forgotten() -> None:
    known = taught([1000] * WINDOW + [3] * WINDOW)
    assert known.expect("job", 0, 2000) == 3
    for number in range(MAX_JOBS):
        known.observe(number, 1)
    assert not known.is_known("job")
    assert known.is_known("job") is known.is_known("never heard of")
