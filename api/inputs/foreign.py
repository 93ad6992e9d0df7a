"""Defines fields of other servers: accepted without effect, or refused with what to do instead."""

from typing import Annotated

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo, WithJsonSchema

from api.inputs.schema import Schema

NOTHING: list[JsonValue] = [None, False, "", [], {}]
LEAVE_OUT = "leave it out"
# What to do instead of sending a field, by its name.
ADVICE = {
    "adapter": "load the merged checkpoint as the model",
    "allowed_token_ids": "send guided_choice or guided_regex",
    "audio": "leave it out; models here read and write text only",
    "bad_words": "send logit_bias with -100 for their tokens",
    "cache_salt": "leave it out; tenants share no prefix, unless HEADRACE_PREFIX_SHARING says so",
    "chat_template": "put it into the checkpoint's tokenizer_config.json",
    "context_management": "set truncation to 'auto', or shorten the input",
    "conversation": "continue a response with previous_response_id",
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
    "disable_any_whitespace": "leave it out; JSON outputs have at most one space between tokens",
    "documents": "send them in chat_template_kwargs, or write them into a message",
    "guided_whitespace_pattern": "leave it out; JSON outputs have at most one space between tokens",
    "length_penalty": "it belongs to beam search, which this server does not have; leave it out",
    "logits_processors": "send logit_bias, the penalties or guided_regex",
    "lora_path": "load the merged checkpoint as the model",
    "prompt": "send the prompt's text as input and instructions",
    "return_hidden_states": "leave it out, or ask /v1/embeddings for vectors",
    "stop_regex": "send stop strings, or guided_regex for the whole output",
    "structural_tag": "send tools, or a schema for the whole output",
    "suffix": "write the text before and after the gap into the prompt, as the model expects it",
    "use_beam_search": "send n or best_of",
    "web_search_options": "search yourself, and write what you found into a message",
    "whitespace_pattern": "leave it out; JSON outputs have at most one space between tokens",
}


def _nothing(value: object, info: ValidationInfo) -> None:
    if value not in NOTHING or (value == 0 and value is not False):
        advice = ADVICE.get(info.field_name or "", LEAVE_OUT)
        raise ValueError(f"is not supported by this server; {advice}")


def _one(value: object, info: ValidationInfo) -> None:
    if value != 1:
        _nothing(value, info)


# A field of another server that is not supported: only a value that asks for nothing is accepted.
Unsupported = Annotated[None, BeforeValidator(_nothing), WithJsonSchema({"enum": NOTHING})]
UnsupportedFactor = Annotated[None, BeforeValidator(_one), WithJsonSchema({"enum": [*NOTHING, 1]})]
# A field that changes no output.
Ignored = Annotated[JsonValue, Field(description="Accepted, and of no effect.")]


class ForeignFields(Schema):
    """Fields of chats and completions that clients of OpenAI, vLLM and SGLang send beside the sampling's."""

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prediction: Annotated[
        JsonValue, Field(description="Accepted, and of no effect: it would change no token.")
    ] = None
    request_id: Ignored = None
    rid: Ignored = None
    guided_decoding_backend: Ignored = None
    spaces_between_special_tokens: Ignored = None
    adapter: Unsupported = None
    allowed_token_ids: Unsupported = None
    bad_words: Unsupported = None
    cache_salt: Unsupported = None
    guided_whitespace_pattern: Unsupported = None
    kv_transfer_params: Unsupported = None
    length_penalty: UnsupportedFactor = None
    logits_processors: Unsupported = None
    lora_path: Unsupported = None
    return_hidden_states: Unsupported = None
    session_params: Unsupported = None
    stop_regex: Unsupported = None
    use_beam_search: Unsupported = None
    vllm_xargs: Unsupported = None
