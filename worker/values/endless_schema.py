"""Detect JSON schemas that no finite value satisfies, since each value would have to contain another."""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any
from urllib.parse import unquote

SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
Rule = tuple[Hashable, list[Hashable]]  # (head, needed): the head has a finite value if all needed ones do


def is_endless(schema: Any) -> bool:
    """Return whether no finite value satisfies a schema, judged by `$ref`, `required` and items.

    Takes time in proportion to the schema. A part that it does not understand counts as satisfiable.
    """
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    heads: list[Hashable] = []
    num_open: list[int] = []
    ready: list[Hashable] = []
    for head, needed in _rules(schema):
        for one in needed:
            waiting[one].append(len(heads))
        heads.append(head)
        num_open.append(len(needed))
        if not needed:
            ready.append(head)
    finite: set[Hashable] = set()
    while ready:
        found = ready.pop()
        if found in finite:
            continue
        finite.add(found)
        for rule in waiting[found]:
            num_open[rule] -= 1
            if not num_open[rule]:
                ready.append(heads[rule])
    return id(schema) not in finite


def _rules(root: Any) -> Iterator[Rule]:
    """Yield the rules of every schema within `root`; its `id()` names a schema, as `root` keeps it alive."""
    seen: set[int] = set()
    left = [root]
    while left:
        schema = left.pop()
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        for head, parts in _needs(schema, root):
            left += [part for part in parts if not isinstance(part, tuple)]
            yield head, [part if isinstance(part, tuple) else id(part) for part in parts]


def _needs(schema: Any, root: Any) -> Iterator[tuple[Hashable, list[Any]]]:
    """Yield the rules of one schema; they need schemas, or its own alternatives, named by tuples."""
    own = id(schema)
    if schema is False:
        return
    if not isinstance(schema, dict):
        yield own, []
        return
    if "$ref" in schema:  # older drafts ignore the keywords beside it
        target = _target(root, schema["$ref"])
        yield own, [] if target is None else [target]
        return
    needed = _list(schema, "allOf")
    for name in ("anyOf", "oneOf"):
        if branches := _list(schema, name):
            needed.append((own, name))
            for branch in branches:
                yield (own, name), [branch]
    types = schema.get("type")
    kinds = {types} if isinstance(types, str) else set(_list(schema, "type") or SCALARS)
    if kinds.isdisjoint(SCALARS) and schema.keys().isdisjoint({"const", "enum"}):
        needed.append((own, "type"))
        if "object" in kinds:
            yield (own, "type"), _members(schema)
        if "array" in kinds:
            yield (own, "type"), _items(schema)
    yield own, needed


def _members(schema: dict[str, Any]) -> list[Any]:
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    return [known.get(name, others) for name in _list(schema, "required") if isinstance(name, str)]


def _items(schema: dict[str, Any]) -> list[Any]:
    least = schema.get("minItems", 0)
    if not isinstance(least, (int, float)) or least <= 0:
        return []
    first = _list(schema, "prefixItems") or _list(schema, "items")
    rest = schema.get("items", True)
    if isinstance(rest, list):
        rest = schema.get("additionalItems", True)
    return [*first[: int(least)], *([rest] if least > len(first) else [])]


def _list(schema: dict[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return list(found) if isinstance(found, list) else []


def _target(root: Any, reference: Any) -> Any:
    """Return the schema that a reference within `root` names; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
