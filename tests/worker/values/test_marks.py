import pytest

from worker.values.marks import find_marks


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The witness says yes.", "The witness says no."),
        ("Is it true?", "Is it false?"),
        ("It is safe to eat.", "It isn't safe to eat."),
        ("Leave the lights on.", "Leave the lights off."),
        ("Open the file with a lock", "Open the file without a lock"),
        ("List 3 fruits", "List 4 fruits"),
        ("List three fruits", "List four fruits"),
        ("Add 5% tax", "Add 50% tax"),
        ("Use version 3.1", "Use version 3.10"),
        ("It is -3 degrees", "It is 3 degrees"),
        ("a train from 3 to 5", "a train from 5 to 3"),
        ("What is the capital of France?", "What is the capital of Spain?"),
        ("Alice went home", "Carol went home"),
        ("Alice owes Bob", "Bob owes Alice"),
        ("What does iOS do?", "What does tvOS do?"),
        ("Translate 'cat' into German", "Translate 'dog' into German"),
        ("Explain read_line", "Explain read_lines"),
        ("Ist das gut?", "Ist das nicht gut?"),
    ],
)
def test_prompts_that_mean_different_things_have_different_marks(one: str, other: str) -> None:
    assert find_marks(one) != find_marks(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the capital of France?", "Tell me the capital of France."),
        ("What's France's capital?", "Name the capital of France"),
        ("Summarize this text.", "Give a summary of this text."),
        ("List three fruits", "List 3 fruits"),
        ("It costs 1,000 dollars", "The price: 1000.0 dollars"),
        ("It is not good", "It isn\N{RIGHT SINGLE QUOTATION MARK}t good"),
        ("I think so", "That is what I think"),
        ("<|user|>\nWrite a poem", "<|user|>\nPlease write a poem"),
    ],
)
def test_prompts_that_mean_the_same_have_the_same_marks(one: str, other: str) -> None:
    assert find_marks(one) == find_marks(other)


@pytest.mark.parametrize("part", ["\n", " ", "a ", "1,", "a'", "_", "-", "A\n"])
def test_marks_take_time_in_proportion_to_the_text(part: str) -> None:
    find_marks(part * 50_000)  # with the test's own limit
