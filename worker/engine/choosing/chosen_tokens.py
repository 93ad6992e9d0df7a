"""Holds the tokens that a Step chose, on the host or still on the device."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.engine.sequences.next_token import NextToken
from worker.engine.sequences.sequence import Sequence


@dataclass(slots=True)
class ChosenTokens:
    """The next tokens of each sampled Sequence of a Step, on the host: one, and one for each right guess."""

    sequences: tuple[Sequence, ...]
    host: list[tuple[NextToken, ...]]
    rows: list[list[int]]  # of the Step's logits: those that chose these tokens
    is_here: bool = field(default=True, init=False)

    def tokens(self) -> list[tuple[NextToken, ...]]:
        """Return the tokens in the order of `sequences`."""
        return self.host


@dataclass(slots=True)
class TokensOnDevice:
    """ChosenTokens on a device, where the next Step may read them before the host has a copy."""

    sequences: tuple[Sequence, ...]
    device: Tensor  # [num_sequences], negative where logits are not finite
    is_here: bool = field(default=False, init=False)
    _host: Tensor = field(init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.device.is_cuda:  # Triton's interpreter, which runs nothing asynchronously
            self._host = self.device
            return
        self._host = torch.empty(self.device.shape, dtype=self.device.dtype, pin_memory=True)
        self._host.copy_(self.device, non_blocking=True)
        make_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
        self._arrived = make_event()
        self._arrived.record()

    @property
    def rows(self) -> list[list[int]]:
        """The row of the Step's logits that chose each token."""
        return [[row] for row in range(len(self.sequences))]

    def tokens(self) -> list[tuple[NextToken, ...]]:
        """Wait for the copy and return the tokens in the order of `sequences`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [(token,) for token in on_host(self._host)]


Chosen = ChosenTokens | TokensOnDevice


def on_host(tokens: Tensor) -> list[NextToken]:
    """Return chosen tokens [num_rows] after waiting for them; negative ones are none."""
    return [NextToken(token if token >= 0 else None) for token in tokens.tolist()]
