"""Cuts short documents from a module: functions, classes, docstrings.

They teach the model short prompts and endings.
"""

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator

MAX_CHARS = 3_500
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse(text: str) -> ast.Module | None:
    """Return the module's tree, or None for text this Python cannot parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except SyntaxError:
            return None


def _imports(tree: ast.Module) -> dict[str, str]:
    """Return, by module-level name, the import line that binds it."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).split(".")[0]: ast.unparse(ast.Import([a])) for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.names[0].name != "*":
            for alias in node.names:
                found[alias.asname or alias.name] = ast.unparse(ast.ImportFrom(node.module, [alias], 0))
    return found


def _source(node: Definition, lines: list[str]) -> str | None:
    """Return the definition's unindented text; a long class is cut after one of its members."""

    def text(end: int | None) -> str:
        return textwrap.dedent("\n".join(lines[node.lineno - 1 : end or node.lineno])) + "\n"

    whole = text(node.end_lineno)
    if len(whole) <= MAX_CHARS:
        return whole
    # A function cut short would teach the model to stop in the middle of one.
    if not isinstance(node, ast.ClassDef):
        return None
    heads = [head for member in node.body if len(head := text(member.end_lineno)) < MAX_CHARS]
    return heads[-1] if heads else None


def of_module(text: str, is_chosen: Callable[[str], bool]) -> Iterator[str]:
    """Yield definitions, half of them below the imports they use, and half of their docstrings alone."""
    tree = parse(text)
    if tree is None:
        return
    imports, lines = _imports(tree), text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, Definition):
            continue
        doc, source = ast.get_docstring(node), _source(node, lines)
        if source is None or (doc is None and not 120 < len(source) < 1_200):
            continue
        used = sorted({line for name, line in imports.items() if re.search(rf"\b{name}\b", source)})
        yield "\n".join(used) + "\n\n" + source if used and is_chosen(source) else source
        if doc and len(doc) > 60 and is_chosen(doc):
            yield f'"""{doc}\n"""\n' if "\n" in doc else f'"""{doc}"""\n'


def module_prose(text: str) -> str | None:
    """Return a module's docstring as plain prose, or None."""
    tree = parse(text)
    doc = ast.get_docstring(tree) if tree else None
    return doc + "\n" if doc and len(doc) > 200 else None
