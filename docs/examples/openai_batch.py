"""Run a file of requests as a batch with the `openai` package: `pip install openai`."""

import os
import time
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))

lines = client.files.create(file=Path(__file__).with_name("requests.jsonl"), purpose="batch")
batch = client.batches.create(
    input_file_id=lines.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    metadata={"run": "example"},
)
print("submitted", batch.id)
while batch.status in {"validating", "in_progress", "finalizing"}:
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
print(batch.status, batch.request_counts)
if batch.output_file_id is not None:
    print(client.files.content(batch.output_file_id).text)
