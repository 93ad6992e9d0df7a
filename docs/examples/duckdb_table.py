"""Submit what a query of DuckDB finds, and query the results as Parquet: `pip install duckdb httpx`."""

import os
import tempfile
from pathlib import Path

import duckdb
import httpx

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("HEADRACE_API_KEY", "none")

database = duckdb.connect()
database.sql(
    "CREATE TABLE reviews AS FROM (VALUES (1, 'Worth every cent'), (2, 'It broke at once')) AS r(id, text)"
)
rows = database.sql("SELECT id, 'Label: ' || text FROM reviews ORDER BY id").fetchall()
requests = [{"custom_id": str(row_id), "prompt": prompt, "max_tokens": 8} for row_id, prompt in rows]
with (
    httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client,
    tempfile.TemporaryDirectory() as directory,
):
    batch_id = (
        client.post("/v1/batch/async", json={"requests": requests}).raise_for_status().json()["batch_id"]
    )
    results = Path(directory) / "results.parquet"
    # Following ends with the batch. The table is written as it comes, so it may be larger than the memory.
    params = {"format": "parquet", "follow": 1, "include": "request"}
    with client.stream("GET", f"/v1/batch/{batch_id}/results", params=params, timeout=None) as answer:
        answer.raise_for_status()
        with results.open("wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)
    database.read_parquet(str(results)).create("results")
database.sql(
    "SELECT r.*, status, output FROM results JOIN reviews r ON r.id = custom_id::INT ORDER BY r.id"
).show()
print(
    database.sql("SELECT status, count(*), sum(output_tokens)::INT FROM results GROUP BY status").fetchall()
)
