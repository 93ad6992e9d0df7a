"""compose.yaml and compose.gpu.yaml, as far as they can be checked without Docker."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.docker.compose_file import (
    COMPOSE,
    COMPOSE_MODELS,
    DOCKER,
    REQUIRED,
    VARIABLE,
    interpolate,
    load,
    merge,
    seconds,
)
from tests.docker.dockerfiles import read_dockerfile
from worker.settings import Settings
from worker.up import ROOT, SWITCHING_COMMAND, read_procfile

COMPOSE_GPU = DOCKER / "compose.gpu.yaml"
PROCESSES = read_procfile(ROOT / "Procfile")
# What each service waits for. Nothing that reads tables starts before the migrations have run.
AFTER_RELEASE = {
    "release": "service_completed_successfully",
    "postgres": "service_healthy",
    "redis": "service_healthy",
}
DEPENDS_ON = {
    "postgres": {},
    "redis": {},
    "release": {"postgres": "service_healthy"},
    "web": AFTER_RELEASE,
    "gpu": AFTER_RELEASE,
    "callbacks": AFTER_RELEASE,
    "dispatcher": AFTER_RELEASE,
    "files": AFTER_RELEASE,
    "flower": {"redis": "service_healthy"},
}

# Set by the image or by the file itself, or for those processes only that need it.
FIXED = {"HEADRACE_DATA_DIR", "HEADRACE_HOST", "HEADRACE_AUTH"}
OF_SEVERAL_MODELS = {"HEADRACE_MODELS"}  # compose.models.yaml passes it on
OF_UP = {"HEADRACE_CPU_WORKERS"}  # read by `headrace up`, which Compose does not run
SECRETS = {"HEADRACE_WEBHOOK_SECRET", "HEADRACE_SECRET_KEY"}
ALIASED = {"database_url", "database_direct_url", "redis_url", "port", "flower_port"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return {name: each for name, each in load()["services"].items() if "profiles" not in each}


def test_the_services_are_the_procfile_and_its_two_stores(services: dict[str, Any]) -> None:
    """A process that is new in the Procfile must not be missing here."""
    assert set(services) == {*PROCESSES, "postgres", "redis"}
    assert set(services) == set(DEPENDS_ON)


@pytest.mark.parametrize("name", PROCESSES)
def test_commands_are_the_procfiles(services: dict[str, Any], name: str) -> None:
    """Two ways to start a process drift apart: one gets the flag that the other lacks."""
    expected = interpolate(PROCESSES[name], {})
    if name == "flower":
        # In a container loopback is nobody's; the port is published on the host's.
        expected = expected.replace("--address=127.0.0.1", "--address=0.0.0.0")
    assert services[name]["command"] == expected
    assert not set(expected) & set("$;|&<>"), "Compose starts no shell"


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_run_in_the_images_built_here(services: dict[str, Any], name: str) -> None:
    """An image without a build section would be looked for in a public registry, under anybody's name."""
    service = services[name]
    kind = "worker" if name == "gpu" else "api"
    assert service["image"] == f"headrace-{kind}"
    assert service["build"] == {"context": "..", "dockerfile": f"docker/{kind}.Dockerfile"}
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", [*PROCESSES, "postgres", "redis"])
def test_every_service_has_a_health_check_of_its_own(services: dict[str, Any], name: str) -> None:
    """With the image's check a dispatcher would be asked for HTTP and count as broken."""
    health = services[name]["healthcheck"]
    if name == "release":
        assert health == {"disable": True}
        return
    assert seconds(health["interval"]) >= 1
    assert seconds(health["timeout"]) >= 1
    if name in PROCESSES:
        assert health["test"] == ["CMD", "python", "docker/health.py", name]
        assert name in runpy.run_path(str(DOCKER / "health.py"))["CHECKS"]


@pytest.mark.parametrize(("name", "expected"), DEPENDS_ON.items())
def test_services_start_in_order(services: dict[str, Any], name: str, expected: dict[str, str]) -> None:
    """A worker that starts before the migrations finds no tables, or yesterday's."""
    found = services[name].get("depends_on", {})
    assert {other: each["condition"] for other, each in found.items()} == expected
    for other, condition in expected.items():
        if condition == "service_healthy":
            assert "test" in services[other]["healthcheck"]


def test_processes_come_back_and_the_release_runs_once(services: dict[str, Any]) -> None:
    """The gpu worker ends itself when its engine hangs and counts on being started again."""
    assert {name: service["restart"] for name, service in services.items()} == {
        **dict.fromkeys(services, "unless-stopped"),
        "release": "no",
    }


@pytest.mark.parametrize("path", [COMPOSE, COMPOSE_GPU, COMPOSE_MODELS], ids=lambda path: path.name)
def test_every_variable_has_a_default_or_a_message(path: Path) -> None:
    """Compose fills in nothing for a variable nobody set, and says so in one line among hundreds."""
    for match in VARIABLE.finditer(path.read_text()):
        operator, operand = match["operator"], match["operand"]
        assert operator in {":-", ":?"}, match[0]
        assert operator == ":-" or operand, f"{match[0]}: say what to do"


@pytest.mark.parametrize("name", REQUIRED)
def test_secrets_have_no_default(name: str) -> None:
    """A default secret is a public one."""
    with pytest.raises(AssertionError, match=f"{name} is required"):
        load(**{name: ""})


def test_variables_are_settings() -> None:
    """A misspelt HEADRACE_ name is ignored in silence."""
    text = "".join(path.read_text() for path in (COMPOSE, COMPOSE_GPU, COMPOSE_MODELS))
    names = set(re.findall(r"\bHEADRACE_[A-Z_]+", text))
    assert names
    assert names <= {f"HEADRACE_{field.upper()}" for field in Settings.model_fields}


@pytest.mark.parametrize("name", PROCESSES)
def test_each_process_reads_its_environment(
    services: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Compose passes on must be valid, and empty variables must leave the defaults alone."""
    for variable in [variable for variable in os.environ if variable.startswith("HEADRACE_")]:
        monkeypatch.delenv(variable)
    for variable, value in services[name]["environment"].items():
        assert isinstance(value, str), f"{variable}: quote it"
        monkeypatch.setenv(variable, value)
    read = Settings()  # type: ignore[call-arg]
    assert read.database_url == "postgresql+psycopg://headrace:postgres-password@postgres:5432/headrace"
    assert read.redis_url == "redis://:redis-password@redis:6379/0"
    assert read.model == Settings.model_fields["model"].default
    assert (read.webhook_secret is not None) == (name in {"callbacks", "gpu"})


def test_every_setting_can_be_set() -> None:
    """A setting that Compose does not pass on is set in docker/.env, and nothing happens."""
    settings = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields if name not in ALIASED}
    settings -= FIXED | OF_SEVERAL_MODELS | OF_UP | SECRETS
    chosen = load(**dict.fromkeys(settings, "given"))["services"]
    for name in PROCESSES:
        given = {variable for variable, value in chosen[name]["environment"].items() if value == "given"}
        assert given == settings


def test_a_bucket_is_for_those_who_keep_files() -> None:
    """Credentials reach these only; one that is not set must be missing, as an empty one would count."""
    with_bucket = {
        name
        for name, service in load(AWS_REGION="eu-central-1")["services"].items()
        if "AWS_REGION" in service.get("environment", {})
    }
    assert with_bucket == {"web", "files", "web-second", "files-second"}
    assert "AWS_REGION" not in load()["services"]["web"]["environment"]


def test_callbacks_know_that_the_api_is_open() -> None:
    """Where the API listens on loopback only, callbacks may reach loopback; in a container nobody may."""
    for name in ("api.Dockerfile", "worker.Dockerfile"):
        variables = " ".join(i.value for i in read_dockerfile(DOCKER / name) if i.name == "ENV")
        assert "HEADRACE_HOST=0.0.0.0" in shlex.split(variables)
    assert "HEADRACE_HOST" not in COMPOSE.read_text()


def test_only_the_api_and_flower_are_published_and_only_here(services: dict[str, Any]) -> None:
    """Keys travel in clear until a proxy speaks TLS, and whoever reaches Redis or Postgres owns the queue."""
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {"web": ["127.0.0.1:8000:8000"], "flower": ["127.0.0.1:5555:5555"]}
    moved = load(PORT="9000", FLOWER_PORT="9001")["services"]
    assert moved["web"]["ports"] == ["127.0.0.1:9000:8000"]
    assert moved["flower"]["ports"] == ["127.0.0.1:9001:5555"]
    # Inside, both listen on the port that is published whatever the host's is.
    defaults = Settings.model_fields
    assert (defaults["port"].default, defaults["flower_port"].default) == (8000, 5555)
    assert not {"PORT", "FLOWER_PORT"} & {key for s in moved.values() for key in s.get("environment", {})}


def test_the_api_asks_for_keys_and_flower_for_a_password(services: dict[str, Any]) -> None:
    """Inside, both listen on every address."""
    assert Settings.model_fields["auth"].default == "keys"
    assert "HEADRACE_AUTH" not in COMPOSE.read_text()
    given = {
        name for name, service in services.items() if "FLOWER_BASIC_AUTH" in service.get("environment", {})
    }
    assert given == {"flower"}
    assert services["flower"]["environment"]["FLOWER_BASIC_AUTH"] == REQUIRED["FLOWER_BASIC_AUTH"]


def test_the_door_and_the_worker_see_the_same_models(services: dict[str, Any]) -> None:
    """The API counts tokens with the tokenizer of the model that the worker runs."""
    for name in ("web", "files", "gpu"):
        assert "../models:/models:ro" in services[name]["volumes"]
    assert services["web"]["volumes"] == services["files"]["volumes"]
    chosen = load(HEADRACE_MODEL="/models/other")["services"]
    models = {chosen[name]["environment"]["HEADRACE_MODEL"] for name in ("web", "files", "gpu")}
    assert models == {"/models/other"}


def test_stopping_leaves_time_to_drain(services: dict[str, Any]) -> None:
    """Docker kills what has not stopped in ten seconds: leases expire, and attempts are sent twice."""
    drain = float(services["gpu"]["environment"]["HEADRACE_DRAIN_SECONDS"])
    assert seconds(services["gpu"]["stop_grace_period"]) >= drain + 15
    attempt = Settings.model_fields["webhook_timeout_seconds"].default
    assert seconds(services["callbacks"]["stop_grace_period"]) >= attempt + 10
    for name in PROCESSES:
        assert services[name]["init"] is True, "process 1 gets no signal that it does not ask for"


def test_processes_have_no_privileges(services: dict[str, Any]) -> None:
    """A tokenizer or a webhook answer that breaks out should find nothing to use."""
    for name in PROCESSES:
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]


def test_postgres_keeps_its_data(services: dict[str, Any]) -> None:
    """The images from 18 on refuse a volume at /var/lib/postgresql/data."""
    assert services["postgres"]["image"] == "postgres:18"
    assert services["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    assert "postgres" in load()["volumes"]
    # The server of the first start answers on its socket before the real one is up.
    assert services["postgres"]["healthcheck"]["test"][1:4] == ["pg_isready", "-h", "127.0.0.1"]


def test_redis_is_closed_and_forgets_nothing(services: dict[str, Any]) -> None:
    """Whoever can write to the broker can run any task; an evicted key is a ticket lost."""
    assert services["redis"]["image"] == "redis:8"
    assert services["redis"]["volumes"] == ["redis:/data"]
    document = load()
    assert "redis" in document["volumes"]
    (config,) = services["redis"]["configs"]
    assert services["redis"]["command"] == ["redis-server", config["target"]]
    lines = document["configs"][config["source"]]["content"].splitlines()
    assert lines == [
        "requirepass redis-password",
        "dir /data",
        "appendonly yes",
        'save ""',
        "maxmemory-policy noeviction",
    ]
    assert services["redis"]["environment"] == {"REDISCLI_AUTH": "redis-password"}


def test_the_gpu_file_changes_services_that_exist(services: dict[str, Any]) -> None:
    """Compose adds a service whose name it does not know, and runs it without an image."""
    override = load(COMPOSE_GPU)
    assert set(override) == {"services"}
    assert set(override["services"]) == {"gpu"}
    merged = merge(deepcopy(services["gpu"]), override["services"]["gpu"])
    assert merged["command"] == services["gpu"]["command"]
    assert merged["image"] == "headrace-worker:cuda"
    assert merged["build"]["dockerfile"] == "docker/worker.Dockerfile"
    assert merged["environment"]["HEADRACE_DEVICE"] == "cuda"
    given = merged["build"]["args"]
    assert given["TORCH_INDEX"] == ""
    assert "gcc" in given["PACKAGES"].split(), "Triton compiles a module in C"
    known = [i.value for i in read_dockerfile(DOCKER / "worker.Dockerfile") if i.name == "ARG"]
    assert all(any(argument.startswith(f"{name}=") for argument in known) for name in given)
    (device,) = merged["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_a_second_model_has_an_api_and_a_files_process_of_its_own(services: dict[str, Any]) -> None:
    """One that sets more or less than the first drifts apart from it."""
    document = load(SECOND_MODEL="/models/large", SECOND_PORT="9001", HEADRACE_MODEL="/models/small")[
        "services"
    ]
    for name, ports in (("web", {"ports": ["127.0.0.1:9001:8000"]}), ("files", {})):
        environment = document[name]["environment"] | {"HEADRACE_MODEL": "/models/large"}
        expected = document[name] | ports | {"environment": environment, "profiles": ["models"]}
        assert document[f"{name}-second"] == expected
        assert expected["image"] == services[name]["image"]


def test_one_worker_serves_several_models() -> None:
    override = load(COMPOSE_MODELS, HEADRACE_MODELS="/models/small,/models/large")
    merged = merge(load(), override)["services"]["gpu"]
    assert merged["command"] == SWITCHING_COMMAND
    assert merged["environment"]["HEADRACE_MODELS"] == "/models/small,/models/large"
    assert merged["environment"]["DATABASE_URL"]
    with pytest.raises(AssertionError, match="HEADRACE_MODELS is required"):
        load(COMPOSE_MODELS)


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_compose(), reason="no docker compose here")
@pytest.mark.parametrize(
    "files",
    [(COMPOSE,), (COMPOSE, COMPOSE_GPU), (COMPOSE, COMPOSE_MODELS)],
    ids=["cpu", "gpu", "models"],
)
def test_compose_itself_reads_the_files(files: tuple[Path, ...]) -> None:
    """What our reading of the format misses."""
    chosen = [argument for path in files for argument in ("-f", str(path))]
    command = ["docker", "compose", *chosen, "config", "--quiet"]
    result = subprocess.run(
        command,
        env=os.environ | REQUIRED | {"HEADRACE_MODELS": "one,other"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
