"""Follows what a Sequence's model thinks before it answers, and ends it when its budget is used up."""

from collections.abc import Callable, Sequence

from worker.values.thinking import Thinking


class Thoughts:
    """Position of one Sequence's output in its thoughts, which the answer follows.

    `to_text` returns the new text of each token in turn; the marks may be parts of tokens.
    """

    __slots__ = (
        "_budget",
        "_end_ids",
        "_forced",
        "_has_begun",
        "_num_tokens",
        "_text",
        "_thinking",
        "_to_text",
        "is_over",
    )

    def __init__(
        self,
        thinking: Thinking,
        to_text: Callable[[int], str],
        *,
        end_ids: Sequence[int],
        opening_ids: Sequence[int] = (),
        budget: int | None = None,
    ) -> None:
        """Make the output begin with `opening_ids`. `end_ids` are the tokens of `thinking.end`."""
        self.is_over = False
        self._thinking = thinking
        self._to_text = to_text
        self._end_ids = tuple(end_ids)
        self._forced = list(opening_ids)  # tokens that must come next
        self._has_begun = thinking.is_open
        self._budget = budget
        self._num_tokens = 0
        self._text = ""
        self._check_budget()

    @property
    def wanted(self) -> int | None:
        """The token that must come next; None: any may."""
        return self._forced[0] if self._forced else None

    def push(self, token_id: int) -> None:
        """Add the chosen token."""
        if self._forced:
            self._forced.pop(0)
        self._text += self._to_text(token_id)
        thinking = self._thinking
        if thinking.closing in self._text:
            self._has_begun = True
            self.is_over = not self._forced
            return
        if not self._has_begun:
            begun = self._text.lstrip()
            self._has_begun = begun.startswith(thinking.opening)
            self.is_over = not self._has_begun and not thinking.opening.startswith(begun)
            if self._has_begun:
                self._check_budget()
            return
        self._num_tokens += 1
        self._check_budget()
        # What could still become a part of the closing mark.
        self._text = self._text[-len(thinking.closing) :]

    def _check_budget(self) -> None:
        has_used_it = self._budget is not None and self._num_tokens >= self._budget
        if has_used_it and self._has_begun and not self._forced:
            self._forced = list(self._end_ids)
