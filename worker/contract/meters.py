"""Name the counters of processes. Every reading only grows; rates come from differences of readings."""

from collections.abc import Mapping

Readings = Mapping[str, float]

# Description of each counter; Prometheus shows this text.
COUNTERS = {
    "cache_lookups": "Requests looked up in the response cache",
    "steps": "Steps of the engine",
    "prefill_tokens": "Prompt tokens run through the model for the first time",
    "decode_tokens": "Tokens generated",
    "recomputed_tokens": "Tokens run through the model again after a preemption",
    "computed_tokens": "Rows run through the model for a request",
    "padding_tokens": "Rows run through the model to fill a step up",
    "prefix_queried_tokens": "Prompt tokens looked up in the prefix cache",
    "prefix_cached_tokens": "Prompt tokens found in the prefix cache",
    "prefix_evictions": "Blocks of the prefix cache that were needed for something else",
    "preemptions": "Sequences that lost their Blocks and had to wait",
    "limit_cuts": "Times that the limits of steps were cut for a latency target",
    "limit_raises": "Times that they were raised for it",
    "scheduled_sequences": "Sequences in a step, summed over steps",
    "sequence_rows": "Sequences a step has room for, summed over steps",
    "kv_used_block_steps": "Blocks of the KV cache that sequences hold, summed over steps",
    "kv_block_steps": "Blocks of the KV cache, summed over steps",
    "lookup_guessed_tokens": "Tokens guessed from equal tokens before them, and verified",
    "lookup_right_tokens": "Tokens guessed from equal tokens before them that were right",
    "grammar_guessed_tokens": "Tokens guessed as a grammar left no other text, and verified",
    "grammar_right_tokens": "Tokens guessed as a grammar left no other text that were right",
    "draft_guessed_tokens": "Tokens guessed by the draft model, and verified",
    "draft_right_tokens": "Tokens guessed by the draft model that were right",
    "medusa_guessed_tokens": "Tokens guessed by Medusa heads, and verified",
    "medusa_right_tokens": "Tokens guessed by Medusa heads that were right",
    "prefill_seconds": "Seconds of the device spent on tokens of prompts",
    "decode_seconds": "Seconds of the device spent on tokens of outputs",
    "padding_seconds": "Seconds of the device spent on rows that fill a step up",
    "cpu_seconds": "Seconds of CPU that gpu workers took",
}
