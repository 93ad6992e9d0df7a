"""Embed pairs of prompts as the semantic cache does, and print how similar those of each pair are.

    python -m worker.tuning.similarities REQUESTS.jsonl

The file holds the first prompt of the first pair, the second one, and so on (`worker.tuning.requests`). The
model is HEADRACE_EMBEDDING_MODEL or, without that, HEADRACE_MODEL. The last line is a JSON list: the cosine
similarity of each pair, or null if one of its prompts cannot be embedded.
"""

import json
import sys
from collections.abc import Sequence
from operator import mul
from pathlib import Path

from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import EngineError
from worker.settings import NO_SERVICES, Settings, read_settings
from worker.store.requests.requests import ShardRequest
from worker.tasks.embedding import embed
from worker.tasks.engine_config import embedding_engine_config, engine_config
from worker.tuning.requests import TunedRequest, read_requests


def similarities(config: Settings, prompts: Sequence[TunedRequest]) -> list[float | None]:
    """Return the similarity of the first two prompts, of the next two, and so on; raises EngineError."""
    model = config.embedding_model
    of_engine = engine_config(config) if model is None else embedding_engine_config(config, model)
    engine = EngineThread(lambda: Engine(of_engine))
    engine.start()
    try:
        vectors = embed(engine, [_to_request(number, one) for number, one in enumerate(prompts)])
    finally:
        engine.stop()
    return [
        sum(map(mul, one, other)) if one and other else None  # they have length one
        for one, other in zip(vectors[::2], vectors[1::2], strict=True)
    ]


def _to_request(number: int, given: TunedRequest) -> ShardRequest:
    return ShardRequest(
        id=number,
        position=number,
        prompts=(given.prompt,),
        add_special_tokens=given.add_special_tokens,
        is_streamed=False,
        max_tokens=1,
        params=given.params,
    )


def main(file: str) -> int:
    """Run the command line; return its exit status."""
    try:
        found = similarities(read_settings(**NO_SERVICES), read_requests(Path(file)))
    except EngineError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
