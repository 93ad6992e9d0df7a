"""Turns a line of a file into the request to store."""

from dataclasses import replace

from api.errors import ApiError
from api.files.endpoints import Bodies
from api.files.lines import Line, WrongLineError
from api.inputs.checkpoint import Checkpoint
from api.inputs.tool_loops import ToolLimits
from api.openai.bodies import Endpoint
from worker.store.requests.requests import NewRequest
from worker.values.sampling import SamplingParams


class Translator:
    """Turns lines into requests. Tokens are not counted here: docs/decisions/0012."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_prompt_bytes: int,
        loops: ToolLimits = ToolLimits(),  # noqa: B008
    ) -> None:
        self._checkpoint = checkpoint
        self._bodies = Bodies(checkpoint)
        self._max_prompt_bytes = max_prompt_bytes
        self._loops = loops

    def __call__(self, line: Line) -> NewRequest:
        """Return the request of a line; raises WrongLineError if no engine would accept it."""
        try:
            endpoint = Endpoint(line.url)
        except ValueError:
            known = ", ".join(Endpoint)
            raise WrongLineError("invalid_url", f"url: must be one of {known}", "url") from None
        try:
            request = self._bodies.from_line(endpoint, line.body, custom_id=line.custom_id)
            self._loops.check(request.tool_loop, "body")
        except ApiError as error:
            raise WrongLineError(error.code or "invalid_body", error.message, error.param) from error
        for prompt in request.prompts:
            if isinstance(prompt, str) and len(prompt.encode()) > self._max_prompt_bytes:
                message = f"body: a prompt is longer than the limit of {self._max_prompt_bytes} bytes"
                raise WrongLineError("prompt_too_long", message, "body")
        checkpoint = self._checkpoint.serving(request.model)
        most = checkpoint.max_model_len - 1
        if request.max_tokens <= most:
            return request
        if isinstance(request.params, SamplingParams) and request.params.must_fit:
            message = (
                f"body.max_tokens: {request.max_tokens} tokens and a prompt do not fit the context of model"
                f" {checkpoint.name}, which is {most + 1} tokens"
            )
            raise WrongLineError("context_length_exceeded", message, "body.max_tokens")
        return replace(request, max_tokens=most)
