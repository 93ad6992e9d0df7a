"""Submit requests that differ with httpx, and print each result as soon as it is stored."""

import json
import os
from pathlib import Path
from uuid import uuid4

import httpx

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("HEADRACE_API_KEY", "none")
REQUESTS = Path(__file__).with_name("prompts.jsonl")
WAIT_SECONDS = 20

with httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
    body = {"requests": [json.loads(line) for line in REQUESTS.read_text().splitlines()]}
    # With the same key, sending this again creates no second batch.
    answer = client.post("/v1/batch/async", json=body, headers={"Idempotency-Key": str(uuid4())})
    if answer.is_error:
        raise SystemExit(answer.json()["error"]["message"])
    batch_id = answer.json()["batch_id"]
    print("submitted", batch_id)
    after, has_ended = 0, False
    while not has_ended:
        answer = client.get(f"/v1/batch/{batch_id}/results", params={"after": after, "wait": WAIT_SECONDS})
        page = answer.raise_for_status().json()
        for result in page["data"]:
            print(result["custom_id"], result["status"], repr(result["output"] or result["error"]))
        after = page["next"]
        has_ended = page["status"] not in {"pending", "processing", "cancelling"} and not page["has_more"]
