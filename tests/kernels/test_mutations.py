"""Every kernel's cases notice when its arithmetic is wrong. `make test-mutations` runs the slow part."""

import ast
import importlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels.mutation import ROOT, Mutation, Outcome, Table, copy_tree, run_apart

FOLDERS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/mutations.py"))
TABLES: list[Table] = [
    table for name in FOLDERS for table in importlib.import_module(f"tests.kernels.{name}.mutations").TABLES
]
ALL = [(table, mutation) for table in TABLES for mutation in table.mutations]
NAMES = [f"{table.source}: {mutation.name}" for table, mutation in ALL]
FILES = sorted({table.tests for table in TABLES})
# What makes a function a kernel, or a part of one.
DECORATORS = {"triton.jit", "kernel", "inlined", "intrinsic"}
# Part of kernels, and without arithmetic of their own: what only asks others, or says where things are.
NO_ARITHMETIC = {
    "product_chain/narrow.py: multiply_narrow",
    "product_chain/tile.py: fetched",
    "simd.py: _copy",
    "simd.py: _elements_of_line",
    "simd.py: _prefetch",
    "simd.py: load",
    "simd.py: pointer_like",
    "simd.py: prefetch",
    "simd.py: rounded",
    "simd.py: store",
    "threads.py: _look",
    "threads.py: _pause",
    "threads.py: _sleep",
    "threads.py: meet",
    "threads.py: share",
    "threads.py: team_size",
    "tile.py: tile_rows",
}


@pytest.mark.parametrize(("table", "mutation"), ALL, ids=NAMES)
def test_what_is_to_be_broken_is_there(table: Table, mutation: Mutation) -> None:
    ast.parse(table.mutated(mutation))
    assert mutation.before != mutation.after


def _kernels(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Functions that compute something: those that only start others on every thread are left out."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
            if decorators & DECORATORS and "fork(" not in ast.unparse(node):
                yield node


def test_every_part_of_every_kernel_has_a_mutation() -> None:
    missing = []
    for path in sorted((ROOT / "kernels").rglob("*.py")):
        source = str(path.relative_to(ROOT / "kernels"))
        text = path.read_text(encoding="utf-8")
        places = [
            text[: text.index(mutation.before)].count("\n") + 1 + mutation.before.startswith("\n")
            for table, mutation in ALL
            if table.source == source and mutation.before in text
        ]
        for node in _kernels(ast.parse(text)):
            begin = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if not any(begin <= at <= node.end_lineno for at in places):
                missing.append(f"{source}: {node.name}")
        if places and len(places) < 2:
            missing.append(f"{source}: a second one")
    assert set(missing) == NO_ARITHMETIC


def test_a_text_that_is_gone_or_ambiguous_is_refused() -> None:
    table = next(one for one in TABLES if one.source.endswith("/kernel.py"))
    with pytest.raises(ValueError, match=r"kernel.py: gone: 'no such text' is there 0 times"):
        table.mutated(Mutation("gone", "no such text", ""))
    with pytest.raises(ValueError, match=r"twice: 'tl' is there \d+ times"):
        table.mutated(Mutation("twice", "tl", ""))


@pytest.fixture(scope="module")
def processes() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for one process at a time
        yield pool
        pool.shutdown(cancel_futures=True)


def selected(request: pytest.FixtureRequest, parameter: str) -> list[str]:
    """Return the values of a parameter with which tests are about to run."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    return [call.params[parameter] for call in calls if parameter in call.params]


@pytest.fixture(scope="module")
def unbroken(
    request: pytest.FixtureRequest, processes: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Future[Outcome]]:
    tree = tmp_path_factory.mktemp("unbroken")
    copy_tree(tree)
    return {tests: processes.submit(run_apart, tree, tests, "") for tests in selected(request, "tests")}


@pytest.fixture(scope="module")
def broken(
    request: pytest.FixtureRequest, processes: ThreadPoolExecutor, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Future[Outcome]]:
    found = {}
    for name in selected(request, "broken_in"):
        table, mutation = ALL[NAMES.index(name)]
        if not table.runs_here:
            continue
        tree = tmp_path_factory.mktemp("broken")
        copy_tree(tree)
        (tree / "kernels" / table.source).write_text(table.mutated(mutation), encoding="utf-8")
        found[name] = processes.submit(run_apart, tree, table.tests, mutation.only)
    return found


@pytest.mark.mutation
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tests", FILES)
def test_cases_pass_on_kernels_as_they_are(tests: str, unbroken: dict[str, Future[Outcome]]) -> None:
    outcome = unbroken[tests].result()
    assert outcome.has_passed, outcome.output


@pytest.mark.mutation
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("broken_in", NAMES)
def test_cases_notice(broken_in: str, broken: dict[str, Future[Outcome]]) -> None:
    table, _ = ALL[NAMES.index(broken_in)]
    if not table.runs_here:
        pytest.skip("this processor cannot run it")
    outcome = broken[broken_in].result()
    assert outcome.disagrees, outcome.output
