"""Label the rows of a pandas DataFrame, and join the results to it: `pip install pandas pyarrow httpx`."""

import io
import os

import httpx
import pandas as pd

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("HEADRACE_API_KEY", "none")

reviews = pd.DataFrame({"id": ["a", "b"], "text": ["Worth every cent", "It broke at once"], "stars": [5, 1]})
requests = [
    {"custom_id": row.id, "prompt": f"Label: {row.text}", "max_tokens": 8} for row in reviews.itertuples()
]
with httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
    batch_id = (
        client.post("/v1/batch/async", json={"requests": requests}).raise_for_status().json()["batch_id"]
    )
    path = f"/v1/batch/{batch_id}/results"
    # Following ends with the batch; the answer is the whole table.
    answer = client.get(path, params={"format": "parquet", "follow": 1}, timeout=None).raise_for_status()
results = pd.read_parquet(io.BytesIO(answer.content), columns=["custom_id", "status", "output"])
print(reviews.merge(results, left_on="id", right_on="custom_id").drop(columns="custom_id").to_string())
