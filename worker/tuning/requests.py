"""Define the requests of a workload, and the file that carries them to a trial's process. Knows no engine."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from worker.values.requests import Prompt
from worker.values.sampling import SamplingParams

FIRST_SEED = 1


@dataclass(frozen=True, slots=True)
class TunedRequest:
    """One generation of a workload. Its outcome depends on the settings alone: a drawn one has a seed."""

    prompt: Prompt
    params: SamplingParams
    add_special_tokens: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` reads back."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        special = self.add_special_tokens
        return {"prompt": prompt, "params": self.params.to_json(), "add_special_tokens": special}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Rebuild the request that `to_json` wrote."""
        prompt = value["prompt"]
        return cls(
            prompt if isinstance(prompt, str) else tuple(prompt),
            SamplingParams.from_json(value["params"]),
            value["add_special_tokens"],
        )


def write_requests(file: Path, requests: Iterable[TunedRequest]) -> None:
    """Write one JSON line for each request; give those that are drawn without a seed their number as seed."""
    with file.open("w", encoding="utf-8") as lines:
        for number, request in enumerate(requests, FIRST_SEED):
            params = request.params
            is_drawn = params.seed is None and not params.is_greedy
            fixed = replace(request, params=replace(params, seed=number)) if is_drawn else request
            lines.write(json.dumps(fixed.to_json()) + "\n")


def read_requests(file: Path) -> list[TunedRequest]:
    """Return the requests of a file that `write_requests` wrote."""
    return [TunedRequest.from_json(json.loads(line)) for line in file.read_text("utf-8").splitlines()]
