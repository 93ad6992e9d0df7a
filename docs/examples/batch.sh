#!/bin/sh
# Submit a batch with curl, read its results as they come, then look at the ended batch.
set -eu
url=${HEADRACE_URL:-http://127.0.0.1:8000}
key="Authorization: Bearer ${HEADRACE_API_KEY:-none}"
field() { python3 -c "import json, sys; print(json.load(sys.stdin)['$1'])"; }

id=$(curl -sS --fail-with-body "$url/v1/batch/async" -H "$key" -H 'content-type: application/json' -d '{
  "prompts": ["def read_lines(path):\n", "The json module provides"],
  "max_tokens": 32, "temperature": 0.7}' | field batch_id)
echo "submitted $id"
curl -sSN --fail-with-body "$url/v1/batch/$id/results?follow=1" -H "$key"
curl -sS --fail-with-body "$url/v1/batch/$id" -H "$key"
