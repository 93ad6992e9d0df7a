"""Reads a compose file as Compose does: variables, their defaults, and variables without a value."""

import re
from pathlib import Path
from typing import Any

import yaml

from worker.up import ROOT
from worker.webhooks.signing import new_secret

DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
COMPOSE_MODELS = DOCKER / "compose.models.yaml"
VARIABLE = re.compile(
    r"(?<!\$)\$(?:\{(?P<name>\w+)(?:(?P<operator>:?[-?])(?P<operand>[^}]*))?\}|(?P<bare>\w+))"
)
REQUIRED = {
    "POSTGRES_PASSWORD": "postgres-password",
    "REDIS_PASSWORD": "redis-password",
    "HEADRACE_WEBHOOK_SECRET": new_secret(),
    "FLOWER_BASIC_AUTH": "headrace:flower-password",
}


def interpolate(text: str, environment: dict[str, str]) -> str:
    """Fill in variables as Compose does."""

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["bare"]
        if environment.get(name):
            return environment[name]
        operator, operand = match["operator"], match["operand"]
        assert operator in {":-", ":?"}, f"{match[0]}: an empty {name} would get through"
        assert operator == ":-", f"{name} is required: {operand}"
        return operand

    return VARIABLE.sub(value, text).replace("$$", "$")


def interpolate_all(node: Any, environment: dict[str, str]) -> Any:
    """Fill in the variables of every text in a document, after it was read, as Compose does."""
    if isinstance(node, dict):
        return {key: interpolate_all(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [interpolate_all(value, environment) for value in node]
    return interpolate(node, environment) if isinstance(node, str) else node


def load(path: Path = COMPOSE, **environment: str) -> dict[str, Any]:
    """Return a document with its variables filled in; a variable without a text is passed on if it is set."""
    document = interpolate_all(yaml.safe_load(path.read_text()), REQUIRED | environment)
    assert isinstance(document, dict)
    for service in document["services"].values():
        if "environment" in service:
            given = {
                name: environment.get(name) if value is None else value
                for name, value in service["environment"].items()
            }
            service["environment"] = {name: value for name, value in given.items() if value is not None}
    return document


def merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """Merge as Compose does where no list meets another."""
    for key, value in override.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge(base[key], value) if both else value
    return base


def seconds(duration: str) -> int:
    """Return a duration's seconds."""
    match = re.fullmatch(r"(\d+)([sm])", duration)
    assert match is not None, duration
    return int(match[1]) * {"s": 1, "m": 60}[match[2]]
