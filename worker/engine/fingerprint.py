"""What tells one served model from another: its files, and the arithmetic they run in."""

import hashlib

from worker.engine.config import EngineConfig

SAMPLES = 16
SAMPLE_BYTES = 64 << 10


def model_fingerprint(config: EngineConfig) -> str:
    """Return 32 hexadecimal digits that change with the checkpoint, the dtype and the device.

    Weights are too large to be read whole: of each file its size counts, its header, and pieces from all
    over it, among which training leaves none as it was.
    """
    digest = hashlib.blake2b(f"{config.dtype} {config.device}".encode(), digest_size=16)
    for path in sorted(config.model.iterdir()):
        if path.suffix in {".json", ".jinja", ".model"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        elif path.suffix == ".safetensors":
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}".encode())
            with path.open("rb") as file:
                for piece in range(SAMPLES):
                    file.seek(max(0, size - SAMPLE_BYTES) * piece // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
