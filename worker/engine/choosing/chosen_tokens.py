"""What a Step chose, which may still be on its way from the device."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.engine.sequences.sequence import Sequence


@dataclass(slots=True)
class ChosenTokens:
    """The next token of each sampled Sequence of a Step, on the host; None where logits are no numbers."""

    sequences: tuple[Sequence, ...]
    host: list[int | None]
    is_here: bool = field(default=True, init=False)

    def tokens(self) -> list[int | None]:
        """Return them in the order of `sequences`."""
        return self.host


@dataclass(slots=True)
class TokensOnDevice:
    """The same on a device: the Step after it may read them there before the host has seen them."""

    sequences: tuple[Sequence, ...]
    device: Tensor  # [num_sequences], negative where the logits are no numbers
    is_here: bool = field(default=False, init=False)
    _host: Tensor = field(init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.device.is_cuda:  # Triton interprets, and nothing runs beside it
            self._host = self.device
            return
        self._host = torch.empty(self.device.shape, dtype=self.device.dtype, pin_memory=True)
        self._host.copy_(self.device, non_blocking=True)
        make_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
        self._arrived = make_event()
        self._arrived.record()

    def tokens(self) -> list[int | None]:
        """Wait for them and return them in the order of `sequences`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [token if token >= 0 else None for token in self._host.tolist()]


Chosen = ChosenTokens | TokensOnDevice
