"""Home rules that no linter knows. Each says what goes wrong without it."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import kernels
from tests.fixtures.spread import DEPLOYMENTS

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("api", "worker", "kernels")
TOP_LEVEL = {
    "pyproject.toml",
    "README.md",
    "worker",
    "api",
    "kernels",
    "migrations",
    "tests",
    "docker",
    "Procfile",
    "Makefile",
    "CHANGELOG.md",
    "LICENSE",
    "docs",
    "benchmarks",
    "models",
}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).exists()]


def modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def calls(name: str) -> Iterator[str]:
    """Files of the product that call a function or a method of this name."""
    for path in modules():
        if path.relative_to(ROOT).parts[0] in PACKAGES:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and name in (
                    getattr(node.func, "attr", None),
                    getattr(node.func, "id", None),
                ):
                    yield str(path.relative_to(ROOT))


def test_there_is_one_commit() -> None:
    """A commit in the middle of a function splits what must be stored together."""
    assert list(calls("commit")) == ["worker/store/database/session.py"]


def test_there_is_one_place_that_sends_messages() -> None:
    """A message sent inside a transaction can arrive before the row it names."""
    assert list(calls("send_task")) == ["worker/queue/publish.py"]
    assert [*calls("delay"), *calls("apply_async")] == []


def test_loops_run_through_the_one_supervisor() -> None:
    """A thread or task that ends by an error leaves a process that looks alive and does half its work."""
    started = {
        *calls("Thread"),
        *calls("Timer"),
        *calls("create_task"),
        *calls("ensure_future"),
        *calls("TaskGroup"),
        *calls("run_in_executor"),
    }
    no_loops = {
        "api/cli/receiver.py",  # a server of the demo, which ends with its command
        "api/cli/session.py",  # waits for the end of a command's own deployment
        "worker/webhooks/network.py",  # one lookup of an address
    }
    report_every_error = {
        "worker/engine/engine_thread.py",  # to every Submission and to `on_failure`, which ends the process
        "worker/servers/server.py",  # to its `on_failure`, which ends the deployment
    }
    assert started == {"worker/loops.py"} | no_loops | report_every_error


def test_only_settings_and_the_launchers_read_the_environment() -> None:
    """A variable read elsewhere is documented nowhere, and its bad values pass unseen."""
    launchers = {
        "worker/embedded.py",
        "worker/up.py",
        "worker/tuning/trial_process.py",
        "api/cli/session.py",
    }
    allowed = launchers | {"worker/settings.py", "worker/engine/__init__.py"}  # the last one only sets
    readers = {
        str(path.relative_to(ROOT))
        for path in modules()
        if path.relative_to(ROOT).parts[0] in PACKAGES
        and re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    }
    assert readers <= allowed


def test_no_module_is_over_400_lines() -> None:
    """Nobody reads a longer one."""
    assert [str(path) for path in modules() if len(path.read_text().splitlines()) > 400] == []


def test_functions_are_short_and_take_few_parameters() -> None:
    """Nobody keeps more in mind. A compiled kernel is exempt: its launch fixes what it takes."""
    compiled = {"jit", "kernel", "inlined", "intrinsic"}
    found = []
    for path in modules():
        if path.relative_to(ROOT).parts[0] not in PACKAGES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = {ast.unparse(one).partition("(")[0].split(".")[-1] for one in node.decorator_list}
            given = node.args
            num_parameters = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
            num_lines = (node.end_lineno or 0) - node.lineno + 1
            if not decorators & compiled and (num_lines > 60 or num_parameters > 12):
                found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == []


def test_a_name_names_one_class() -> None:
    """Two public classes of one name are two meanings of one word, and an import takes the wrong one."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        file = path.relative_to(ROOT)
        if file.parts[0] in (*PACKAGES, "benchmarks"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(str(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_every_folder_of_tests_is_a_package() -> None:
    """Without __init__.py two test modules of one name shadow each other."""
    folders = {path.parent for path in modules() if path.relative_to(ROOT).parts[0] == "tests"}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_docker_folder_is_no_package() -> None:
    """It would shadow the Docker SDK."""
    assert not (ROOT / "docker" / "__init__.py").exists()


def test_the_top_level_holds_what_it_should() -> None:
    """A newcomer finds the file for a change in one guess."""
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_the_installed_kernels_are_ours() -> None:
    """Hugging Face publishes a package of the same name, which transformers looks for."""
    assert Path(kernels.__file__).parent == ROOT / "kernels"
    assert "kernels" not in {one.name.lower() for one in importlib.metadata.distributions()}


def test_the_engine_is_pure() -> None:
    """An engine that needs a queue or a database cannot be benchmarked, tested or reused alone."""
    code = (
        "import sys, worker.engine.engine_thread\n"
        "bad = {'celery', 'redis', 'sqlalchemy', 'httpx', 'fastapi', 'pydantic_settings', 'transformers'}\n"
        "sys.exit(', '.join(bad & set(sys.modules)) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_whole_deployments_run_one_at_a_time() -> None:
    """Two at once share two cores and a Redis: what waits for either may wait for too long."""
    starting = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^\s*with deployment\(", path.read_text(), re.MULTILINE)
    }
    assert starting
    alone = {
        "tests/fuzz/target.py",
        "tests/clients/__main__.py",
    }  # of `make fuzz-http` and `make test-clients`
    assert {path for path in starting if not path.startswith(DEPLOYMENTS)} == alone
