"""Reads what the API needs of the served checkpoint: its context, its tokens, its chat template.

It reads the directory's JSON files with `tokenizers` alone. It never loads torch, and reads of the weights
only what identifies them.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

from jinja2 import TemplateError
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from api.parsing.families import find_family, find_thinking_style
from worker.chat.template import ChatTemplate, own_template
from worker.contract.models import Model, identify
from worker.values.grammar import vocabulary_of
from worker.values.parsing import Family

TOKENIZE_AT_ONCE = 64 * 1024  # characters
UNKNOWN = "\U0010fffd"  # in no vocabulary
MAX_SIZE = 2**31 - 1  # of anything that a config counts
# How byte-level tokenizers write bytes: printable ones as themselves, the others from 256 on.
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTES_BY_SYMBOL = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(PRINTABLE)))
}
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # of tokenizers that fall back to bytes


class ModelDirectoryError(Exception):
    """The model directory cannot be served. The message names the file."""


class Spelling(Protocol):
    """Writes a model's tokens as text and as bytes."""

    def token_text(self, token_id: int) -> str:
        """Return the text of one token."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text."""

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""

    def is_special(self, token_id: int) -> bool:
        """Return whether a token marks something and adds nothing to a text."""


class NumberSpelling:
    """Writes tokens of a model whose tokenizer is not loaded, as `token_id:17`."""

    def token_text(self, token_id: int) -> str:
        """Return a token's number."""
        return f"token_id:{token_id}"

    def token_bytes(self, token_id: int) -> bytes:
        """Return the same as bytes."""
        return self.token_text(token_id).encode()

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the numbers of tokens."""
        return "".join(map(self.token_text, token_ids))

    def is_special(self, token_id: int) -> bool:  # noqa: ARG002
        """Return False: nothing is known of these tokens."""
        return False


class Checkpoint:
    """A Hugging Face model directory, as far as the API needs it, and those that are served with it."""

    def __init__(
        self,
        *,
        model: Model,
        max_model_len: int,
        vocab_size: int,
        hidden_size: int | None,
        created: int,
        tokenizer: Tokenizer,
        end_token_ids: Collection[int],
        config: Mapping[str, Any],
        model_type: object = None,  # as config.json has it
        family: Family | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.model = model
        self.beside: tuple[Checkpoint, ...] = ()  # of the other models that are served with it
        aliases_of_it = tuple(alias for alias, name in aliases.items() if name == model.name != alias)
        self.names = (model.name, *aliases_of_it)  # by which a client may ask for the model, its own first
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.created = created
        self._tokenizer = tokenizer
        self._end_token_ids = end_token_ids
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(tokenizer.to_str()).get("decoder"))
        self.template = ChatTemplate(model.name, config)
        source = self.template.tool_source
        self.family = family or find_family(source, tokenizer.get_vocab(), model_type)
        self.thinking_style = None if family is Family.NONE else find_thinking_style(source, self.family)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        family: Family | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Read a model directory; `family` overrides what its chat template says.

        `aliases` maps other names to names of models, perhaps to this one's.

        Raises:
            ModelDirectoryError: a file is missing or not valid.

        """
        config_file = directory / "config.json"
        config = _read_json(config_file)
        tokenizer_file = directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(tokenizer_file))
            tokenizer.encode(UNKNOWN)  # fails here if the tokenizer names an unknown token that it lacks
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelDirectoryError(f"{tokenizer_file}: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer_config_file = directory / "tokenizer_config.json"
        tokenizer_config = _read_json(tokenizer_config_file) if tokenizer_config_file.exists() else {}
        try:
            return cls(
                model=identify(directory),
                max_model_len=_read_size(config_file, config, "max_position_embeddings", least=2),
                vocab_size=_read_size(config_file, config, "vocab_size", tokenizer.get_vocab_size()),
                hidden_size=_read_size(config_file, config, "hidden_size", 0) or None,
                created=int(config_file.stat().st_mtime),
                tokenizer=tokenizer,
                end_token_ids=_read_end_token_ids(directory, config),
                config=tokenizer_config | own_template(directory),
                model_type=config.get("model_type"),
                family=family,
                aliases=aliases,
            )
        except (TemplateError, UnicodeError, RecursionError) as error:
            raise ModelDirectoryError(f"{directory}: its chat template: {error}") from error
        except OSError as error:
            raise ModelDirectoryError(f"{directory}: {error}") from error

    @classmethod
    def load_all(
        cls,
        directories: Sequence[Path],
        *,
        family: Family | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Read model directories as `load` does; return the first, which has the others beside it.

        Raises:
            ModelDirectoryError: a file is not valid, or two models have one name.

        """
        different = dict.fromkeys(directory.resolve() for directory in directories)
        first, *beside = (cls.load(one, family=family, aliases=aliases) for one in different)
        names: dict[str, Path] = {}
        for directory, one in zip(different, (first, *beside), strict=True):
            for name in one.names:
                if names.setdefault(name, directory) != directory:
                    raise ModelDirectoryError(f"{directory}: {names[name]} has the name {name!r} too")
        first.beside = tuple(beside)
        return first

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.model.name

    @property
    def served(self) -> "tuple[Checkpoint, ...]":
        """The checkpoints of all models that are served, this one first."""
        return (self, *self.beside)

    def named(self, name: str) -> "Checkpoint | None":
        """Return the checkpoint of the served model of this name; None: there is none."""
        if name in self.names:
            return self
        return next((one for one in self.beside if name in one.names), None)

    def of(self, fingerprint: str | None) -> "Checkpoint | None":
        """Return the checkpoint of a served model, by its fingerprint; this one for None."""
        if fingerprint is None or fingerprint == self.model.fingerprint:
            return self
        return next((one for one in self.beside if one.model.fingerprint == fingerprint), None)

    def serving(self, model: Model | None) -> "Checkpoint":
        """Return the checkpoint of a model; this one for None, or if the model is not served here."""
        return self.of(None if model is None else model.fingerprint) or self

    def alone(self) -> "Checkpoint":
        """Return this checkpoint as that of the only model."""
        found = copy(self)
        found.beside = ()
        return found

    def spelling_of(self, fingerprint: str | None) -> Spelling:
        """Return the spelling of a model's tokens; None: of a result from before models were recorded."""
        return self.of(fingerprint) or NumberSpelling()

    @cached_property
    def vocabulary(self) -> LLTokenizer:
        """The tokens that grammars are checked with, as in the engine; raises GrammarError if none works."""
        return vocabulary_of(
            self._tokenizer.to_str(),
            tokenizer_size=max(self._tokenizer.get_vocab().values()) + 1,
            vocab_size=self.vocab_size,
            end_token_ids=self._end_token_ids,
        )

    def count_tokens(self, prompts: Sequence[str], *, add_special_tokens: bool) -> list[int]:
        """Return how many tokens the engine will see for each prompt."""
        counts: list[int] = []
        for some in _slices(prompts):
            encodings = self._tokenizer.encode_batch_fast(some, add_special_tokens=add_special_tokens)
            counts += [len(encoding) for encoding in encodings]
        return counts

    def token_text(self, token_id: int) -> str:
        """Return the text of one token; bytes that are no whole character show as replacements."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text, including its leading space."""
        token = self._tokenizer.id_to_token(token_id) or ""
        if self._is_byte_level and all(symbol in BYTES_BY_SYMBOL for symbol in token):
            return bytes(BYTES_BY_SYMBOL[symbol] for symbol in token)
        if match := BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    @cached_property
    def _special_token_ids(self) -> frozenset[int]:
        return frozenset(self.special_tokens.values())

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that are no text, by their names."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items() if token.special}

    def token_name(self, token_id: int) -> str:
        """Return a token as the vocabulary writes it."""
        return self._tokenizer.id_to_token(token_id) or ""

    def marker(self, name: str) -> str | None:
        """Return the text of a token that the template may name, as `eos_token`; None if there is none."""
        if name == "eos_token" and not self.template.tokens[name]:
            return next(map(self.token_name, self._end_token_ids), None)
        return self.template.tokens[name] or None

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return self.decode(token_ids, skip_special_tokens=True)

    def is_special(self, token_id: int) -> bool:
        """Return whether a token marks something and adds nothing to a text."""
        return token_id in self._special_token_ids

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text, as the engine sees them."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


def _slices(prompts: Sequence[str]) -> Iterator[list[str]]:
    """Yield prompts in slices of few characters: an encoding is a hundred times as large as its text."""
    some, size = [], 0
    for prompt in prompts:
        some.append(prompt)
        size += len(prompt)
        if size >= TOKENIZE_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelDirectoryError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path}: not a JSON object")
    return value


def _read_size(
    file: Path, config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 0
) -> int:
    value = config.get(key, default)
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise ModelDirectoryError(f"{file}: {key} should be a number from {least} on, is {value!r}")
    return value


def _read_end_token_ids(directory: Path, config: dict[str, Any]) -> list[int]:
    """Return the end tokens of generation_config.json, or else of config.json, as the engine does."""
    file = directory / "generation_config.json"
    value = _read_json(file).get("eos_token_id") if file.is_file() else None
    if value is None:
        value = config.get("eos_token_id")
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]
