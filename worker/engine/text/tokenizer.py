"""Converts text to token ids and back with the checkpoint's tokenizer.json."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from worker.engine.requests.errors import CheckpointError

UNKNOWN = "\U0010fffd"  # in no vocabulary
REPLACEMENT = "\ufffd"  # an incomplete character decodes to this
MAX_PENDING_TOKENS = 16  # a character has at most 4 bytes, so a longer tail of replacements is real text


class Tokenizer:
    """Tokenizer of a checkpoint, safe to call from any thread; raises CheckpointError if it is unreadable."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(file, "", "no such file")
        try:
            self._tokenizer = FastTokenizer.from_file(str(file))
            self._tokenizer.encode(UNKNOWN)  # fails here if its unknown token is not in its vocabulary
        except Exception as error:
            # The tokenizers library raises plain Exception.
            raise CheckpointError(file, "", f"cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @property
    def vocab_size(self) -> int:
        """Highest known token id plus one; the model may have more rows."""
        return max(self._tokenizer.get_vocab().values()) + 1

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token."""
        return self._tokenizer.get_vocab()

    def to_json(self) -> str:
        """Return the tokenizer as tokenizer.json text, without padding and truncation."""
        return self._tokenizer.to_str()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of each text."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


class TextStream:
    """Decodes a growing list of tokens into text, in whole characters.

    A token's text depends on its neighbours, so each piece is the difference of two decodes over a short
    window. A piece is held back while it ends in an incomplete character.
    """

    __slots__ = ("_pending", "_skip_special_tokens", "_tokenizer", "_window", "_window_text")

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []  # tokens decoded last: the context of the next ones
        self._window_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token and return the text that became certain, often empty."""
        self._pending.append(token_id)
        text = self._decode(self._window + self._pending)
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING_TOKENS:
            return ""
        new_text = text[len(self._window_text) :]
        self._window = self._pending
        self._window_text = self._decode(self._window)
        self._pending = []
        return new_text

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
