"""Find the marks of a prompt: what changes its meaning although its embedding hardly moves.

These are numbers, negations and names. Two prompts whose marks differ share no answer of the semantic cache.
A mark too many costs one run; a mark too few gives a wrong answer. So in doubt a word is a mark.
"""

import re
from typing import NamedTuple

# A number with its separators, sign and per cent, or a word with its apostrophes and underscores.
TOKEN = re.compile(
    r"[-+\N{MINUS SIGN}]?\d+(?:[.,:/]\d+)*%?|[^\W\d]+(?:['\N{RIGHT SINGLE QUOTATION MARK}][^\W\d_]+)*"
)
GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?%?")
# After one of these, a capital says nothing.
BEGINNINGS = frozenset(".!?:;\n\r>|*#\"'(-[{\N{LEFT DOUBLE QUOTATION MARK}\N{LEFT SINGLE QUOTATION MARK}")
QUOTES = frozenset("\"'`@\N{LEFT DOUBLE QUOTATION MARK}\N{LEFT SINGLE QUOTATION MARK}")
QUOTE_ENDS = frozenset("\"'`@\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}")
NUMBERS = {
    word: str(value)
    for value, words in enumerate(
        (
            "zero",
            "first",  # "one" mostly is no number
            "two second twice both",
            "three third",
            "four fourth",
            "five fifth",
            "six sixth",
            "seven seventh",
            "eight eighth",
            "nine ninth",
            "ten tenth",
            "eleven eleventh",
            "twelve twelfth",
        )
    )
    for word in words.split()
} | {"hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000"}
NEGATIONS = """
    no not never none nobody nothing nowhere neither nor without cannot except unless hardly false off wrong
    nicht kein keine keinen keinem keiner nie niemals ohne ne pas jamais sans aucun aucune nunca sin nada
"""
# Begin sentences and lines without being names.
OPENERS = """
    a about above according add after all also although always among an analyze analyse and another answer
    any are as ask assistant at be because before below between both but by calculate can category change
    check choose classify code combine compare complete compute consider context continue convert correct
    could count create dear decide define describe design detect determine develop did discuss do does
    draft during each edit either else evaluate even every everyone everything example examples explain
    extract fill final find finally fix focus follow for from function generate give given good had has
    have he hello help her here hey hi his how however human i identify if imagine implement in include
    input instruction instructions is it its items just keep label let like list look make many match may
    maybe me might more most mr mrs ms must my name name new next note now of often on once only or order
    other otherwise our output over paraphrase people perform perhaps pick please predict prompt propose
    provide put question rank rate read recommend remember remove rephrase replace reply respond response
    return review rewrite role say score select sentence she should show simplify since so solve some
    sometimes sort sorry split start state step still subject such suggest summarise summarize summary
    system table take task tell text than thank thanks that the their them then there therefore these they
    think this those though through thus title to today tomorrow topic translate try turn under until up
    use user using very was we were what whatever when where whether which while who whom whose why will
    with within word words work would write yes yesterday yet you your
"""


class Marks(NamedTuple):
    """The marks of a prompt. Numbers and names are in the order in which they occur."""

    numbers: tuple[str, ...]
    num_negations: int
    names: tuple[str, ...]


def find_marks(text: str) -> Marks:
    """Return the marks of a text.

    A name is a word with a capital, unless it begins a sentence and many sentences begin so; also a word in
    quotation marks, and one with an underscore. Scripts without capitals have no other names here.
    """
    numbers, names, num_negations = [], [], 0
    found = list(TOKEN.finditer(text))
    for place, match in enumerate(found):
        token = match[0].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").replace("\N{MINUS SIGN}", "-")
        word = token.casefold()
        if token[-1].isdigit() or token[-1] == "%":
            numbers.append(_plain(token))
        elif word in NUMBERS:
            numbers.append(NUMBERS[word])
        elif word in _NEGATIONS or word.endswith("n't"):
            num_negations += 1
        elif _is_quoted(text, match) or "_" in token.strip("_"):
            names.append(token)
        elif token != word and not _is_usual(text, found, place, word.partition("'")[0]):
            names.append(word.removesuffix("'s"))
    return Marks(tuple(numbers), num_negations, tuple(names))


def _is_quoted(text: str, match: "re.Match[str]") -> bool:
    return (
        text[match.start() - 1 : match.start()] in QUOTES
        and text[match.end() : match.end() + 1] in QUOTE_ENDS
    )


def _is_usual(text: str, found: "list[re.Match[str]]", place: int, word: str) -> bool:
    """Return whether a word has its capital because it begins a text, a sentence, a line or a quotation."""
    if word not in _OPENERS:
        return False
    if place == 0 or word == "i":
        return True
    return text[found[place - 1].end() : found[place].start()].rstrip(" \t")[-1:] in BEGINNINGS


def _plain(number: str) -> str:
    """Return a number in one spelling: 1,000 and +1000.0 are the same."""
    plain = number.removeprefix("+")
    if GROUPED.fullmatch(plain):
        plain = plain.replace(",", "")
    whole, _, decimals = plain.partition(".")
    return plain if decimals.strip("0") else whole


_NEGATIONS, _OPENERS = frozenset(NEGATIONS.split()), frozenset(OPENERS.split())
