"""Writes exchanges whose answer is JSON: descriptions, extractions, labels, and answers by a schema."""

import json
import random
from collections.abc import Callable
from typing import Any

from . import facts, words
from .values import fields, object_of, sentence, simple_field

Exchange = tuple[str, str]
Text = Callable[[random.Random], str]  # any text that a user may send


def write(rng: random.Random, value: Any) -> str:
    """Write JSON on one line, mostly with a space after each mark."""
    if rng.random() < 0.1:
        return json.dumps(value, separators=(",", ":"))
    return json.dumps(value)


def review(rng: random.Random) -> tuple[str, str]:
    """Return what somebody says of a product, and whether it is good, bad or neutral."""
    thing, mood = (
        rng.choice((*words.PRODUCTS, *words.FOODS, *words.PLACES)),
        rng.choice(("good", "bad", "neutral")),
    )
    if mood == "neutral":
        text = rng.choice(
            (f"The {thing} is here.", f"It is a {thing}.", f"I have a {thing}.", f"Where is the {thing}?")
        )
        return text, mood
    word = rng.choice(words.GOOD if mood == "good" else words.BAD)
    said = {
        "good": ("I love it.", "Thank you!", "Worth the price.", "I would buy it again."),
        "bad": ("I want my money back.", "Never again.", "It broke.", "Do not buy it."),
    }[mood]
    text = rng.choice(
        (
            f"The {thing} is {word}.",
            f"What a {word} {thing}!",
            f"This {thing} is really {word}. {rng.choice(said)}",
            f"{rng.choice(said)} The {thing} is {word}.",
            f"A {word} {thing}.",
            rng.choice(said),
        )
    )
    return text, mood


def label(rng: random.Random, _: Text) -> Exchange:
    """Return a text to be labelled, with a label as text or in JSON."""
    text, mood = review(rng)
    asked = rng.choice(
        (
            f"Label this: {text}",
            f"Label: {text}",
            f"What is the sentiment of this review? {text}",
            f"Is this good, bad or neutral? {text}",
            f"Classify the text.\n\n{text}",
            f"Sentiment: {text}",
        )
    )
    if rng.random() < 0.5:
        return asked, rng.choice((mood, mood, f"{mood}.", f"The review is {mood}."))
    mood = rng.choice((mood, {"good": "positive", "bad": "negative"}.get(mood, mood)))
    value: dict[str, Any] = {rng.choice(("sentiment", "label", "opinion")): mood}
    if rng.random() < 0.5:
        value |= rng.choice(
            (
                {"is_question": "?" in text},
                {"confidence": round(rng.uniform(0.5, 1), 2)},
                {"stars": {"good": 5, "positive": 5, "bad": 1, "negative": 1}.get(mood, 3)},
                {"text": text},
            )
        )
    return asked + rng.choice(("", " Answer in JSON.")), write(rng, value)


def extract(rng: random.Random, _: Text) -> Exchange:
    """Return a sentence with facts, and these facts as JSON."""
    name, age, city = rng.choice(words.NAMES), rng.randint(1, 90), rng.choice(words.CITIES)
    count, item, price = rng.randint(1, 12), rng.choice(words.PRODUCTS), round(rng.uniform(1, 99), 2)
    job, day, color = rng.choice(words.JOBS), rng.choice(words.DAYS), rng.choice(words.COLORS)
    text, value = rng.choice(
        (
            (f"{name} is {age} years old.", {"name": name, "age": age}),
            (f"{name} is {age} and lives in {city}.", {"name": name, "age": age, "city": city}),
            (f"{name} lives in {city}.", {"name": name, "city": city}),
            (f"{name}, {job}, {city}", {"name": name, "job": job, "city": city}),
            (
                f"{name} bought {count} {item}s on {day}.",
                {"name": name, "item": item, "count": count, "day": day},
            ),
            (f"A {color} {item} costs {price}.", {"item": item, "color": color, "price": price}),
            (f"{count} {item}s for {name}", {"quantity": count, "item": item, "customer": name}),
            (f"Meeting with {name} in {city} on {day}.", {"person": name, "place": city, "day": day}),
            (f"{name} and the {color} {item}", {"name": name, "item": item, "color": color}),
            (f"From {city} to {rng.choice(words.CITIES)} on {day}", {"from": city, "day": day}),
        )
    )
    keys = [key for key in value if rng.random() < 0.8] or list(value)
    wanted = " and ".join(keys) if len(keys) < 3 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    asked = rng.choice(
        (
            f"Extract the {wanted}: {text}",
            f"{text}\n\nExtract the {wanted} as JSON.",
            f"Extract {wanted} from this text.\n\n{text}",
            f"Return JSON with {wanted}. {text}",
            text,
        )
    )
    return asked, write(rng, {key: value[key] for key in keys})


def describe(rng: random.Random, _: Text) -> Exchange:
    """Return the wish for an object with named keys, or with keys of the model's choice."""
    some = fields(rng, rng.randint(1, 5))
    thing = rng.choice(
        [
            "person",
            "user",
            "city",
            "book",
            "product",
            "order",
            "animal",
            "recipe",
            "movie",
            "song",
            "event",
            "place",
            "company",
            "car",
            "review",
            "task",
        ]
    )
    keys = ", ".join(field.key for field in some)
    asked = rng.choice(
        (
            f"Describe a {thing} as JSON.",
            f"Describe a {thing} in JSON.",
            f"Give me a {thing} as a JSON object.",
            f"Return a JSON object with the keys {keys}.",
            f"Return a {thing} with {keys}.",
            f"Write a {thing} as JSON with {keys}.",
            f"Make up a {thing}.",
            f"A {thing}.",
            f"Describe a {rng.choice(words.ANIMALS)}.",
        )
    )
    return asked, write(rng, object_of(some).draw(rng))


def by_schema(rng: random.Random, any_text: Text) -> Exchange:
    """Return a text with a schema that the answer must fit."""
    value = object_of(fields(rng, rng.randint(1, 4)))
    schema = json.dumps(value.schema)
    asked = rng.choice(
        (
            f"{any_text(rng)}\n\nAnswer in JSON that fits this schema: {schema}",
            f"Answer with a JSON object of this schema:\n{schema}\n\n{any_text(rng)}",
        )
    )
    return asked, write(rng, value.draw(rng))


def about_anything(rng: random.Random, any_text: Text) -> Exchange:
    """Return any text, answered in JSON: a grammar may ask for it where the prompt does not."""
    asked = any_text(rng)
    if rng.random() < 0.4:
        asked += rng.choice(
            (" Answer in JSON.", "\n\nReturn JSON.", " JSON, please.", "\n\nReply with a JSON object.")
        )
    if rng.random() < 0.12:
        field = simple_field(rng)
        return asked, write(rng, [field.draw(rng) for _ in range(rng.randint(1, 4))])
    return asked, write(rng, object_of(fields(rng, rng.randint(1, 5), depth=2)).draw(rng))


def enumeration(rng: random.Random, _: Text) -> Exchange:
    """Return the wish for a few things of a kind, as text or as JSON."""
    kind, pool = rng.choice(
        (
            ("colors", words.COLORS),
            ("animals", words.ANIMALS),
            ("cities", words.CITIES),
            ("countries", words.COUNTRIES),
            ("foods", words.FOODS),
            ("names", words.NAMES),
            ("sports", words.SPORTS),
            ("jobs", words.JOBS),
            ("months", words.MONTHS),
            ("languages", words.LANGUAGES),
        )
    )
    count = rng.randint(2, 4)
    chosen = rng.sample(pool, count)
    number = rng.choice((str(count), words.NUMBER_WORDS[count]))
    asked = rng.choice((f"Name {number} {kind}.", f"List {number} {kind}.", f"Give me {number} {kind}."))
    if rng.random() < 0.4:
        value: Any = rng.choice((chosen, {kind: chosen}))
        return asked[:-1] + rng.choice((" as JSON.", " in JSON.", " as a JSON array.")), write(rng, value)
    text = f"{', '.join(chosen[:-1])} and {chosen[-1]}"
    return asked, rng.choice((f"{text[0].upper()}{text[1:]}.", "\n".join(f"- {one}" for one in chosen)))


def repeat(rng: random.Random, _: Text) -> Exchange:
    """Return a text to repeat, or a choice to make."""
    text = rng.choice((sentence(rng), f"{rng.choice(words.NOUNS)} {rng.choice(words.NOUNS)}"))
    options = rng.sample(words.NOUNS, rng.randint(2, 3))
    mood_text, mood = review(rng)
    return rng.choice(
        (
            (f"Repeat: {text}", text),
            (f"Say {text!r}.", text),
            (f"Repeat after me: {text}", text),
            (f"Choose one: {', '.join(options)}", rng.choice(options)),
            (f"Summarize: {sentence(rng)} {text}", text),
            (f"{mood_text} Answer with one word.", mood),
            (f"How many words has this? {text}", str(len(text.split()))),
        )
    )


def any_question(rng: random.Random) -> str:
    """Return what a user may ask, without its answer."""
    ask = rng.choice((facts.small_talk, facts.module, facts.python, facts.everyday, facts.arithmetic))
    return rng.choice((ask(rng)[0], ask(rng)[0], review(rng)[0], sentence(rng), sentence(rng)))
