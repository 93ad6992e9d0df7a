"""Defines what a request's output is expected to be, and judges an output by it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from llguidance import LLMatcher, LLTokenizer

from worker.quality.json_schema import SchemaError, check_schema, is_valid
from worker.values.grammar import LIMITS, Grammar, GrammarError, LibraryPanicError, on_deep_stack

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
# Tokens that are single bytes, so that a regular expression is matched in time linear in the output.
_BYTES = LLTokenizer("byte")


class ExpectedError(ValueError):
    """An expectation is malformed. The message begins with the field that is wrong, if one is."""


class Match(StrEnum):
    """How an output is compared with the expected value."""

    EXACT = "exact"  # the same text, without white space at both ends
    REGEX = "regex"  # the regular expression matches it as a whole
    JSON = "json"  # JSON that is equal, whatever the order of keys
    NUMBER = "number"  # its last number differs by `within` at most
    JSON_SCHEMA = "json_schema"  # JSON that is valid by the schema


@dataclass(frozen=True, slots=True)
class Expected:
    """The reference answer of a request, and how its output is compared with that."""

    match: Match
    value: Any
    within: float = 0.0  # of a number

    @classmethod
    def from_json(cls, given: object) -> Self:
        """Read `{"match": ..., "value": ..., "within": ...}`, or a text, which is matched exactly.

        Raises:
            ExpectedError: it is malformed.

        """
        if isinstance(given, str):
            return cls(Match.EXACT, given)
        if not isinstance(given, Mapping):
            raise ExpectedError("must be a text, or an object with match and value")
        if wrong := sorted(set(given) - {"match", "value", "within"}):
            raise ExpectedError(f"{wrong[0]}: is not a known field")
        kind = given.get("match", Match.EXACT)
        if kind not in list(Match):
            raise ExpectedError(f"match: must be one of {', '.join(Match)}")
        if "value" not in given:
            raise ExpectedError("value: is required")
        if "within" in given and kind != Match.NUMBER:
            raise ExpectedError("within: goes with match number only")
        found = cls(Match(kind), given["value"], given.get("within", 0.0))
        found._check()
        return found

    def to_json(self) -> dict[str, Any]:
        """Return this as `from_json` reads it."""
        within = {"within": self.within} if self.match is Match.NUMBER else {}
        return {"match": self.match.value, "value": self.value, **within}

    def is_met(self, output: str) -> bool:
        """Return whether an output is as expected; one that is nested too deep to be compared is not."""
        try:
            return self._is_met(output)
        except RecursionError:
            return False

    def _is_met(self, output: str) -> bool:
        match self.match:
            case Match.EXACT:
                return output.strip() == str(self.value).strip()
            case Match.REGEX:
                return _matches(self.value, output)
            case Match.NUMBER:
                number = last_number(output)
                return number is not None and abs(number - self.value) <= self.within
            case Match.JSON:
                found, read = _read(output)
                return read and _canonical(found) == _canonical(self.value)
            case Match.JSON_SCHEMA:
                found, read = _read(output)
                return read and is_valid(found, self.value)

    def _check(self) -> None:
        if self.match in {Match.EXACT, Match.REGEX} and not isinstance(self.value, str):
            raise ExpectedError(f"value: must be a text, as match is {self.match}")
        if self.match is Match.NUMBER:
            for name, value in (("value", self.value), ("within", self.within)):
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                    raise ExpectedError(f"{name}: must be a number")
            if self.within < 0:
                raise ExpectedError("within: must not be negative")
        try:
            if self.match is Match.REGEX:
                _check_pattern(self.value)
            if self.match is Match.JSON_SCHEMA:
                check_schema(self.value)
        except (GrammarError, SchemaError) as error:
            raise ExpectedError(f"value: {error}") from error


def last_number(output: str) -> float | None:
    """Return the last number in a text, where an answer mostly stands; None if there is none."""
    found = NUMBER.findall(output)
    return float(found[-1].replace(",", "")) if found else None


@lru_cache(maxsize=1024)
def _check_pattern(pattern: str) -> None:
    Grammar.regex(pattern).check(_BYTES)


def _matches(pattern: str, output: str) -> bool:
    tokens = list(output.encode(errors="replace"))

    def follow() -> bool:
        matcher = LLMatcher(_BYTES, Grammar.regex(pattern).source, log_level=0, limits=LIMITS)
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    try:
        return on_deep_stack(follow)
    except LibraryPanicError:
        return False


def _read(output: str) -> tuple[Any, bool]:
    """Return the value of a JSON text and True, or None and False."""
    try:
        return json.loads(output), True
    except ValueError:
        return None, False


def _canonical(value: Any) -> str:
    # 1 and 1.0 are one number of JSON; True is none.
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
