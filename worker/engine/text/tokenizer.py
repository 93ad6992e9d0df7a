"""Text to token ids and back, by the checkpoint's own tokenizer.json. Safe to call from any thread."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from worker.engine.requests.errors import CheckpointError

UNKNOWN = "\U0010fffd"  # in nobody's vocabulary
REPLACEMENT = "\ufffd"  # what an incomplete character decodes to
MAX_PENDING_TOKENS = 16  # a character has at most 4 bytes; a longer tail of replacements is the text itself


class Tokenizer:
    """A checkpoint's tokenizer."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(file, "", "no such file")
        try:
            self._tokenizer = FastTokenizer.from_file(str(file))
            self._tokenizer.encode(UNKNOWN)  # one that names an unknown token it does not have fails here
        except Exception as error:
            # The tokenizers library raises bare Exception.
            raise CheckpointError(file, "", f"cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id it knows; the model may have rows for more."""
        return max(self._tokenizer.get_vocab().values()) + 1

    def to_json(self) -> str:
        """Return it as tokenizer.json has it, without padding and truncation."""
        return self._tokenizer.to_str()

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of each text."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)


class TextStream:
    """Text of a growing list of tokens, handed out in whole characters.

    A token's text depends on its neighbours, so each piece is the difference of two decodes over a short
    window, and is kept back while it ends in an incomplete character.
    """

    __slots__ = ("_pending", "_tokenizer", "_window", "_window_text")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens handed out last: the context of the next ones
        self._window_text = ""
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token and return the text that became certain, often none."""
        self._pending.append(token_id)
        text = self._tokenizer.decode(self._window + self._pending)
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING_TOKENS:
            return ""
        new_text = text[len(self._window_text) :]
        self._window = self._pending
        self._window_text = self._tokenizer.decode(self._window)
        self._pending = []
        return new_text
