"""Writes the checkpoints and workloads that the benchmarks run: `python -m benchmarks.prepare --out DIR`.

The checkpoints in DIR/models/{small,medium} have random weights; the workloads DIR/workloads/*.jsonl are cut
from the standard library. The same versions of Python, torch and tokenizers give the same files.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.checkpoints import SIZES, train_tokenizer, write_checkpoint
from benchmarks.workloads import draw_workloads, read_sources, write_workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(".cache/bench"))
    options = parser.parse_args(arguments)
    sources = read_sources()
    tokenizer = train_tokenizer(sources)
    for name, size in SIZES.items():
        write_checkpoint(options.out / "models" / name, size, tokenizer)
        print(options.out / "models" / name)
    folder = options.out / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    for name, items in draw_workloads(tokenizer, sources):
        write_workload(folder / f"{name}.jsonl", items)
        num_prompt = sum(len(item.prompt_ids) for item in items)
        num_output = sum(item.max_tokens for item in items)
        print(f"{folder / name}.jsonl: {len(items)} requests, {num_prompt} tokens in, {num_output} out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
