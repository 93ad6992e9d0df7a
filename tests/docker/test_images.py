"""The Dockerfiles, as far as they can be checked without Docker."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.dockerfiles import Instruction, copies, is_ignored, lay_out, read_dockerfile, stages
from worker.up import ROOT, read_procfile
from worker.values.model_files import HEADS_FILE

DOCKER = ROOT / "docker"
DOCKERFILES = ("api.Dockerfile", "worker.Dockerfile")
# The process that an image runs when it is told nothing.
PROCESS_OF_IMAGE = {"api.Dockerfile": "web", "worker.Dockerfile": "gpu"}
ENGINE_PACKAGES = {"torch", "numpy", "safetensors"}


def image(name: str) -> list[list[Instruction]]:
    return stages(read_dockerfile(DOCKER / name))


def values(stage: list[Instruction], name: str) -> list[str]:
    return [instruction.value for instruction in stage if instruction.name == name]


def only(stage: list[Instruction], name: str) -> Instruction:
    (found,) = [instruction for instruction in stage if instruction.name == name]
    return found


def requirements(dockerfile: str) -> list[Requirement]:
    """Return what an image asks for, by running the line of its build that lists it."""
    build = image(dockerfile)[0]
    listing = re.search(
        r"python (docker/requirements\.py.*?) > requirements\.txt", " ".join(values(build, "RUN"))
    )
    assert listing is not None, "the build does not list its requirements"
    given = arguments(build)
    words = re.sub(r"\$(\w+)", lambda name: given[name[1]], listing[1])
    command = [sys.executable, *words.split()]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Requirement(line) for line in output.splitlines()]


def arguments(stage: list[Instruction]) -> dict[str, str]:
    """Return a stage's build arguments and their defaults."""
    return {
        name: default.strip('"')
        for name, _, default in (value.partition("=") for value in values(stage, "ARG"))
    }


def installed(dockerfile: str) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements(dockerfile)}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_use_known_instructions(name: str) -> None:
    """A misspelt instruction would be found only when somebody builds."""
    known = {
        *("FROM", "ARG", "WORKDIR", "RUN", "COPY", "ENV", "USER", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "CMD"),
    }
    assert {instruction.name for stage in image(name) for instruction in stage} <= known


@pytest.mark.parametrize("name", DOCKERFILES)
def test_both_stages_have_one_base(name: str) -> None:
    """A virtual environment works only beside the very Python it was made with."""
    build, final = image(name)
    assert read_dockerfile(DOCKER / name)[0] == Instruction("ARG", "BASE=python:3.12-slim")
    assert only(build, "FROM").value == "$BASE AS build"
    assert only(final, "FROM").value == "$BASE"
    assert "--from=build /opt/venv /opt/venv" in values(final, "COPY")
    # An editable install points at the directory it was made in.
    assert only(build, "WORKDIR").value == only(final, "WORKDIR").value == "/app"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_each_copied_file_is_there_and_not_ignored(name: str) -> None:
    """A renamed file, or a .dockerignore that hides it, breaks the build at its COPY."""
    for stage in image(name):
        for sources, destination in copies(stage):
            assert len(sources) == 1 or destination.endswith("/"), "several files need a directory"
            for source in sources:
                assert (ROOT / source).exists(), source
                assert not is_ignored(source), source


def test_the_build_sees_the_code_and_no_secret() -> None:
    """A data directory or a .env in the build's context ends up in a layer, or makes every build slow."""
    for path in (
        "docker/.env",
        ".env",
        ".git/config",
        ".data/redis/url",
        ".venv/bin/python",
        "tests/conftest.py",
    ):
        assert is_ignored(path), path
    assert is_ignored("worker/engine/__pycache__/engine.cpython-312.pyc")
    assert is_ignored("models/demo/train.py")
    assert not is_ignored("worker/engine/engine.py")
    assert not is_ignored("models/demo/config.json")


def test_both_images_hold_the_same_demo_model() -> None:
    """A batch waits for the model that the API has identified: with other files no worker would run it."""
    held = [
        {source for sources, _ in copies(image(name)[-1]) for source in sources if "models/demo" in source}
        for name in DOCKERFILES
    ]
    assert "models/demo/model.safetensors" in held[0] & held[1]
    assert held[0] ^ held[1] == {f"models/demo/{HEADS_FILE}"}, "no part of what the API identifies"


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_final_stage_runs_as_somebody_who_owns_nothing(name: str) -> None:
    """As root, whoever breaks out of a process has the host; a number is what Kubernetes can check."""
    final = image(name)[-1]
    users = values(final, "USER")
    assert users, "no USER: the image runs as root"
    uid, _, gid = users[-1].partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
    created = " ".join(values(final, "RUN"))
    assert f"--uid {uid} " in created, "torch asks for the name of its user"
    assert f"--gid {gid} " in created


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_final_stage_installs_nothing(name: str) -> None:
    """Build tools and pip's cache in the final stage are size and attack surface that nothing uses."""
    build, final = image(name)
    runs = [run for run in values(final, "RUN") if not run.startswith('[ -z "$PACKAGES" ] || {')]
    assert not re.search(r"\b(pip|apt|apt-get|gcc|curl)\b", " ".join(runs))
    assert arguments(final).get("PACKAGES", "") == ""
    for command in re.findall(r"pip [^&]* install [^&]*", " ".join(values(build, "RUN"))):
        assert "--no-cache-dir" in command


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_stop_and_say_how_they_are(name: str) -> None:
    """Without them a stop is a kill after ten seconds, and a hung process looks well."""
    final = image(name)[-1]
    assert only(final, "STOPSIGNAL").value == "SIGTERM"
    health = only(final, "HEALTHCHECK")
    assert {"interval", "timeout", "start-period"} <= set(health.flags)
    assert health.exec_form == ["python", "docker/health.py", PROCESS_OF_IMAGE[name]]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_run_what_the_procfile_runs(name: str) -> None:
    """Two ways to start a process drift apart: one gets the flag that the other lacks."""
    command = only(image(name)[-1], "CMD").exec_form
    assert command == read_procfile(ROOT / "Procfile")[PROCESS_OF_IMAGE[name]].split()


def scripts_of(packages: set[str]) -> set[str]:
    """Return the programs that packages, all of them installed here, put on the path."""
    return {
        script.name
        for script in importlib.metadata.entry_points(group="console_scripts")
        if script.dist is not None and canonicalize_name(script.dist.name) in packages
    }


def test_each_image_has_the_programs_its_processes_call(tmp_path: Path) -> None:
    """A program of a package that only a developer has installed is missing in the image."""
    processes = read_procfile(ROOT / "Procfile")
    flower = next(iter(importlib.metadata.entry_points(group="celery.commands", name="flower")))
    assert flower.dist is not None
    for name in DOCKERFILES:
        packages = installed(name)
        app = tmp_path / name
        lay_out(image(name)[-1], app)
        wanted = {"gpu"} if name == "worker.Dockerfile" else set(processes) - {"gpu"}
        for process in sorted(wanted):
            program, *options = processes[process].split()
            assert program == "python" or program in scripts_of(packages), f"{process}: {program}"
            if program == "alembic":
                assert (app / "pyproject.toml").exists()
                assert (app / "migrations" / "env.py").exists()
            else:
                module = options[options.index("-m" if program == "python" else "-A") + 1]
                path = app / module.replace(".", "/")
                assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
            if process == "flower":
                assert canonicalize_name(flower.dist.name) in packages


def test_the_api_image_can_keep_files_in_a_bucket() -> None:
    """On several hosts there is no directory that the API and the files process share."""
    assert "obstore" in installed("api.Dockerfile")


def test_only_the_worker_image_has_the_engine() -> None:
    """`pip install .` must not bring torch: the API's image would be ten times the size."""
    assert not ENGINE_PACKAGES & installed("api.Dockerfile")
    assert installed("worker.Dockerfile") >= ENGINE_PACKAGES


def test_torch_is_pinned_and_comes_first() -> None:
    """Whatever pulls torch in before the pin does would bring the CUDA build into the CPU image."""
    build = image("worker.Dockerfile")[0]
    (pin,) = [each for each in requirements("worker.Dockerfile") if each.name == "torch"]
    assert arguments(build)["TORCH_VERSION"] in pin.specifier
    first, second, project = [run for run in values(build, "RUN") if " install " in run]
    assert '"torch==$TORCH_VERSION" > constraints.txt' in first
    assert '${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r constraints.txt' in first
    assert "-c constraints.txt -r requirements.txt" in second
    assert "--no-deps --editable ." in project


def test_the_torch_index_can_be_left_out() -> None:
    """An empty TORCH_INDEX chooses CUDA: it must vanish from the command, not become an empty argument."""
    for index, expected in (
        ("", "-r"),
        ("https://example.test/cpu", "--index-url https://example.test/cpu -r"),
    ):
        words = subprocess.run(
            ["sh", "-c", 'echo ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} -r'],
            env={"TORCH_INDEX": index},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert words.strip() == expected


def test_no_address_but_the_public_torch_index() -> None:
    """An index of one company's network in a Dockerfile builds nowhere else."""
    found = {
        address
        for path in (*filter(Path.is_file, DOCKER.rglob("*.*")), ROOT / "docs" / "docker.md")
        for address in re.findall(r"https?://[^\s\"'`)]+", path.read_text())
        if not re.match(r"https?://(127\.0\.0\.1|localhost)\b", address)
    }
    assert found == {"https://download.pytorch.org/whl/cpu"}


def test_docker_is_no_package() -> None:
    """`import docker` must stay free for Docker's own SDK."""
    assert not list(DOCKER.glob("__init__.py*"))
