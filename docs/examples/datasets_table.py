"""Run a Hugging Face dataset as a batch, and load the results as one: `pip install datasets httpx`."""

import os
import tempfile
from pathlib import Path

import httpx
from datasets import Dataset

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("HEADRACE_API_KEY", "none")

reviews = Dataset.from_dict({"id": ["a", "b"], "text": ["Worth every cent", "It broke at once"]})
requests = [{"custom_id": row["id"], "prompt": f"Label: {row['text']}", "max_tokens": 8} for row in reviews]
with (
    httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client,
    tempfile.TemporaryDirectory() as directory,
):
    batch_id = (
        client.post("/v1/batch/async", json={"requests": requests}).raise_for_status().json()["batch_id"]
    )
    path = f"/v1/batch/{batch_id}/results"
    # Following ends with the batch. A second reading has them in the order of the dataset.
    client.get(path, params={"follow": 1}, timeout=None).raise_for_status()
    answer = client.get(path, params={"format": "parquet", "order": "input"}).raise_for_status()
    file = Path(directory) / "results.parquet"
    file.write_bytes(answer.content)
    results = Dataset.from_parquet(str(file), cache_dir=directory)
    labelled = reviews.add_column("output", list(results["output"])).add_column(
        "status", list(results["status"])
    )
    print(labelled.features)
    for row in labelled:
        print(row["id"], row["status"], repr(row["output"]))
