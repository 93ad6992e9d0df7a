"""A configuration that cannot run ends `make up` at once, in one line that says what to change."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.deployment import free_port
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.settings import EXIT_CONFIGURATION
from worker.up import ROOT

SHARD = "model-00002-of-"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of several files with nothing wrong in it."""
    directory = write_tiny_llama(tmp_path_factory.mktemp("whole"), max_shard_size="40KB")
    assert any(path.name.startswith(SHARD) for path in directory.iterdir())
    return directory


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def run_up(tmp_path: Path, *processes: str, **settings: str) -> tuple[int, list[str]]:
    """Run what `make up` runs; return its exit status and the lines it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = kept | {
        "HEADRACE_DATA_DIR": str(tmp_path / "data"),
        "PORT": str(free_port()),
        "FLOWER_PORT": str(free_port()),
    }
    done = subprocess.run(
        [sys.executable, "-m", "worker.embedded", sys.executable, "-m", "worker.up", *processes],
        cwd=ROOT,
        env=environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def shard(model: Path) -> Path:
    return next(path for path in model.iterdir() if path.name.startswith(SHARD))


def only_gguf(model: Path) -> None:
    for path in model.glob("model*"):
        path.unlink()
    (model / "weights.gguf").write_bytes(b"GGUF")


BROKEN_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (shutil.rmtree, "there is no directory"),
    "GGUF": (only_gguf, "has no *.safetensors but weights.gguf"),
    "cut weights": (lambda model: cut_in_half(shard(model)), f"{SHARD}.* is cut off or damaged"),
    "missing shard": (lambda model: shard(model).unlink(), f"{SHARD}.* is missing"),
    "missing tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "cut config": (lambda model: cut_in_half(model / "config.json"), "config.json is no JSON object"),
}


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_a_model_that_cannot_be_served(model: Path, tmp_path: Path, name: str) -> None:
    spoil, said = BROKEN_MODELS[name]
    spoil(model)
    status, lines = run_up(tmp_path, HEADRACE_MODEL=str(model), DATABASE_URL="", REDIS_URL="")
    assert (status, len(lines)) == (EXIT_CONFIGURATION, 1), lines
    assert lines[0].startswith(f"HEADRACE_MODEL: {model}") or f"directory {model}" in lines[0]
    assert said.split(".*")[-1] in lines[0]
    assert not (tmp_path / "data").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("HEADRACE_SHARD_SIZE", "many", "valid integer"),
        ("HEADRACE_DEVICE", "tpu", "'cpu' or 'cuda'"),
        ("HEADRACE_DEVICE", "cuda", "torch finds no GPU"),
        ("HEADRACE_HOST", "192.0.2.1", "no address of this machine"),
        ("HEADRACE_DATA_DIR", "/dev/null", "cannot be used"),
        ("DATABASE_URL", "postgresql://user:secret@127.0.0.1:1/none", "port 1 failed"),
        ("DATABASE_URL", "postgresql://user:secret@[/none", "no address"),
        ("DATABASE_DIRECT_URL", "postgresql://user:secret@127.0.0.1:1/none", "port 1 failed"),
        ("REDIS_URL", "redis://:secret@127.0.0.1:1/0", "127.0.0.1:1"),
    ],
)
def test_a_setting_that_cannot_be_used(tmp_path: Path, setting: str, value: str, said: str) -> None:
    status, lines = run_up(tmp_path, CUDA_VISIBLE_DEVICES="", **{setting: value})
    assert (status, len(lines)) == (EXIT_CONFIGURATION, 1), lines
    assert lines[0].startswith(f"{setting}: ")
    assert said in lines[0]
    assert "secret" not in lines[0]


@pytest.mark.parametrize("setting", ["PORT", "FLOWER_PORT"])
def test_a_port_that_is_taken(tmp_path: Path, taken: int, setting: str) -> None:
    status, lines = run_up(tmp_path, **{setting: str(taken)})
    assert (status, len(lines)) == (EXIT_CONFIGURATION, 1), lines
    assert lines[0].startswith(f"{setting}: 127.0.0.1:{taken} is taken")


@pytest.mark.slow
def test_what_only_the_engine_sees_ends_everything_too(model: Path, tmp_path: Path) -> None:
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["OtherForCausalLM"]}))
    status, lines = run_up(tmp_path, "gpu", "callbacks", HEADRACE_MODEL=str(model))
    assert status == EXIT_CONFIGURATION, lines
    assert lines[-1].startswith(f"HEADRACE_MODEL: {config}: ")
    assert "OtherForCausalLM" in lines[-1]
    assert not [line for line in lines if "Traceback" in line or "starting it again" in line]
