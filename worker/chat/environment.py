"""Compile chat templates in a sandbox, with what templates of checkpoints expect to find there."""

import json
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A template is a program: with messages it was not written for it can fail in any of these ways.
TEMPLATE_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class GenerationTags(Extension):
    """Takes `{% generation %}`, which tells trainers what an assistant has said, and writes what it holds."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the statements up to `{% endgeneration %}`, whose variables nobody else sees."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(value: object, **options: Any) -> str:
    """Write JSON as templates expect it: as it is, not escaped for HTML, in the order of its keys."""
    return json.dumps(value, **{"ensure_ascii": False} | options)


def _now(form: str) -> str:
    """Return the time in a form of `strftime`; some templates tell the model the date."""
    return datetime.now().astimezone().strftime(form)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


class _Environment(ImmutableSandboxedEnvironment):
    """Reads the fields of messages fast: these are dicts, which jinja2 asks for an attribute first."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return what `obj.attribute` means in a template."""
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        return super().getattr(obj, attribute)


ENVIRONMENT = _Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTags]
)
ENVIRONMENT.filters["tojson"] = _to_json
ENVIRONMENT.globals |= {"raise_exception": _raise_exception, "strftime_now": _now}


def compiled(source: str) -> Template:
    """Return a template ready to render; raises TemplateError for a wrong one."""
    template = ENVIRONMENT.from_string(source)
    # A ChainMap, which jinja2 copies for each prompt; a dict is copied six times as fast.
    template.globals = dict(template.globals)
    return template
