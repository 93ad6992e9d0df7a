"""Runs llama.cpp by its C API with continuous batching.

As in its server, decode tokens come first and prompts fill the rest of a batch. It is built from source for
this machine; its checkpoint is written here with the gguf package.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

REQUIREMENTS = ("numpy==2.4.6", "gguf==0.19.0", "llama-cpp-python==0.3.36")
BUILD_ENVIRONMENT = {
    "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF",
    # Without it a build by GCC 12 crashes on a CPU with AMX.
    "CXXFLAGS": shlex.join(["-include", str(Path(__file__).with_name("amx_tiles.h").resolve())]),
}
FORMS = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
OPTIONS = {"sequences": 32, "tokens": 512, "prefix_cache": 1}
WORTH_SHARING = 16  # tokens


def convert(model: Path, form: str, target: Path) -> None:
    """Write the checkpoint, which must be a Llama in bfloat16, and its tokenizer as GGUF."""
    import gguf
    import numpy as np
    from gguf.utility import SafetensorsLocal

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    target.mkdir()
    writer = gguf.GGUFWriter(target / "model.gguf", "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q_proj"])
    writer.add_head_count_kv(heads["k_proj"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])

    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([kinds.CONTROL if text in special else kinds.NORMAL for text in vocabulary])
    gguf.SpecialVocab(model, load_merges=True).add_to_gguf(writer)

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for file in sorted(model.glob("*.safetensors")):
        for name, stored in SafetensorsLocal(file).tensors.items():
            kind = gguf.GGMLQuantizationType[form if len(stored.shape) > 1 else "F32"]
            halves = stored.mmap_bytes().reshape(*stored.shape[:-1], 2 * stored.shape[-1])
            tensor = gguf.dequantize(halves, gguf.GGMLQuantizationType[stored.dtype])
            for projection, num_heads in heads.items():
                if projection in name:  # GGUF stores rotary pairs side by side, ours lie half a head apart
                    split = tensor.reshape(num_heads, 2, -1, tensor.shape[-1])
                    tensor = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(tensor.shape)
            target_name = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(target_name, gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(slots=True)
class Running:
    """A request in a slot; its `pending` tokens are fed next, starting at `position`."""

    request: int
    slot: int
    position: int
    pending: list[int]


class Context:
    """llama.cpp's KV cache and one batch; slot 0 keeps the common prefix of all prompts."""

    def __init__(
        self, model: Any, threads: int, max_model_len: int, options: dict[str, int], is_shared: bool
    ) -> None:
        import llama_cpp

        self.library: Any = llama_cpp
        params = self.library.llama_context_default_params()
        params.n_seq_max = options["sequences"] + 1
        params.n_ctx = max_model_len * params.n_seq_max
        params.n_batch = params.n_ubatch = options["tokens"]
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1
        params.kv_unified = is_shared  # needed to share cells between slots, but slower
        self.context = self.library.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot open a context")
        self.memory = self.library.llama_get_memory(self.context)
        self.vocab_size = self.library.llama_vocab_n_tokens(self.library.llama_model_get_vocab(model))
        self.batch = self.library.llama_batch_init(options["tokens"], 0, 1)
        self.options = options

    def feed(self, sequences: list[Running]) -> list[tuple[Running, int]]:
        """Compute as many pending tokens as fit; return requests with none left, and their next tokens."""
        batch, count = self.batch, 0
        ended = []
        for sequence in sorted(sequences, key=lambda sequence: len(sequence.pending) > 1):
            fed = sequence.pending[: self.options["tokens"] - count]
            sequence.pending = sequence.pending[len(fed) :]
            for token in fed:
                batch.token[count] = token
                batch.pos[count] = sequence.position
                batch.n_seq_id[count] = 1
                batch.seq_id[count][0] = sequence.slot
                batch.logits[count] = 0
                sequence.position += 1
                count += 1
            if not sequence.pending:
                batch.logits[count - 1] = 1
                ended.append((sequence, count - 1))
        batch.n_tokens = count
        status = self.library.llama_decode(self.context, batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        return [(sequence, self.best_token(row)) for sequence, row in ended]

    def best_token(self, row: int) -> int:
        """Return the most likely token after a row of the batch."""
        import numpy as np

        logits = self.library.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def generate(self, prompts: list[list[int]], max_tokens: list[int], shared: list[int]) -> list[list[int]]:
        """Run all prompts; a slot is reused as soon as its request ends."""
        self.library.llama_memory_clear(self.memory, False)
        beginning = Running(-1, 0, 0, shared)
        while beginning.pending:
            self.feed([beginning])
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting = list(reversed(range(len(prompts))))
        free = list(range(1, self.options["sequences"] + 1))
        running: list[Running] = []
        while waiting or running:
            while waiting and free:
                request, slot = waiting.pop(), free.pop()
                if shared:
                    self.library.llama_memory_seq_cp(self.memory, 0, slot, 0, len(shared))
                running.append(Running(request, slot, len(shared), prompts[request][len(shared) :]))
            for sequence, token in self.feed(running):
                outputs[sequence.request].append(token)
                sequence.pending = [token]
                if len(outputs[sequence.request]) == max_tokens[sequence.request]:
                    self.library.llama_memory_seq_rm(self.memory, sequence.slot, -1, -1)
                    running.remove(sequence)
                    free.append(sequence.slot)
        return outputs


def shared_beginning(prompts: list[list[int]]) -> list[int]:
    """Return the prompts' common prefix, never a whole prompt; empty if too short to be worth sharing."""
    alike = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    shared = [tokens[0] for tokens in alike][: min(map(len, prompts)) - 1]
    return shared if len(shared) >= WORTH_SHARING else []


def load(
    path: Path,
    dtype: str,  # noqa: ARG001 - the file has it
    threads: int,
    max_model_len: int,
    options: dict[str, int],
) -> Callable[[list[list[int]], list[int]], list[list[int]]]:
    """Open the model; the warm-up run opens the context, which depends on the prompts' common prefix."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.use_mmap = False  # else weights that it repacks for this machine are held twice
    model = llama_cpp.llama_model_load_from_file(str(path / "model.gguf").encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    context = cache(partial(Context, model, threads, max_model_len, options))

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        shared = shared_beginning(prompts) if options["prefix_cache"] else []
        return context(bool(shared)).generate(prompts, max_tokens, shared)

    return generate
