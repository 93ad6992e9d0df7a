"""llama.cpp by its C API, batched continuously as its server does: decode first, prompts fill the rest.

Built on this machine for this machine; its checkpoint is written here, with the gguf package.
"""

import ctypes
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any

REQUIREMENTS = ("numpy==2.4.6", "gguf==0.19.0", "llama-cpp-python==0.3.36")
BUILD_ENVIRONMENT = {
    "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAVA_BUILD=OFF",
    "CXXFLAGS": shlex.join(["-include", str(Path(__file__).with_name("amx_tiles.h").resolve())]),
}
FORMS = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
OPTIONS = {"sequences": 32, "tokens": 512, "prefix_cache": 1}
WORTH_SHARING = 16  # tokens
# Kept here because the library calls it for as long as the process lives.
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
FILE_TYPES = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0"}
TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def read_tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the bfloat16 tensors of a safetensors file as float32 arrays, without torch."""
    import numpy as np

    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        start = stream.tell()
        header.pop("__metadata__", None)
        for name, facts in header.items():
            if facts["dtype"] != "BF16":
                raise ValueError(f"{name} is {facts['dtype']}: only BF16 checkpoints are converted")
            first, last = facts["data_offsets"]
            stream.seek(start + first)
            halves = np.frombuffer(stream.read(last - first), dtype="<u2")
            yield name, (halves.astype("<u4") << 16).view("<f4").reshape(facts["shape"])


def gguf_name(name: str) -> str:
    """Return llama.cpp's name for a tensor of a Llama checkpoint."""
    module = name.removesuffix(".weight")
    if not module.startswith("model.layers."):
        return f"{TENSORS[module]}.weight"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{TENSORS[rest]}.weight"


def convert(model: Path, form: str, target: Path) -> None:
    """Write the checkpoint and its tokenizer as GGUF."""
    import gguf
    import numpy as np

    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    target.mkdir()
    writer = gguf.GGUFWriter(target / "model.gguf", "llama")
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[form]])
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
    writer.add_vocab_size(config["vocab_size"])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda pair: pair[1])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([kinds.CONTROL if i in special else kinds.NORMAL for _, i in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in read_tensors(file):
            if tensor.ndim == 1:
                writer.add_tensor(gguf_name(name), tensor)
                continue
            for projection, num_heads in heads.items():
                if projection in name:  # rotary pairs lie side by side there, half a head apart here
                    tensor = tensor.reshape(num_heads, 2, -1, tensor.shape[1]).swapaxes(1, 2)  # noqa: PLW2901
            kind = gguf.GGMLQuantizationType[form]
            rows = np.ascontiguousarray(tensor.reshape(-1, tensor.shape[-1]))
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass(slots=True)
class Running:
    """A request in a slot; its `pending` tokens are to be fed from `position` on."""

    request: int
    slot: int
    position: int
    pending: list[int]


class Context:
    """llama.cpp's cache and one batch; slot 0 keeps the beginning that all prompts share."""

    def __init__(
        self, library: Any, model: Any, threads: int, max_model_len: int, options: dict[str, int], is_shared: bool
    ) -> None:
        params = library.llama_context_default_params()
        params.n_seq_max = options["sequences"] + 1
        params.n_ctx = max_model_len * params.n_seq_max
        params.n_batch = params.n_ubatch = options["tokens"]
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1
        params.kv_unified = is_shared  # slots can share cells only then, and are slower
        self.library = library
        self.context = library.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot open a context")
        self.memory = library.llama_get_memory(self.context)
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        self.slots = range(1, params.n_seq_max)
        self.batch = library.llama_batch_init(options["tokens"], 0, 1)
        self.max_tokens = options["tokens"]

    def feed(self, sequences: list[Running]) -> list[tuple[Running, int]]:
        """Compute pending tokens, as many as fit; return who has no more, with their next token."""
        batch, count = self.batch, 0
        ended = []
        for sequence in sorted(sequences, key=lambda sequence: len(sequence.pending) > 1):
            fed = sequence.pending[: self.max_tokens - count]
            for token in fed:
                batch.token[count] = token
                batch.pos[count] = sequence.position
                batch.n_seq_id[count] = 1
                batch.seq_id[count][0] = sequence.slot
                batch.logits[count] = 0
                sequence.position += 1
                count += 1
            sequence.pending = sequence.pending[len(fed) :]
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

    def generate(
        self, prompts: list[list[int]], max_tokens: list[int], shared: list[int]
    ) -> list[list[int]]:
        """Run all prompts; a slot is taken again as soon as its request ends."""
        self.library.llama_memory_clear(self.memory, False)
        beginning = [Running(-1, 0, 0, shared)]
        while beginning[0].pending:
            self.feed(beginning)
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting = list(reversed(range(len(prompts))))
        free = list(self.slots)
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


def load(
    path: Path,
    dtype: str,  # noqa: ARG001 - the file has it
    threads: int,
    max_model_len: int,
    options: dict[str, int],
) -> Callable[[list[list[int]], list[int]], list[list[int]]]:
    """Open the model; the warm-up run opens the context, whose kind depends on what the prompts share."""
    import llama_cpp

    llama_cpp.llama_log_set(QUIET, None)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.use_mmap = False  # weights it repacks for the machine would be held twice
    model = llama_cpp.llama_model_load_from_file(str(path / "model.gguf").encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    contexts: dict[bool, Context] = {}

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        shared = commonprefix(prompts)[: min(map(len, prompts)) - 1] if options["prefix_cache"] else []
        if len(shared) < WORTH_SHARING:
            shared = []
        is_shared = bool(shared)
        if is_shared not in contexts:
            contexts[is_shared] = Context(llama_cpp, model, threads, max_model_len, options, is_shared)
        return contexts[is_shared].generate(prompts, max_tokens, shared)

    return generate
