"""Takes weights through the steps of a recipe. A run can be stopped and gone on with at any step."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from worker.engine.training.text import TrainingText

WARMUP_STEPS = 20
HELD = 0.5  # share of the steps before the learning rate sinks
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


class TrainingRun(ABC):
    """A run, at some step of its recipe; what is learned is the subclass's."""

    def __init__(self, recipe: Recipe, text: TrainingText, weights: Mapping[str, Tensor]) -> None:
        """Begin a run that changes `weights`."""
        self.recipe, self.text = recipe, text
        self.step = 0
        self.seconds = 0.0
        self.losses: list[float] = []  # of each step
        # On text that is not learned from, after some steps; one number or one of each head.
        self.acceptance: list[tuple[int, list[float]]] = []
        self._weights = weights
        for tensor in weights.values():
            tensor.requires_grad_()
        self._optimizer = torch.optim.AdamW(
            weights.values(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    @abstractmethod
    def learn(self, rows: Tensor) -> float:
        """Compute the gradients of the weights on rows [num_rows, length]; return the loss."""

    @abstractmethod
    def test(self) -> list[float]:
        """Return the acceptance on text that is not learned from."""

    def run(self, saved: Path, save_seconds: float, report: Callable[[float], None]) -> None:
        """Run to the last step; save now and then and at the end, and report the loss of each step."""
        last_save = self.seconds
        while self.step < self.recipe.steps:
            began = time.perf_counter()
            loss = self._take_step()
            self.seconds += time.perf_counter() - began
            self.losses.append(loss)
            if self.step * SCORES // self.recipe.steps > (self.step - 1) * SCORES // self.recipe.steps:
                self.acceptance.append((self.step, self.test()))
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
            "weights": {name: tensor.detach() for name, tensor in self._weights.items()},
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)

    def load(self, file: Path) -> None:
        """Go on from a saved state; raises ValueError if it is one of another recipe or of other weights."""
        state = torch.load(file, weights_only=True)
        shapes = {name: tensor.shape for name, tensor in self._weights.items()}
        if state["recipe"] != asdict(self.recipe) or shapes != {
            name: tensor.shape for name, tensor in state["weights"].items()
        }:
            raise ValueError(f"{file} is of a run with other options: {state['recipe']}")
        with torch.no_grad():
            for name, tensor in self._weights.items():
                tensor.copy_(state["weights"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.losses, self.acceptance = state["losses"], state["acceptance"]

    def _take_step(self) -> float:
        recipe = self.recipe
        rows = self.text.rows(recipe.seed, self.step, recipe.num_rows, recipe.length)
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _warmth(self.step, recipe.steps)
        loss = self.learn(rows)
        torch.nn.utils.clip_grad_norm_(self._weights.values(), LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss


def _warmth(step: int, steps: int) -> float:
    """Return the share of the learning rate at a step: it rises, holds and sinks to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (steps * (1 - HELD)))
