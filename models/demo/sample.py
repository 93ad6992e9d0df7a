"""Continues a few prompts with the exported checkpoint, in plain transformers and float32."""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
PROMPTS = (
    'def read_lines(path):\n    """Return',
    '"""Parse a date string and',
    'class Queue:\n    """',
    "import json\n\ndef load_config(path):",
    "The json module provides",
    "def is_empty(self):",
)


def main() -> None:
    """Print each prompt and its continuation; mark where the model stopped by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    choice: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None}
    if args.temperature > 0:
        choice = {"do_sample": True, "temperature": args.temperature, "top_p": 0.95}
    for prompt in args.prompts:
        torch.manual_seed(args.seed)
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(
            **ids, max_new_tokens=args.max_tokens, pad_token_id=tokenizer.eos_token_id, **choice
        )[0]
        end = "stopped" if out[-1] == tokenizer.eos_token_id else "length"
        text = tokenizer.decode(out, skip_special_tokens=True)
        print(f"--- T={args.temperature} {end}\n{text}")


if __name__ == "__main__":
    main()
