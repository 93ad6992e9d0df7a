"""A valid body of each kind, to be spoiled."""

from typing import Any

SAMPLING: dict[str, Any] = {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 7,
    "stop": ["\n", "end"],
    "stop_token_ids": [3],
    "ignore_eos": False,
    "min_tokens": 1,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "logit_bias": {"5": 1.5, "7": -100},
    "prompt_logprobs": 1,
    "n": 2,
    "best_of": 3,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"const": "b"}}}},
    },
}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None},
    {"role": "user", "content": "go on"},
]
CHAT: dict[str, Any] = SAMPLING | {
    "model": "tiny",
    "messages": MESSAGES,
    "logprobs": True,
    "top_logprobs": 2,
    "metadata": {"a": "b"},
    "user": "somebody",
    "modalities": ["text"],
    "tools": [],
    "reasoning_effort": "low",
    "thinking_budget": 5,
    "include_reasoning": False,
    "chat_template_kwargs": {"enable_thinking": False, "custom": [1, {"a": None}]},
    "truncate_prompt_tokens": -1,
    "return_token_ids": True,
}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "Do it.", "parameters": PARAMETERS}
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b", "b": 3}'}}]
ENDPOINT = {
    "url": "https://tools.example.com/run",
    "max_turns": 4,
    "forced_turns": 2,
    "timeout_seconds": 2.5,
    "total_seconds": 60,
    "on_failure": "tell_model",
}
TOOL_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "I", "reasoning": "think"},
    ],
    "tools": [
        {"type": "function", "function": FUNCTION},
        {"type": "function", "function": FUNCTION | {"name": "g", "strict": True}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "tool_endpoint": ENDPOINT,
    "max_tokens": 3,
    "enable_thinking": True,
    "thinking_token_budget": 4,
    "verbosity": "medium",
    "continue_final_message": True,
    "add_generation_prompt": False,
    "response_format": {"type": "json_object"},
}
COMPLETION: dict[str, Any] = SAMPLING | {
    "model": "tiny",
    "prompt": ["quick", "brown fox"],
    "logprobs": 1,
    "echo": True,
}
EMBEDDING: dict[str, Any] = {
    "model": "tiny",
    "input": [[1, 2, 3], [4]],
    "dimensions": 8,
    "encoding_format": "base64",
    "pooling": "mean",
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "quick"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "brown", "annotations": []}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "fox"}]},
        {"role": "user", "content": "lazy dog"},
    ],
    "instructions": "be brief",
    "max_output_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    "truncation": "auto",
    "service_tier": "flex",
    "metadata": {"a": "b"},
    "store": False,
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "required",
    "tool_endpoint": ENDPOINT,
}
SUBMISSION: dict[str, Any] = SAMPLING | {
    "requests": [
        {"custom_id": "a", "prompt": "quick", "temperature": 0.0, "guided_regex": "[a-z]+"},
        {
            "custom_id": "b",
            "messages": [{"role": "user", "content": "lazy dog"}],
            "guided_choice": ["a", "b"],
        },
        {"prompt": "fox", "kind": "embedding", "dimensions": 3},
        {"prompt": "fox", "kind": "scoring", "continuations": [" jumps"]},
    ],
    "callback_url": "https://example.com/hook",
    "priority": 3,
    "completion_window": "24h",
    "max_failed": 3,
    "max_total_tokens": 10_000,
    "cache": "exact",
    "cache_similarity": 0.9,
    "metadata": {"run": "7"},
    "name": "night run",
}
TOOL_SUBMISSION: dict[str, Any] = {
    "requests": [
        {
            "messages": [{"role": "user", "content": "lazy dog"}],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            "tool_endpoint": ENDPOINT,
        },
        {"prompt": "quick"},
    ],
    "tool_endpoint": ENDPOINT,
    "max_tokens": 5,
}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42", "is_error": True}],
        },
        {"role": "assistant", "content": "I"},
    ],
    "tools": [{"name": "f", "description": "Do it.", "input_schema": PARAMETERS, "strict": True}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": PARAMETERS}},
    "stop_sequences": ["end"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "metadata": {"user_id": "a"},
    "tool_endpoint": ENDPOINT,
}
TOKENS: dict[str, Any] = {"prompt": "quick", "add_special_tokens": False, "return_token_strs": True}
PROMPTS: dict[str, Any] = SAMPLING | {"prompts": ["quick", "brown fox"], "wait_seconds": 3.5}
FILE_BATCH = {
    "input_file_id": "file-0123",
    "endpoint": "/v1/chat/completions",
    "completion_window": "7d",
    "metadata": {"a": "b"},
    "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    "priority": 1,
    "name": "night run",
    "start_after": 5.5,
    "output_uri": "s3://bucket/{batch_id}.parquet",
}
BUCKET_BATCH = {
    "input_uri": "s3://bucket/rows.csv",
    "table": {"prompt": "Label: {text}", "custom_id": "id", "body": {"max_tokens": 3}},
    "endpoint": "/v1/completions",
    "completion_window": "7d",
}
UPLOAD = {
    "purpose": "batch",
    "filename": "a.jsonl",
    "bytes": 12,
    "mime_type": "text/plain",
    "expires_after": {"anchor": "created_at", "seconds": 3600},
}
