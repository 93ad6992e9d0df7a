r"""Run lm-eval's tasks as batches: `pip install "lm_eval[api]"`, then use this in place of `lm_eval`.

python docs/examples/lm_eval_batch.py run --model headrace-batch --tasks TASK \
    --model_args model=demo,max_length=1024
"""

import copy
import json
import os
import time
from typing import Any

import requests
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
COMPLETIONS = "/v1/completions"


@register_model("headrace-batch")
class BatchCompletions(LocalCompletionsAPI):
    """What lm-eval would ask one by one becomes the lines of a file. Of perplexities, each text is one."""

    def __init__(self, **options: Any) -> None:
        # Only with several at a time it collects all requests before it asks the first.
        super().__init__(base_url=f"{URL}{COMPLETIONS}", **options | {"num_concurrent": 2, "batch_size": 1})

    async def get_batched_requests(
        self,
        requests: list[Any],
        cache_keys: list[Any],  # noqa: ARG002
        *,
        generate: bool = True,
        ctxlens: list[int] | None = None,
        **options: Any,
    ) -> list[Any]:
        """Return the answer to each request: a list of its only text, or of its only log-likelihood."""
        bodies = [
            self._create_payload(
                self.create_message([request]),
                generate=generate,
                gen_kwargs=copy.deepcopy(options.get("gen_kwargs")),
                seed=self._seed,
                eos=self.eos_string,
            )
            for request in requests
        ]
        answers = self._run(bodies)
        if generate:
            return [self.parse_generations(answer) for answer in answers]
        return [
            self.parse_logprobs(answer, tokens=[request], ctxlens=[ctxlen])
            for answer, request, ctxlen in zip(answers, requests, ctxlens or [], strict=True)
        ]

    def _run(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run bodies as a batch; return their answers in the same order."""
        lines = [
            {"custom_id": str(i), "method": "POST", "url": COMPLETIONS, "body": body}
            for i, body in enumerate(bodies)
        ]
        content = "\n".join(map(json.dumps, lines))
        file = self._call(
            "POST", "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}
        )
        wanted = {"input_file_id": file.json()["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        batch = self._call("POST", "/v1/batches", json=wanted).json()
        while batch["status"] in {"validating", "in_progress", "finalizing"}:
            time.sleep(0.5)
            batch = self._call("GET", f"/v1/batches/{batch['id']}").json()
        if batch["status"] != "completed" or batch["request_counts"]["failed"]:
            raise RuntimeError(f"the batch is {batch['status']}: {batch['request_counts']}")
        output = self._call("GET", f"/v1/files/{batch['output_file_id']}/content").text
        found = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, output.splitlines())}
        return [found[str(i)] for i in range(len(bodies))]

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        answer = requests.request(
            method, f"{URL}{path}", headers=self.header, timeout=self.timeout, **options
        )
        answer.raise_for_status()
        return answer


if __name__ == "__main__":
    cli_evaluate()
