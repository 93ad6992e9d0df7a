"""Draws fields: a key, the JSON schema of its value, and a value that suits the key."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import words

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A property of an object: its key, its schema, and how a value is drawn."""

    key: str
    schema: Mapping[str, Any]
    draw: Draw


def _of(pool: Sequence[Any]) -> Draw:
    return lambda rng: rng.choice(pool)


def _integer(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def _number(low: float, high: float, digits: int) -> Draw:
    return lambda rng: round(rng.uniform(low, high), digits)


def _full_name(rng: random.Random) -> str:
    return f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}"


def _email(rng: random.Random) -> str:
    return f"{rng.choice(words.NAMES).lower()}@{rng.choice(words.COMPANIES).lower()}.example"


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(20, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}"


def _street(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(words.PLACES).capitalize()} Street"


def _code(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFXYZ')}{rng.choice(('', '-'))}{rng.randint(10, 9999)}"


def _phrase(rng: random.Random) -> str:
    thing = f"{rng.choice(words.ADJECTIVES)} {rng.choice((*words.PRODUCTS, *words.ANIMALS, *words.PLACES))}"
    return rng.choice((f"a {thing}", f"the {thing}", thing, f"The {thing.title()}"))


def sentence(rng: random.Random) -> str:
    """Return a short sentence about anything."""
    thing = rng.choice((*words.PRODUCTS, *words.FOODS, *words.PLACES, *words.ANIMALS))
    quality, name = rng.choice(words.ADJECTIVES), rng.choice(words.NAMES)
    return rng.choice(
        (
            f"The {thing} is {quality}.",
            f"It is a {quality} {thing}.",
            f"{name} likes the {thing}.",
            f"{name} has a {quality} {thing}.",
            f"{name} saw the {thing} in {rng.choice(words.CITIES)}.",
            f"This {thing} is {rng.choice((*words.GOOD, *words.BAD))}.",
            f"The {thing} and the {rng.choice(words.ANIMALS)} are {quality}.",
        )
    )


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))
# What keys mean, by kind of value.
NAMED: tuple[tuple[str, Mapping[str, Any], Draw], ...] = (
    ("name first_name user person owner author_name contact guest", STRING, _of(words.NAMES)),
    ("full_name author sender recipient customer artist player fullName", STRING, _full_name),
    ("last_name surname family_name", STRING, _of(words.SURNAMES)),
    ("city location place town destination origin from to birthplace", STRING, _of(words.CITIES)),
    ("country nation", STRING, _of(words.COUNTRIES)),
    ("capital", STRING, _of(list(words.CAPITALS.values()))),
    ("street address", STRING, _street),
    ("animal species pet", STRING, _of(words.ANIMALS)),
    ("food dish fruit meal ingredient", STRING, _of(words.FOODS)),
    ("color colour", STRING, _of(words.COLORS)),
    ("product item object thing gift", STRING, _of(words.PRODUCTS)),
    ("job profession occupation role", STRING, _of(words.JOBS)),
    ("department team", STRING, _of(words.DEPARTMENTS)),
    ("company brand employer organization", STRING, _of(words.COMPANIES)),
    ("topic subject theme field area", STRING, _of(words.TOPICS)),
    ("language", STRING, _of(words.LANGUAGES)),
    ("genre kind type category label class group", STRING, _of((*words.GENRES, *words.TOPICS))),
    ("sport hobby", STRING, _of(words.SPORTS)),
    ("month", STRING, _of(words.MONTHS)),
    ("day weekday", STRING, _of(words.DAYS)),
    ("weather condition forecast", STRING, _of(words.WEATHER)),
    ("unit", STRING, _of(words.UNITS)),
    ("currency", STRING, _of(words.CURRENCIES)),
    ("date start_date end_date due birthday published created_at", STRING, _date),
    ("time start end departure arrival", STRING, _time),
    ("email", STRING, _email),
    ("phone", STRING, lambda rng: f"+{rng.randint(1, 99)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}"),
    ("url link website", STRING, lambda rng: f"https://{rng.choice(words.COMPANIES).lower()}.example"),
    ("id order_id code ticket reference sku room", STRING, _code),
    (
        "file filename path",
        STRING,
        lambda rng: f"{rng.choice(words.NOUNS)}.{rng.choice(('txt', 'py', 'json'))}",
    ),
    ("title headline event song album book film movie", STRING, _phrase),
    ("word keyword tag noun key", STRING, _of(words.NOUNS)),
    ("adjective quality mood feeling taste", STRING, _of(words.ADJECTIVES)),
    (
        "summary description text comment note message content answer reason explanation sentence body reply",
        STRING,
        sentence,
    ),
    ("details output result feedback review thought thoughts reasoning response", STRING, sentence),
    ("question query", STRING, lambda rng: f"What is the {rng.choice(words.NOUNS)}?"),
    ("age", INTEGER, _integer(1, 90)),
    ("year", INTEGER, _integer(1950, 2029)),
    ("count quantity amount number guests seats people copies", INTEGER, _integer(1, 20)),
    ("rating stars level floor rank priority_level", INTEGER, _integer(1, 5)),
    ("points pages minutes seconds duration steps calories index total size", INTEGER, _integer(1, 500)),
    ("population salary views", INTEGER, _integer(1_000, 90_000)),
    ("price cost fee total_price amount_due", NUMBER, _number(1, 200, 2)),
    ("score confidence probability similarity", NUMBER, _number(0, 1, 2)),
    ("weight height length width distance speed temperature", NUMBER, _number(1, 100, 1)),
    ("latitude longitude", NUMBER, _number(-90, 90, 3)),
    (
        "is_active active done available urgent is_question valid in_stock correct",
        BOOLEAN,
        _of((True, False)),
    ),
    (
        "paid enabled public required is_new has_children isValid found success ok",
        BOOLEAN,
        _of((True, False)),
    ),
)
ENUMS: tuple[tuple[str, Sequence[Any]], ...] = (
    ("sentiment", ("positive", "negative", "neutral")),
    ("sentiment", ("good", "bad", "neutral")),
    ("opinion", ("good", "bad")),
    ("status", words.STATUSES[:4]),
    ("state", ("on", "off")),
    ("priority", words.PRIORITIES),
    ("size", ("small", "medium", "large")),
    ("unit", ("celsius", "fahrenheit")),
    ("answer", ("yes", "no")),
    ("kind", ("cat", "dog")),
    ("animal", ("bird", "fish", "horse")),
    ("color", ("red", "green", "blue")),
    ("level", ("easy", "normal", "hard")),
    ("language", ("en", "de", "fr")),
    ("category", ("food", "travel", "sport", "work")),
    ("label", ("spam", "ham")),
    ("direction", ("north", "south", "east", "west")),
    ("stars", (1, 2, 3, 4, 5)),
)
LISTS: tuple[tuple[str, Mapping[str, Any], Draw], ...] = (
    ("tags keywords topics labels categories", STRING, _of((*words.TOPICS, *words.NOUNS))),
    ("names people guests members authors friends", STRING, _of(words.NAMES)),
    ("cities places stops", STRING, _of(words.CITIES)),
    ("countries", STRING, _of(words.COUNTRIES)),
    ("colors", STRING, _of(words.COLORS)),
    ("animals pets", STRING, _of(words.ANIMALS)),
    ("ingredients foods dishes fruits", STRING, _of(words.FOODS)),
    ("items products things", STRING, _of(words.PRODUCTS)),
    ("languages", STRING, _of(words.LANGUAGES)),
    ("skills hobbies", STRING, _of((*words.SPORTS, *words.VERBS))),
    ("words adjectives", STRING, _of(words.ADJECTIVES)),
    ("steps sentences notes facts reasons", STRING, sentence),
    ("numbers scores values points ids", INTEGER, _integer(0, 99)),
    ("prices weights", NUMBER, _number(0, 100, 1)),
    ("flags answers", BOOLEAN, _of((True, False))),
)
FREE: tuple[tuple[Mapping[str, Any], Draw], ...] = (
    (STRING, _of(words.NOUNS)),
    (STRING, _of(words.ADJECTIVES)),
    (STRING, _phrase),
    (STRING, sentence),
    (STRING, _of((*words.NAMES, *words.CITIES, *words.TOPICS))),
    (INTEGER, _integer(0, 100)),
    (NUMBER, _number(0, 100, 1)),
    (BOOLEAN, _of((True, False))),
)


def _any_key(rng: random.Random) -> str:
    """Return a key of two words, so that keys are read and not only known."""
    first, second = rng.choice((*words.NOUNS, *words.ADJECTIVES)), rng.choice(words.NOUNS)
    return rng.choice((f"{first}_{second}", f"{first}_{second}", f"{first}{second.capitalize()}", second))


def simple_field(rng: random.Random) -> Field:
    """Return a field whose value is a string, a number, a truth or one of a list."""
    chance = rng.random()
    if chance < 0.62:
        keys, schema, draw = rng.choice(NAMED)
        return Field(rng.choice(keys.split()), schema, draw)
    if chance < 0.80:
        key, options = rng.choice(ENUMS)
        return Field(key, {"enum": list(options)}, _of(options))
    schema, draw = rng.choice(FREE)
    return Field(_any_key(rng), schema, draw)


def list_field(rng: random.Random) -> Field:
    """Return a field whose value is a list of a few values; rarely of none."""
    keys, schema, draw = rng.choice(LISTS)

    def draw_list(rng: random.Random) -> list[Any]:
        return [draw(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))]

    return Field(rng.choice(keys.split()), {"type": "array", "items": schema}, draw_list)


def object_field(rng: random.Random, depth: int) -> Field:
    """Return a field whose value is an object, or a list of them."""
    kind = rng.choice(
        [
            "address",
            "person",
            "user",
            "item",
            "product",
            "details",
            "location",
            "meta",
            "order",
            "owner",
            "author",
            "price",
            "size",
        ]
    )
    inner = object_of(fields(rng, rng.randint(1, 3), depth - 1))
    if rng.random() < 0.7:
        return Field(kind, inner.schema, inner.draw)
    plural = rng.choice(["items", "orders", "people", "results", "entries", "rows", "users", "products"])

    def draw_list(rng: random.Random) -> list[Any]:
        return [inner.draw(rng) for _ in range(rng.choice((1, 1, 2, 2, 3)))]

    return Field(plural, {"type": "array", "items": inner.schema}, draw_list)


def fields(rng: random.Random, count: int, depth: int = 1) -> list[Field]:
    """Return fields with different keys; at most `depth` objects stand in each other."""
    found: dict[str, Field] = {}
    while len(found) < count:
        chance = rng.random()
        if chance < 0.15:
            field = list_field(rng)
        elif chance < 0.25 and depth > 0:
            field = object_field(rng, depth)
        else:
            field = simple_field(rng)
        found.setdefault(field.key, field)
    return list(found.values())


def object_of(some: Sequence[Field], key: str = "") -> Field:
    """Return the object that has these fields."""
    schema = {
        "type": "object",
        "properties": {field.key: dict(field.schema) for field in some},
        "required": [field.key for field in some],
    }
    return Field(key, schema, lambda rng: {field.key: field.draw(rng) for field in some})
