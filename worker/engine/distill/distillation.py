"""Trains a draft on a teacher's distributions.

The loss is the Kullback-Leibler divergence of the draft's next-token distribution from the teacher's
(Hinton, Vinyals and Dean, arXiv:1503.02531).
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from worker.engine.training.decoder import TrainableDecoder
from worker.engine.training.run import Recipe, TrainingRun
from worker.engine.training.scores import score
from worker.engine.training.text import TrainingText

CHUNK = 512  # tokens whose logits are in memory together


class Distillation(TrainingRun):
    """A run that changes the draft's weights."""

    def __init__(
        self, recipe: Recipe, teacher: TrainableDecoder, draft: TrainableDecoder, text: TrainingText
    ) -> None:
        super().__init__(recipe, text, draft.weights)
        self.teacher, self.draft = teacher, draft

    def learn(self, rows: Tensor) -> float:
        """Compute the gradients of the draft's weights on rows [num_rows, length]; return the loss."""
        with torch.no_grad():
            wanted = self.teacher.hidden(rows).flatten(0, 1)
        states = self.draft.hidden(rows).flatten(0, 1)
        loss, gradient = self._divergence(states.detach(), wanted)
        states.backward(gradient)  # type: ignore[no-untyped-call]
        return loss

    def test(self) -> list[float]:
        """Return the share of held-out tokens where the draft's likeliest one is the teacher's."""
        return [score(self.teacher, self.draft, self.text.tests(self.recipe.length)).acceptance]

    def _divergence(self, states: Tensor, wanted: Tensor) -> tuple[float, Tensor]:
        """Return the loss and its gradient by `states`, and add that of the draft's head.

        Both are hidden states, [num_tokens, hidden_size] of the draft and of the teacher. All logits at once
        would be gigabytes.
        """
        states.requires_grad_()
        total = 0.0
        for start in range(0, len(states), CHUNK):
            part = slice(start, start + CHUNK)
            with torch.no_grad():
                aim = F.linear(wanted[part], self.teacher.head).log_softmax(-1)
            found = F.linear(states[part], self.draft.head).log_softmax(-1)
            loss = F.kl_div(found, aim, reduction="sum", log_target=True) / len(states)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        if states.grad is None:
            raise ValueError("there are no tokens to learn from")
        return total, states.grad
