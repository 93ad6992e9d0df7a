"""Have the model call a function with arguments that fit a schema, then give it the result."""

import json
import os

from openai import OpenAI

URL = os.environ.get("HEADRACE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("HEADRACE_API_KEY", "none"))

model = client.models.list().data[0].id
label = {
    "name": "label",
    "description": "Store the label of a text.",
    "parameters": {
        "type": "object",
        "properties": {
            "sentiment": {"type": "string", "enum": ["good", "bad", "neutral"]},
            "is_question": {"type": "boolean"},
        },
        "required": ["sentiment", "is_question"],
    },
}
tools = [{"type": "function", "function": label}]
messages = [{"role": "user", "content": "Label this: The queue is fast."}]

answer = client.chat.completions.create(
    model=model,
    messages=messages,
    tools=tools,
    tool_choice={"type": "function", "function": {"name": "label"}},
)
(call,) = answer.choices[0].message.tool_calls
arguments = json.loads(call.function.arguments)
print(call.function.name, arguments["sentiment"], arguments["is_question"])

messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "stored"}]
after = client.chat.completions.create(model=model, messages=messages, tools=tools, max_tokens=16)
print(after.choices[0].finish_reason)
