#!/bin/sh
# Upload a file of requests with curl, run it as a batch, and download the file of its results.
set -eu
url=${HEADRACE_URL:-http://127.0.0.1:8000}
key="Authorization: Bearer ${HEADRACE_API_KEY:-none}"
field() { python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }

file=$(curl -sS --fail-with-body "$url/v1/files" -H "$key" \
  -F purpose=batch -F file=@"$(dirname "$0")/requests.jsonl" | field id)
batch=$(curl -sS --fail-with-body "$url/v1/batches" -H "$key" -H 'content-type: application/json' -d '{
  "input_file_id": "'"$file"'", "endpoint": "/v1/chat/completions", "completion_window": "24h"}' | field id)
echo "submitted $batch"
until [ "$(curl -sS --fail-with-body "$url/v1/batches/$batch" -H "$key" | field status)" = completed ]; do
  sleep 1
done
output=$(curl -sS --fail-with-body "$url/v1/batches/$batch" -H "$key" | field output_file_id)
curl -sS --fail-with-body "$url/v1/files/$output/content" -H "$key"
