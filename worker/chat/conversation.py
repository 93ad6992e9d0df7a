"""Write a conversation as a prompt, also for a chat template that knows no tools."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worker.chat.template import ChatTemplate, ChatTemplateError
from worker.parsing.parser import call_id
from worker.values.parsing import Family

Turn = Mapping[str, Any]  # a message as chat templates take it
Render = Callable[..., str]  # `ChatTemplate.render`, perhaps with some options
REASONING = ("reasoning_content", "thinking")  # names in templates: of most, of gpt-oss
INSTRUCTION = """\
# Tools

You may call functions. Each line between the tags is one of them, as JSON:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as JSON between tags:
<tool_call>
{{"name": "<name>", "arguments": {{<arguments>}}}}
</tool_call>"""


def to_prompt(
    template: ChatTemplate, family: Family, turns: Sequence[Turn], tools: Sequence[Turn], render: Render
) -> str:
    """Return the prompt. A template that knows no tools gets them, and their calls, as plain text.

    Raises:
        ChatTemplateError: the model has no chat template, or it refuses these turns.

    """
    if template.knows_tools:
        return render(_with_ids(family, turns), tools=tools)
    plain = _in_words(turns)
    if not tools:
        return render(plain)
    instruction = INSTRUCTION.format(
        tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    )
    try:
        return render(_instructed(plain, instruction, "system"))
    except ChatTemplateError:  # some know no system messages
        return render(_instructed(plain, instruction, "user"))


def _instructed(turns: Sequence[Turn], instruction: str, role: str) -> list[Turn]:
    """Return the turns with the instruction at the end of a first turn of this role."""
    if turns and turns[0]["role"] == role:
        first = {**turns[0], "content": f"{turns[0]['content']}\n\n{instruction}"}
        return [first, *turns[1:]]
    return [{"role": role, "content": instruction}, *turns]


def _in_words(turns: Sequence[Turn]) -> list[Turn]:
    """Return turns without tool calls: an assistant's calls and their results become text between tags."""
    found: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool":
            text = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if found and found[-1].get("is_result"):
                text = f"{found.pop()['content']}\n{text}"
            found.append({"role": "user", "content": text, "is_result": True})
        elif turn.get("tool_calls"):
            calls = [
                f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
                for call in turn["tool_calls"]
            ]
            content = "\n".join([turn["content"], *calls] if turn["content"] else calls)
            found.append({"role": turn["role"], "content": content})
        else:
            found.append(turn)
    kept = ("role", "content", *REASONING)
    return [{name: turn[name] for name in kept if name in turn} for turn in found]


def _with_ids(family: Family, turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return turns whose calls have ids that the template takes: Mistral's take nine letters or digits."""
    if family is not Family.MISTRAL:
        return turns

    def short(given: str) -> str:
        return given if len(given) == 9 and given.isalnum() else call_id(given, is_short=True)

    found = []
    for turn in turns:
        changes: dict[str, Any] = {}
        if turn.get("tool_calls"):
            changes["tool_calls"] = [call | {"id": short(call["id"])} for call in turn["tool_calls"]]
        if turn.get("tool_call_id"):
            changes["tool_call_id"] = short(turn["tool_call_id"])
        found.append({**turn, **changes})
    return found
