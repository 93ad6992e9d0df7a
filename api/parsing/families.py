"""Finds the family of a checkpoint by the marks in its chat template, or else among its tokens."""

from collections.abc import Collection

from worker.parsing import coder, deepseek, gemma, harmony, hermes, mistral
from worker.values.parsing import Family
from worker.values.thinking import CLOSINGS, OPENINGS, ThinkingStyle

# In this order: what a template writes around calls names its family.
MARKS: tuple[tuple[Family, tuple[str, ...]], ...] = (
    (Family.HARMONY, (harmony.CHANNEL,)),
    (Family.MISTRAL, (mistral.OPENING,)),
    (Family.GEMMA, tuple(gemma.DIALECTS)),
    (Family.DEEPSEEK, (deepseek.CALLS,)),
    (Family.CODER, (coder.FUNCTION,)),
    (Family.HERMES, (hermes.OPENING,)),
    (Family.LLAMA, ("<|python_tag|>", "<|start_header_id|>ipython", '{"name": function name, "parameters"')),
)
MODEL_TYPES = {"gpt_oss": Family.HARMONY}


def find_family(template: str | None, tokens: Collection[str], model_type: object) -> Family:
    """Return the family of a checkpoint; NONE if nothing tells it.

    A template that knows no tools is completed by our own rule (docs/tools.md), which makes it HERMES.
    """
    if isinstance(model_type, str) and model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    for family, marks in MARKS:
        if template is not None and any(mark in template for mark in marks):
            return family
    if mistral.OPENING in tokens:
        return Family.MISTRAL
    return Family.NONE


def find_thinking_style(template: str | None, family: Family) -> ThinkingStyle | None:
    """Return how a model marks what it thinks before its answer; None if it does not."""
    if family is Family.HARMONY:
        return ThinkingStyle.HARMONY
    for style in (ThinkingStyle.MISTRAL, ThinkingStyle.TAGS):
        if template is not None and (OPENINGS[style] in template or CLOSINGS[style] in template):
            return style
    return None
