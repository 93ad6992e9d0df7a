"""Chooses, by the endpoint of a line, what reads its body and what writes its answer."""

from typing import Any

from api.inputs.checkpoint import Checkpoint
from api.openai import answers as completion_answers
from api.openai.alike import AlikeBodies
from api.openai.bodies import Endpoint
from api.responses import answers as response_answers
from api.responses import requests as responses
from worker.store.requests.requests import NewRequest
from worker.store.requests.result_views import ResultView


class Bodies:
    """Reads the bodies of lines."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._completions = AlikeBodies(checkpoint)

    def from_line(
        self, endpoint: Endpoint, body: Any, *, custom_id: str | None, path: str = "body"
    ) -> NewRequest:
        """Return the request of one line of a batch; `api.inputs.prompts.fit` counts its tokens.

        Raises:
            InvalidInputError: a field is wrong; `param` is its name after `path`.
            ModelNotFoundError: another model is served.

        """
        if endpoint is Endpoint.RESPONSES:
            return responses.from_line(self._checkpoint, body, custom_id=custom_id, path=path)
        return self._completions.from_line(endpoint, body, custom_id=custom_id, path=path)


def to_body(
    checkpoint: Checkpoint, endpoint: Endpoint, result: ResultView, *, batch_id: str
) -> dict[str, Any]:
    """Return the answer to a line whose result is complete. Its id is the same every time."""
    if endpoint is Endpoint.RESPONSES:
        return response_answers.to_response(checkpoint, result, batch_id=batch_id)
    return completion_answers.to_answer(checkpoint, endpoint, result, batch_id=batch_id)
