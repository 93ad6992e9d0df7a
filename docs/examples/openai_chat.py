"""Chat with the served model, with and without streaming, through the `openai` package."""

import os

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))

model = client.models.list().data[0].id
messages = [{"role": "user", "content": "def read_lines(path):"}]

answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32)
print(answer.choices[0].message.content)

for chunk in client.chat.completions.create(model=model, messages=messages, max_tokens=32, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
