"""Serves /tokenize, /detokenize and /tokenizer_info, from the served model's tokenizer alone."""

from fastapi import APIRouter

from api.dependencies import READ, SUBMIT, ServicesDependency
from api.errors import OPENAI_STATUSES, documented
from api.guards.large_bodies import OnceRoute
from api.inputs.checkpoint import Checkpoint
from api.inputs.models import find_checkpoint
from api.inputs.prompts import check_size, check_token_ids
from api.openai.bodies import ChatBody
from api.openai.requests import to_request
from api.tokenization.schemas import DetokenizeBody, Detokenized, TokenizeBody, Tokenized, TokenizerInfo
from worker.chat.template import TOKEN_NAMES

router = APIRouter(tags=["openai"], route_class=OnceRoute, dependencies=[OPENAI_STATUSES])

ERRORS = documented(400, 401, 403, 404, 413, 429)


@router.post("/tokenize", dependencies=[SUBMIT], responses=ERRORS, summary="Count the tokens of a text")
def tokenize(body: TokenizeBody, services: ServicesDependency) -> Tokenized:
    """Return the tokens that the model sees for a prompt or a conversation."""
    checkpoint = services.checkpoint
    if body.model is not None:
        checkpoint = find_checkpoint(checkpoint, body.model)
    text, is_chat = _text(checkpoint, body)
    check_size(text, services.settings.max_prompt_bytes, "messages" if is_chat else "prompt")
    add = not is_chat if body.add_special_tokens is None else body.add_special_tokens
    tokens = checkpoint.encode(text, add_special_tokens=add)
    return Tokenized(
        count=len(tokens),
        max_model_len=checkpoint.max_model_len,
        tokens=tokens,
        token_strs=[checkpoint.token_name(token) for token in tokens] if body.return_token_strs else None,
    )


@router.post("/detokenize", dependencies=[SUBMIT], responses=ERRORS, summary="Write tokens as text")
def detokenize(body: DetokenizeBody, services: ServicesDependency) -> Detokenized:
    """Return the text of tokens."""
    checkpoint = services.checkpoint
    if body.model is not None:
        checkpoint = find_checkpoint(checkpoint, body.model)
    check_token_ids(checkpoint, body.tokens, "tokens")
    return Detokenized(prompt=checkpoint.decode(body.tokens, skip_special_tokens=False))


@router.get(
    "/tokenizer_info",
    dependencies=[READ],
    responses=documented(401, 403, 429),
    summary="Look at the tokenizer",
)
def tokenizer_info(services: ServicesDependency) -> TokenizerInfo:
    """Return the special tokens and the chat template of the served model."""
    checkpoint = services.checkpoint
    return TokenizerInfo(
        **{name: checkpoint.marker(name) for name in TOKEN_NAMES},
        chat_template=checkpoint.template.source,
        model_max_length=checkpoint.max_model_len,
    )


def _text(checkpoint: Checkpoint, body: TokenizeBody) -> tuple[str, bool]:
    """Return the text to tokenize, and whether it is a conversation's."""
    if body.prompt is not None:
        return body.prompt, False
    chat = ChatBody(
        model=checkpoint.name,
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return to_request(checkpoint, chat).prompt, True
