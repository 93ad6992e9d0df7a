"""Measures held-out perplexity by a definition that any engine can reproduce.

The text is tokenized once without special tokens and cut into consecutive windows of `window - 1` tokens.
Each window is read after one BOS, and every token is scored exactly once (the stride is the window's length).
Perplexity is exp of the mean negative log-likelihood per token; bits per byte divides by the bytes scored.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

HERE = Path(__file__).resolve().parent


def perplexity(
    logits_of: Callable[[Tensor], Tensor],
    tokenizer: Tokenizer,
    text: str,
    *,
    window: int = 1024,
    max_tokens: int | None = None,
) -> dict[str, float | int]:
    """Score text with a function from ids [1, length] to logits [1, length, vocab]."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids = torch.tensor(encoding.ids[:max_tokens])
    bos = torch.tensor([tokenizer.token_to_id("<|bos|>")])
    total = 0.0
    with torch.inference_mode():
        for start in range(0, len(ids), window - 1):
            target = ids[start : start + window - 1]
            logits = logits_of(torch.cat([bos, target[:-1]])[None])[0]
            total += F.cross_entropy(logits.float(), target, reduction="sum").item()
    num_bytes = len(text[: encoding.offsets[len(ids) - 1][1]].encode())
    return {
        "window": window,
        "tokens": len(ids),
        "bytes": num_bytes,
        "nll_per_token": round(total / len(ids), 5),
        "perplexity": round(math.exp(total / len(ids)), 4),
        "bits_per_byte": round(total / math.log(2) / num_bytes, 5),
    }


def main() -> None:
    """Print the perplexity of a checkpoint folder as JSON, with plain transformers in float32."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--text", type=Path, default=HERE / "heldout.txt")
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--max-tokens", type=int, default=None)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    text = args.text.read_text(encoding="utf-8")
    scores = perplexity(
        lambda ids: model(ids).logits, tokenizer, text, window=args.window, max_tokens=args.max_tokens
    )
    print(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
