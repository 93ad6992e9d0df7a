"""Writes conversations that offer functions: calls, their results, and answers that need no call."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import words
from .values import fields, object_of

Message = dict[str, Any]
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Use:
    """A use of a function: what the user says, the arguments in it, the result, and the answer."""

    asked: str
    arguments: Arguments
    result: Any
    answer: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function as it is offered, and how uses of it are drawn."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    draw: Callable[[random.Random], Use]

    @property
    def definition(self) -> dict[str, Any]:
        """The definition as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def _weather(rng: random.Random, key: str) -> Use:
    city, degrees, sky = rng.choice(words.CITIES), rng.randint(-9, 38), rng.choice(words.WEATHER)
    asked = rng.choice(
        (
            f"What is the weather in {city}?",
            f"What's the weather like in {city}?",
            f"How is the weather in {city} today?",
            f"Is it warm in {city}?",
            f"Will it rain in {city}?",
            f"Weather in {city}",
            f"Tell me the weather in {city}, please.",
            f"What is the temperature in {city}?",
        )
    )
    result = {"temperature": degrees, "condition": sky}
    return Use(asked, {key: city}, result, f"It is {sky} in {city}, at {degrees} degrees.")


def _time(rng: random.Random, key: str) -> Use:
    city, clock = rng.choice(words.CITIES), f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    asked = rng.choice(
        (
            f"What time is it in {city}?",
            f"Time in {city}?",
            f"Tell me the time in {city}.",
            f"How late is it in {city}?",
        )
    )
    return Use(asked, {key: city}, clock, f"It is {clock} in {city}.")


def _sum(rng: random.Random, keys: tuple[str, str], sign: str) -> Use:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    word = {"+": "plus", "-": "minus", "*": "times"}[sign]
    verb = {"+": f"Add {a} and {b}.", "-": f"Subtract {b} from {a}.", "*": f"Multiply {a} and {b}."}[sign]
    asked = rng.choice(
        (f"What is {a} {sign} {b}?", f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", verb)
    )
    return Use(asked, dict(zip(keys, (a, b), strict=True)), result, f"{a} {sign} {b} is {result}.")


def _search(rng: random.Random, key: str) -> Use:
    thing = rng.choice(
        (f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.PRODUCTS)}s", rng.choice(words.TOPICS))
    )
    found = f"{rng.choice(words.ADJECTIVES)} {thing}"
    asked = rng.choice(
        (f"Search for {thing}.", f"Find {thing}.", f"Look up {thing}.", f"What is there about {thing}?")
    )
    return Use(asked, {key: thing}, [found], f"I found this: {found}.")


def _email(rng: random.Random) -> Use:
    name, topic = rng.choice(words.NAMES), rng.choice((*words.TOPICS, *words.NOUNS))
    asked = rng.choice(
        (
            f"Send an email to {name} about {topic}.",
            f"Write to {name} about {topic}.",
            f"Email {name} about the {topic}.",
        )
    )
    return Use(
        asked, {"to": name, "subject": topic}, "sent", f"I have sent an email about {topic} to {name}."
    )


def _order(rng: random.Random, verb: str) -> Use:
    count, item = rng.randint(1, 12), rng.choice((*words.PRODUCTS, *words.FOODS))
    asked = rng.choice(
        (
            f"{verb} {count} {item}s.",
            f"I want to {verb.lower()} {count} {item}s.",
            f"{verb} {count} {item}s, please.",
        )
    )
    return Use(asked, {"item": item, "quantity": count}, {"ok": True}, f"Done: {count} {item}s.")


def _reminder(rng: random.Random) -> Use:
    task, day = f"{rng.choice(words.VERBS)} the {rng.choice(words.PRODUCTS)}", rng.choice(words.DAYS)
    asked = rng.choice(
        (
            f"Remind me to {task} on {day}.",
            f"Remind me on {day} to {task}.",
            f"Set a reminder for {day}: {task}.",
        )
    )
    return Use(asked, {"text": task, "day": day}, "saved", f"I will remind you on {day} to {task}.")


def _switch(rng: random.Random) -> Use:
    thing, place, state = (
        rng.choice(("light", "fan", "oven", "radio")),
        rng.choice(words.PLACES),
        rng.choice(("on", "off")),
    )
    asked = rng.choice(
        (f"Turn {state} the {thing} in the {place}.", f"Switch the {thing} in the {place} {state}.")
    )
    return Use(
        asked,
        {"device": thing, "place": place, "state": state},
        "ok",
        f"The {thing} in the {place} is {state}.",
    )


def _look_up(rng: random.Random, kind: str, key: str) -> Use:
    name, status = rng.choice((*words.NAMES, *words.COMPANIES)), rng.choice(words.STATUSES)
    asked = rng.choice(
        (
            f"What is the {kind} of {name}?",
            f"Get the {kind} of {name}.",
            f"Look up the {kind} of {name}.",
            f"Show me {name}'s {kind}.",
        )
    )
    return Use(asked, {key: name}, {kind: status}, f"The {kind} of {name} is {status}.")


def _label(rng: random.Random) -> Use:
    mood = rng.choice(("good", "bad"))
    text = f"The {rng.choice(words.PRODUCTS)} is {rng.choice(words.GOOD if mood == 'good' else words.BAD)}."
    asked = rng.choice((f"Label this: {text}", f"Store a label for: {text}", f"Rate this text: {text}"))
    return Use(asked, {"sentiment": mood, "is_question": False}, "stored", f"The label is {mood}.")


def _schema(*keys: str, **types: Any) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in keys}
    properties |= {key: one if isinstance(one, dict) else {"type": one} for key, one in types.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _known(rng: random.Random) -> Tool:
    """Return a function that has a meaning, under one of its names."""
    key = rng.choice(("city", "location", "place"))
    word = rng.choice(("query", "q", "text", "topic"))
    sign, names = rng.choice(
        (("+", ("add", "sum", "plus")), ("-", ("subtract", "minus")), ("*", ("multiply", "times")))
    )
    pair = rng.choice((("a", "b"), ("x", "y"), ("first", "second")))
    verb, who = rng.choice(("Order", "Buy", "Add")), rng.choice(("name", "customer", "user"))
    kind = rng.choice(["status", "balance", "email", "address", "phone", "score", "account", "plan"])
    mood = {"type": "string", "enum": ["good", "bad", "neutral"]}
    numbers = dict.fromkeys(pair, "integer")
    made: tuple[tuple[str, str, dict[str, Any], Callable[[random.Random], Use]], ...] = (
        (
            "get_weather weather weather_in current_weather",
            "Get the weather of a city.",
            _schema(key),
            lambda r: _weather(r, key),
        ),
        (
            "get_time time_in clock current_time",
            "Tell the time in a city.",
            _schema(key),
            lambda r: _time(r, key),
        ),
        (" ".join(names), "Compute with two numbers.", _schema(**numbers), lambda r: _sum(r, pair, sign)),
        (
            "search find web_search look_up",
            "Search for something.",
            _schema(word),
            lambda r: _search(r, word),
        ),
        ("send_email email write_email", "Send an email.", _schema("to", "subject"), _email),
        (
            f"{verb.lower()}_item {verb.lower()} place_order",
            f"{verb} things.",
            _schema("item", quantity="integer"),
            lambda r: _order(r, verb),
        ),
        ("set_reminder remind create_reminder", "Set a reminder.", _schema("text", "day"), _reminder),
        ("switch set_device turn", "Switch a device.", _schema("device", "place", "state"), _switch),
        (
            f"get_{kind} {kind}_of look_up_{kind}",
            f"Get somebody's {kind}.",
            _schema(who),
            lambda r: _look_up(r, kind, who),
        ),
        (
            "label store_label rate",
            "Store the label of a text.",
            _schema(sentiment=mood, is_question="boolean"),
            _label,
        ),
    )
    some_names, description, parameters, draw = rng.choice(made)
    return Tool(rng.choice(some_names.split()), rng.choice((description, description, "")), parameters, draw)


def _made_up(rng: random.Random) -> Tool:
    """Return a made-up function, so that definitions are read and not only known."""
    verb, noun = rng.choice(words.VERBS), rng.choice((*words.NOUNS, *words.PRODUCTS))
    some = [one for one in fields(rng, rng.randint(1, 3), depth=0) if one.schema.get("type") != "array"]
    name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", f"{verb}{noun.capitalize()}", verb))

    def draw(rng: random.Random) -> Use:
        arguments = object_of(some).draw(rng)
        told = [f"{field.key.replace('_', ' ')} {_in_words(arguments[field.key])}" for field in some]
        end = f" with {' and '.join(told)}" if told else ""
        asked = rng.choice(
            (f"{verb.capitalize()} the {noun}{end}.", f"Please {verb} a {noun}{end}.", f"Use {name}{end}.")
        )
        return Use(asked, arguments, rng.choice(("ok", {"ok": True}, "done")), f"Done: {verb} the {noun}.")

    parameters = dict(object_of(some).schema)
    if rng.random() < 0.2:
        parameters["additionalProperties"] = False
    if rng.random() < 0.2:  # as clients describe classes
        parameters["properties"] = {
            key: {"title": key.title(), **one} for key, one in parameters["properties"].items()
        }
    return Tool(name, f"{verb.capitalize()} a {noun}.", parameters, draw)


def _in_words(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _call(tool: Tool, use: Use) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "arguments": use.arguments}}


def _result(rng: random.Random, tool: Tool, use: Use) -> Message:
    text = use.result if isinstance(use.result, str) else json.dumps(use.result)
    return {"role": "tool", "name": tool.name, "content": rng.choice((text, json.dumps(use.result)))}


def conversation(
    rng: random.Random, chat: Callable[[random.Random], tuple[str, str]]
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Return messages and the definitions that are offered; some ask for what needs no function."""
    offered: dict[str, Tool] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        tool = _known(rng) if rng.random() < 0.6 else _made_up(rng)
        offered.setdefault(tool.name, tool)
    tools = list(offered.values())
    definitions = [tool.definition for tool in tools]
    if rng.random() < 0.15:
        asked, answered = chat(rng)
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}], definitions
    tool = rng.choice(tools)
    uses = [tool.draw(rng)]
    if rng.random() < 0.12:
        uses.append(tool.draw(rng))
    asked = " ".join(use.asked for use in uses)
    content = rng.choice(("",) * 9 + ("I will look it up.",))
    calls = [_call(tool, use) for use in uses]
    messages: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": content, "tool_calls": calls},
    ]
    if rng.random() < 0.5:
        messages += [_result(rng, tool, use) for use in uses]
        messages.append({"role": "assistant", "content": " ".join(use.answer for use in uses)})
        if rng.random() < 0.3:
            use = tool.draw(rng)
            messages += [
                {"role": "user", "content": use.asked},
                {"role": "assistant", "content": "", "tool_calls": [_call(tool, use)]},
            ]
    return messages, definitions
