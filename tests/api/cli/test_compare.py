"""`headrace compare` asks models: what they make of a text, and which of two outputs is better."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from api.cli.comparing.judge import choose
from tests.fixtures.shell import Shell
from tests.fixtures.tool_endpoint import Endpoint, tool_endpoint

Answer = Callable[[dict[str, Any]], dict[str, Any]]
A = {"a": 0.5, "b": 0.3, "c": 0.2}
B = {"a": 0.45, "b": 0.2, "c": 0.35}


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Endpoint]]:
    """Serve an API in OpenAI's form that gives these answers."""
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(tool_endpoint(lambda body: (200, json.dumps(answer(body)))))


def reads_letters(probabilities: dict[str, float], first: int = 0) -> Answer:
    """Return a model to which each letter is a token, as likely wherever it stands."""
    ids = {letter: str(first + ord(letter)) for letter in probabilities}
    ranked = {ids[letter]: {"logprob": log(one)} for letter, one in probabilities.items()}

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "prompt_logprobs": [
                    None,
                    *({ids[letter]: ranked[ids[letter]], **ranked} for letter in prompt[1:]),
                ],
            }
            for index, prompt in enumerate(body["prompt"])
        ]
        return {"choices": choices[::-1]}

    return answer


def test_two_models_are_compared_on_a_text(
    shell: Shell, serve: Callable[[Answer], Endpoint], tmp_path: Path
) -> None:
    a, b = serve(reads_letters(A)), serve(reads_letters(B))
    text = tmp_path / "text"
    text.write_text("aabcabcbac" * 1700)  # in two requests
    command = ("compare", f"{a.url}#one", f"{b.url}/v1#two", "--text", str(text))
    done = shell.run(*command, "--json", "--other-api-key", "theirs", key="ours")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    # The first letter of each of nine pieces is not predicted.
    assert found["num_tokens"] == 17_000 - 9
    shares = {"a": 0.4, "b": 0.3, "c": 0.3}
    gain = sum(share * log(A[one] / B[one]) for one, share in shares.items())
    assert found["change"] == pytest.approx(exp(gain) - 1, abs=1e-3)
    assert found["change_interval"][0] < found["change"] < found["change_interval"][1]
    assert found["perplexity_a"] == pytest.approx(
        exp(-sum(share * log(A[one]) for one, share in shares.items())), rel=1e-3
    )
    assert found["divergence"] == pytest.approx(sum(A[one] * log(A[one] / B[one]) for one in A))
    assert found["agreement"] == 1
    assert [len(one.calls) for one in (a, b)] == [2, 2]
    headers, body = a.calls[0]
    assert (body["model"], headers["authorization"]) == ("one", "Bearer theirs")
    # B predicts "c" better: on a text of it alone, A is the one that is worse.
    text.write_text("c" * 50)
    worse = shell.run("compare", f"{b.url}#two", f"{a.url}#one", "--text", str(text))
    assert worse.returncode == 3
    assert "perplexity" in worse.stdout
    allowed = shell.run(
        "compare", f"{b.url}#two", f"{a.url}#one", "--text", str(text), "--allowed-loss", "0.95"
    )
    assert allowed.returncode == 0, "a rise by 75% is allowed"


def test_models_that_cannot_be_compared_are_named(
    shell: Shell, serve: Callable[[Answer], Endpoint], tmp_path: Path
) -> None:
    a, silent = serve(reads_letters(A)), serve(lambda _: {"choices": [{"index": 0, "text": ""}]})
    other = serve(reads_letters(A, first=1000))
    text = tmp_path / "text"
    text.write_text("abc")
    for second, said in (
        (f"{silent.url}#m", "does not report prompt_logprobs of m"),
        (f"{other.url}#m", "have other tokenizers"),
    ):
        done = shell.run("compare", f"{a.url}#m", second, "--text", str(text))
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    text.write_text("a")
    done = shell.run("compare", f"{a.url}#m", f"{a.url}#m", "--text", str(text))
    assert "no tokens" in done.stderr


def outputs(file: Path, texts: Sequence[str | None]) -> str:
    rows = [
        {
            "custom_id": f"row-{i}",
            "status": "failed" if text is None else "completed",
            "output": text or "",
            "request": {"prompt": f"question {i}"},
        }
        for i, text in enumerate(texts)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def says(better: Callable[[str, str], str]) -> Answer:
    """Return a judge that prefers by the two answers it reads."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        read = body["messages"][0]["content"]
        first, second = read.split("Answer A:\n")[1].split("\n\nReply")[0].split("\n\nAnswer B:\n")
        return {"choices": [{"message": {"content": json.dumps({"better": better(first, second)})}}]}

    return answer


def longer(first: str, second: str) -> str:
    return "tie" if len(first) == len(second) else "AB"[len(second) > len(first)]


def test_a_judge_prefers_in_both_orders(
    shell: Shell, serve: Callable[[Answer], Endpoint], tmp_path: Path
) -> None:
    endpoint = serve(says(longer))
    a = outputs(tmp_path / "a.jsonl", ["good"] * 25 + ["same", None, "left"])
    b = outputs(tmp_path / "b.jsonl", ["better"] * 25 + ["same", "is there", "righ"])
    judge = ("--judge", f"{endpoint.url}#large")
    found = json.loads(
        shell.run("compare", a, b, *judge, "--json", "--other-api-key", "k", key="ours").stdout
    )
    judged = found["judge"]
    assert (found["num_scored"], judged["num_scored"], judged["verdict"]) == (0, 28, "better")
    assert (judged["num_better"], judged["num_worse"]) == (26, 0)
    assert (judged["num_asked"], judged["num_unclear"]) == (26, 0)
    assert len(endpoint.calls) == 2 * 26
    assert {headers["authorization"] for headers, _ in endpoint.calls} == {"Bearer k"}
    assert any("question 7" in body["messages"][0]["content"] for _, body in endpoint.calls)
    worse = shell.run("compare", b, a, *judge)
    assert worse.returncode == 3
    assert "judged worse: B loses more than 0" in worse.stdout


def test_a_judge_that_favours_a_place_decides_nothing(
    shell: Shell, serve: Callable[[Answer], Endpoint], tmp_path: Path
) -> None:
    endpoint = serve(says(lambda *_: "A"))
    a, b = outputs(tmp_path / "a", ["one"] * 12), outputs(tmp_path / "b", ["another"] * 12)
    judge = ("--judge", f"{endpoint.url}#m", "--most-judged", "10")
    judged = shell.json("compare", a, b, *judge)["judge"]
    assert (judged["num_scored"], judged["num_unclear"]) == (10, 10)
    assert (judged["difference"], judged["verdict"]) == (0, "undecided")
    bare = tmp_path / "bare"
    bare.write_text('{"output": "x"}\n')
    done = shell.run("compare", str(bare), str(bare), *judge)
    assert (done.returncode, "A judge reads requests" in done.stderr) == (1, True)


def test_the_same_requests_are_judged_whatever_their_order() -> None:
    names = [f"row-{i}" for i in range(50)]
    assert choose(names, 10) == choose(names[::-1], 10)
    assert len(set(choose(names, 10))) == 10
    assert sorted(choose(names, 99)) == sorted(names)
