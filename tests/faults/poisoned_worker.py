"""A gpu worker that a prompt with the word `poison` kills at once, for the fault tests."""

import os

from worker.engine.engine import Engine
from worker.engine.requests.generation import EngineRequest, GenerationRequest
from worker.tasks.run_shard import app, run_shard

__all__ = ["app", "run_shard"]

_add = Engine.add


def _die(engine: Engine, request: EngineRequest) -> None:
    if isinstance(request, GenerationRequest) and not isinstance(request.prompt, str):
        text = engine.tokenizer.decode(request.prompt)
        if "poison" in text:
            os._exit(9)
    _add(engine, request)


Engine.add = _die  # type: ignore[method-assign]
