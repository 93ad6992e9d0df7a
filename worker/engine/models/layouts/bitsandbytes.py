"""Reads and writes NF4 checkpoints of bitsandbytes."""

import json
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.quantization import Nf4Weight
from kernels.quantization.nf4 import BLOCK, LEVELS, NESTED_BLOCK, NestedScales
from kernels.quantization.nibbles import pack_nibbles, unpack_nibbles
from worker.engine.models.layouts.layout import TakeTensor

STATE = "quant_state.bitsandbytes__nf4"  # JSON, as bytes in a tensor


@dataclass(frozen=True, slots=True)
class BitsAndBytesLayout:
    """`weight` uint8 [out * in / 2, 1], first level in the high bits, with its state in other tensors."""

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.weight.absmax" in names

    def read(self, take: TakeTensor, module: str) -> Nf4Weight:
        """Return its weight; nested scales have their own table of levels, so they are returned as floats."""
        state = json.loads(bytes(take(f"{module}.weight.{STATE}").tolist()))
        rows, columns = state["shape"]
        table = take(f"{module}.weight.quant_map").float()
        if state["blocksize"] != BLOCK or not torch.allclose(table, torch.tensor(LEVELS), atol=1e-6):
            raise ValueError(
                f"has blocks of {state['blocksize']} or other levels; only NF4 in blocks of {BLOCK} works"
            )
        scales = take(f"{module}.weight.absmax")
        if "nested_offset" in state:
            nested = take(f"{module}.weight.nested_absmax").repeat_interleave(state["nested_blocksize"])
            levels = take(f"{module}.weight.nested_quant_map")[scales.flatten().long()]
            scales = levels * nested[: levels.numel()] + state["nested_offset"]
        packed = take(f"{module}.weight").reshape(rows, columns // 2)
        levels = torch.stack((packed >> 4, packed & 15), dim=2).flatten(1)
        return Nf4Weight(pack_nibbles(levels), scales.float().reshape(rows, columns // BLOCK))


def write_tensors(module: str, weight: Nf4Weight) -> dict[str, Tensor]:
    """Return the tensors that hold a weight."""
    high, low = unpack_nibbles(weight.packed).view(-1, 2).unbind(1)
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": BLOCK,
        "dtype": "bfloat16",
        "shape": list(weight.shape),
    }
    tensors = {
        f"{module}.weight": ((high << 4) | low).reshape(-1, 1),
        f"{module}.weight.quant_map": torch.tensor(LEVELS),
    }
    if isinstance(weight.scales, NestedScales):
        state |= {
            "nested_blocksize": NESTED_BLOCK,
            "nested_dtype": "float32",
            "nested_offset": weight.scales.offset.item(),
        }
        tensors |= {
            f"{module}.weight.absmax": (weight.scales.levels.flatten().to(torch.int16) + 128).to(torch.uint8),
            f"{module}.weight.nested_absmax": weight.scales.scales * 127,
            f"{module}.weight.nested_quant_map": (torch.arange(256) - 128) / 127,
        }
    else:
        tensors[f"{module}.weight.absmax"] = weight.scales.flatten()
    return tensors | {
        f"{module}.weight.{STATE}": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    }


def write_config() -> dict[str, Any]:
    """Return config.json's section for NF4 with nested scales."""
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "bfloat16",
        "llm_int8_skip_modules": ["lm_head"],
    }
