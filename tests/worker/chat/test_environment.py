"""Chat templates read fields as jinja2's own sandbox does."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError, UndefinedError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from worker.chat.environment import compiled

SOURCES = [
    "{{ m.role }}",
    "{{ m['role'] }}",
    "{{ m.nothing }}",
    "{{ m.nothing is defined }}",
    "{{ m.nested.text }}",
    "{% for key, value in m.items() %}{{ key }}{% endfor %}",
    "{{ m.items }}",
    "{{ m.keys() | list }}",
    "{{ m.get('role') }}",
    "{{ m.nothing.more }}",
    "{{ m.update({'role': 'x'}) }}",
    "{{ m.__class__ }}",
    "{{ m.role.__class__ }}",
    "{{ m.role.upper() }}",
]
MESSAGE = {"role": "user", "nested": {"text": "t"}, "items": "a field", "__class__": "another"}


def told(render: Any) -> Any:
    try:
        return render(m=MESSAGE)
    except (SecurityError, UndefinedError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("source", SOURCES)
def test_fields_are_those_that_jinja2_reads(source: str) -> None:
    expected = told(ImmutableSandboxedEnvironment().from_string(source).render)
    found = told(compiled(source).render)
    if "built-in method" in str(expected):  # its address
        expected, found = str(expected)[:30], str(found)[:30]
    assert found == expected


def test_a_template_sees_what_all_may_use() -> None:
    assert compiled("{{ namespace(a=1).a }}{{ range(2) | list }}").render() == "1[0, 1]"
    assert compiled("{{ strftime_now('%Y') | length }}").render() == "4"
    with pytest.raises(TemplateError, match="no"):
        compiled("{{ raise_exception('no') }}").render()


def test_a_prompt_leaves_nothing_for_the_next_one() -> None:
    template = compiled("{% if first %}{% set kept = 'x' %}{% endif %}[{{ kept }}{{ other }}]")
    assert [template.render(first=True, other="y"), template.render()] == ["[xy]", "[]"]
