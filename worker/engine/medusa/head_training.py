"""Trains Medusa heads on what their model predicts a few tokens later.

The loss of a head is the Kullback-Leibler divergence of its distribution from the model's own at the place
that it guesses. The model itself does not change.
"""

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.training.decoder import EMBEDDING, TrainableDecoder
from worker.engine.training.run import Recipe, TrainingRun
from worker.engine.training.text import TrainingText

FARTHER = 0.8  # weight of a head's loss, by that of the head before it
TESTED = 8  # rows, while a run goes on: each head's logits take as long as the model's


class HeadTraining(TrainingRun):
    """A run that changes the heads."""

    def __init__(
        self, recipe: Recipe, model: TrainableDecoder, heads: MedusaHeads, text: TrainingText
    ) -> None:
        super().__init__(recipe, text, {"weights": heads.weights, "biases": heads.biases})
        self.model, self.heads = model, heads

    def learn(self, rows: Tensor) -> float:
        """Compute the gradients of the heads on rows [num_rows, length]; return the loss of all heads."""
        with torch.no_grad():
            hidden = self.model.hidden(rows)
        total = 0.0
        # The logits of all rows at once would be gigabytes.
        for states, token_ids in zip(hidden, rows, strict=True):
            with torch.no_grad():
                aim = F.linear(states, self.model.head).log_softmax(-1)
            guessed = guess(self.model, self.heads, states, token_ids)
            gradient = torch.zeros_like(guessed)
            for head in range(self.heads.num_heads):
                wanted = aim[head + 1 :]
                with torch.no_grad():
                    found = F.linear(guessed[: len(wanted), head], self.model.head).log_softmax(-1)
                weight = FARTHER**head / (len(wanted) * len(hidden))
                shares = wanted.exp()
                total += weight * float((shares * (wanted - found)).sum())
                gradient[: len(wanted), head] = weight * ((found.exp() - shares) @ self.model.head)
            guessed.backward(gradient)  # type: ignore[no-untyped-call]
        return total

    def test(self) -> list[float]:
        """Return the acceptance of each head on some of the held-out text."""
        return acceptance(self.model, self.heads, self.text.tests(self.recipe.length)[:TESTED])


def guess(model: TrainableDecoder, heads: MedusaHeads, hidden: Tensor, token_ids: Tensor) -> Tensor:
    """Return what the heads make of a row's hidden states but the last, which no token follows.

    The result is [length - 1, num_heads, hidden_size].
    """
    newest = F.embedding(token_ids[1:], model.weights[EMBEDDING])
    return heads.states(hidden[:-1], newest, heads.num_heads)


@torch.no_grad()
def acceptance(model: TrainableDecoder, heads: MedusaHeads, rows: Tensor) -> list[float]:
    """Return, for each head, how often its likeliest token is the model's own, on rows [num_rows, length].

    The model's own token is the likeliest one after the text before it.
    """
    num_right = [0] * heads.num_heads
    num_places = [0] * heads.num_heads
    for row in rows:
        hidden = model.hidden(row[None])[0]
        chosen = F.linear(hidden, model.head).argmax(-1)
        for head, states in enumerate(guess(model, heads, hidden, row).unbind(1)):
            wanted = chosen[head + 1 :]
            guessed = F.linear(states[: len(wanted)], model.head).argmax(-1)
            num_right[head] += int((guessed == wanted).sum())
            num_places[head] += len(wanted)
    return [round(right / places, 4) for right, places in zip(num_right, num_places, strict=True)]
