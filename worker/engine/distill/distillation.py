"""Trains a draft on a teacher's distributions. A run can be stopped and gone on with at any step.

The loss is the Kullback-Leibler divergence of the draft's next-token distribution from the teacher's
(Hinton, Vinyals and Dean, arXiv:1503.02531).
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from worker.engine.training.decoder import TrainableDecoder
from worker.engine.training.scores import score
from worker.engine.training.text import TrainingText

WARMUP_STEPS = 20
HELD = 0.5  # share of the steps before the learning rate sinks
CHUNK = 512  # tokens whose logits are in memory together
LARGEST_GRADIENT = 1.0
SCORES = 20  # of a run


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run is determined by, beside its models and its text."""

    steps: int
    num_rows: int
    length: int  # tokens of a row
    learning_rate: float
    seed: int


class Distillation:
    """A run, at some step of its recipe."""

    def __init__(
        self, recipe: Recipe, teacher: TrainableDecoder, draft: TrainableDecoder, text: TrainingText
    ) -> None:
        self.recipe, self.teacher, self.draft, self.text = recipe, teacher, draft, text
        self.step = 0
        self.seconds = 0.0
        self.losses: list[float] = []  # of each step
        self.acceptance: list[tuple[int, float]] = []  # on text that is not learned from, after some steps
        for tensor in draft.weights.values():
            tensor.requires_grad_()
        self._optimizer = torch.optim.AdamW(
            draft.weights.values(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def run(self, saved: Path, save_seconds: float, report: Callable[[float], None]) -> None:
        """Run to the last step; save now and then and at the end, and report the loss of each step."""
        last_save = self.seconds
        while self.step < self.recipe.steps:
            began = time.perf_counter()
            loss = self._take_step()
            self.seconds += time.perf_counter() - began
            self.losses.append(loss)
            if self.step * SCORES // self.recipe.steps > (self.step - 1) * SCORES // self.recipe.steps:
                found = score(self.teacher, self.draft, self.text.tests(self.recipe.length))
                self.acceptance.append((self.step, found.acceptance))
            report(loss)
            if self.seconds - last_save > save_seconds:
                last_save = self.seconds
                self.save(saved)
        self.save(saved)

    def save(self, file: Path) -> None:
        """Write the run's state, so that a reader sees all of it or the one before."""
        state = {
            "recipe": asdict(self.recipe),
            "step": self.step,
            "seconds": self.seconds,
            "losses": self.losses,
            "acceptance": self.acceptance,
            "weights": {name: tensor.detach() for name, tensor in self.draft.weights.items()},
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)

    def load(self, file: Path) -> None:
        """Go on from a saved state; raises ValueError if it is one of another recipe or draft."""
        state = torch.load(file, weights_only=True)
        shapes = {name: tensor.shape for name, tensor in self.draft.weights.items()}
        if state["recipe"] != asdict(self.recipe) or shapes != {
            name: tensor.shape for name, tensor in state["weights"].items()
        }:
            raise ValueError(f"{file} is of a run with other options: {state['recipe']}")
        with torch.no_grad():
            for name, tensor in self.draft.weights.items():
                tensor.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.losses, self.acceptance = state["losses"], state["acceptance"]

    def _take_step(self) -> float:
        recipe = self.recipe
        rows = self.text.rows(recipe.seed, self.step, recipe.num_rows, recipe.length)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _warmth(self.step, recipe.steps)
        with torch.no_grad():
            wanted = self.teacher.hidden(rows).flatten(0, 1)
        states = self.draft.hidden(rows).flatten(0, 1)
        loss, gradient = self._divergence(states.detach(), wanted)
        states.backward(gradient)  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.draft.weights.values(), LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss

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


def _warmth(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: it rises, holds and sinks to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (steps * (1 - HELD)))
