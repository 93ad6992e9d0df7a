"""Tables in and out of the command line: rows become requests by a template, and results become a table."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import api.table_lines as table_lines_module
from api.table_fields import order_fields
from api.table_lines import LineForm, TableError, Template
from api.table_lines import lines_of as table_lines
from tests.fixtures.batches import held, run_to_the_end
from tests.fixtures.deployment import eventually
from tests.fixtures.shell import Shell
from worker.store.database.session import Store

ROWS = [{"text": "one", "id": "a", "label": 1}, {"text": 'two "x", {y}', "id": "b", "label": None}]


def lines_of(file: Path, prompt: str, **changes: Any) -> list[dict[str, Any]]:
    form = LineForm(Template(prompt), **({"body": {"model": "m"}} | changes))
    return [json.loads(line) for line in table_lines(file, form)]


def write_table(file: Path) -> None:
    if file.name.endswith(".parquet"):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.Table.from_pylist(ROWS), file)
        return
    written = io.StringIO(newline="")
    if ".csv" in file.name:
        table = csv.DictWriter(written, list(ROWS[0]))
        table.writeheader()
        table.writerows(ROWS)
    else:
        written.write("\n\n".join(map(json.dumps, ROWS)))
    content = written.getvalue().encode("utf-8-sig")
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz"])
def test_rows_become_lines_by_a_template(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name)
    first, second = lines_of(tmp_path / name, "{{Label}}: {text}")
    labels = ("1", "") if ".csv" in name else (1, None)
    assert (first["custom_id"], first["url"]) == ("row-0", "/v1/completions")
    assert first["body"] == {
        "model": "m", "prompt": "{Label}: one", "metadata": {"id": "a", "label": labels[0]}
    }  # fmt: skip
    assert second["body"]["prompt"] == '{Label}: two "x", {y}'
    assert second["body"]["metadata"]["label"] == labels[1]


def test_a_column_gives_the_ids_and_some_are_kept(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv")
    _, second = lines_of(
        tmp_path / "t.csv", "{label}{text}", custom_id="id", keep=("id",), is_chat=True, system="Be brief."
    )
    assert (second["custom_id"], second["url"]) == ("b", "/v1/chat/completions")
    assert second["body"] == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": 'two "x", {y}'},
        ],
        "metadata": {"id": "b"},
    }


@pytest.mark.parametrize("reorders", [False, True])
def test_a_star_stands_for_all_columns_that_are_used_nowhere_else(tmp_path: Path, reorders: bool) -> None:
    write_table(tmp_path / "t.jsonl")
    first, second = lines_of(tmp_path / "t.jsonl", "Judge {*}.", custom_id="id", reorder_fields=reorders)
    assert first["body"]["prompt"] == 'Judge {"text": "one", "label": 1}.'
    # An empty cell leaves nothing.
    assert second["body"]["prompt"] == 'Judge {"text": "two \\"x\\", {y}"}.'
    assert "metadata" not in first["body"], "every column is in the prompt"
    first, _ = lines_of(tmp_path / "t.jsonl", "{label}: {*}", keep=("id",), reorder_fields=reorders)
    assert (first["body"]["prompt"], first["body"]["metadata"]) == ('1: {"text": "one"}', {"id": "a"})


def test_fields_are_reordered_so_that_rows_begin_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"note": f"{i}", "shop": "ab"[i % 2], "town": "Lisbon and Porto"} for i in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def prompts() -> list[str]:
        found = lines_of(tmp_path / "t.jsonl", "{*}", reorder_fields=True)
        assert [one["custom_id"] for one in found] == [f"row-{i}" for i in range(4)]
        return [one["body"]["prompt"] for one in found]

    shops = "abab"
    assert prompts() == [
        f'{{"town": "Lisbon and Porto", "shop": "{shops[i]}", "note": "{i}"}}' for i in range(4)
    ]
    assert [json.loads(one) for one in prompts()] == rows
    monkeypatch.setattr(table_lines_module, "ORDERED_ROWS", 2)  # among two, no shop comes twice
    assert prompts()[3] == '{"town": "Lisbon and Porto", "note": "3", "shop": "b"}'


def test_a_column_that_follows_from_another_comes_before_it() -> None:
    kinds = ["shoe", "shoe", "hat"]
    rows = [{"product": f"{'long name ' * 5}{i % 3}", "kind": kinds[i % 3], "n": f"{i}"} for i in range(9)]
    assert order_fields(rows) == [["kind", "product", "n"]] * 9


def test_each_group_of_rows_has_its_own_order() -> None:
    rows = [
        *({"a": "the same for some", "b": f"{i}", "c": "x" * 9} for i in range(3)),
        *({"a": f"{i}", "b": "the same for others"} for i in range(3)),
    ]
    assert order_fields(rows) == [["c", "a", "b"]] * 3 + [["b", "a"]] * 3
    assert order_fields([]) == []
    assert order_fields([{}, {"a": "x"}]) == [[], ["a"]]


@pytest.mark.parametrize(
    ("name", "content", "prompt", "told"),
    [
        ("t.csv", b"text\none\n", "{label}", "row 1: there is no column 'label'. The columns are text."),
        ("t.csv", b"text\n", "{text}", "has no rows"),
        ("t.csv", b"text,id\none\n", "{text}", "line 2: the row and the header differ"),
        ("t.jsonl", b'{"text": 1}\n[1]\n', "{text}", "line 2: a line must be a JSON object"),
        ("t.jsonl", b'{"text": 1}\n{\n', "{text}", "line 2: this is not JSON"),
        ("t.jsonl", b"[" * 100_000, "{text}", "line 1: this is not JSON"),
        ("t.parquet", b"no parquet", "{text}", "this is not Parquet"),
        ("t.txt", b"one\n", "{text}", "takes a .parquet, .csv or .jsonl file"),
        ("t.csv", b"text\none\n", "{text", "the template"),
        ("t.csv", b"text\none\n", "{text.x[0]}", "there is no column 'text.x[0]'"),
        ("t.csv", b"text\none\n", "{text!r}", "only the name of a column"),
    ],
)
def test_a_wrong_table_is_told_in_a_sentence(
    tmp_path: Path, name: str, content: bytes, prompt: str, told: str
) -> None:
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError) as error:
        lines_of(tmp_path / name, prompt)
    assert told in str(error.value)


def test_fields_cannot_be_reordered_where_the_template_has_no_place_for_them(
    shell: Shell, tmp_path: Path
) -> None:
    write_table(tmp_path / "t.csv")
    key = shell.run("keys", "create").stdout.strip()
    refused = shell.run("submit", str(tmp_path / "t.csv"), "--prompt", "{text}", "--reorder-fields", key=key)
    assert refused.returncode == 1
    assert "reorder_fields needs {*}" in refused.stderr


def read_table(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return list(pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist())
    return list(csv.DictReader(io.StringIO(file.read_text(), newline="")))


def test_damaged_gzip_is_told_in_a_sentence(shell: Shell, tmp_path: Path) -> None:
    key = shell.run("keys", "create").stdout.strip()
    whole = gzip.compress(json.dumps({"text": "one " * 900}).encode())
    (tmp_path / "t.jsonl.gz").write_bytes(whole[:20] + b"\xff" * 20 + whole[40:])
    for options in (["--prompt", "{text}"], []):
        told = shell.run("submit", str(tmp_path / "t.jsonl.gz"), *options, key=key).stderr
        assert told.startswith(f"Cannot read {tmp_path}/t.jsonl.gz: "), told
        assert told.count("\n") == 1


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("name", "form"), [("t.jsonl", "csv"), ("t.parquet", "parquet")])
def test_a_table_is_submitted_and_comes_back_as_one(
    shell: Shell, store: Store, tmp_path: Path, name: str, form: str
) -> None:
    key = shell.run("keys", "create").stdout.strip()
    write_table(tmp_path / name)
    submitted = shell.run(
        "submit",
        str(tmp_path / name),
        "--prompt",
        "{text}",
        "--max-tokens",
        "5",
        "--set",
        "seed=1",
        key=key,
    )
    assert submitted.returncode == 0, submitted.stderr
    batch_id = submitted.stdout.strip()

    def is_read() -> bool:
        with store.transaction() as session:
            return session.scalar(text("SELECT num_unread FROM batches")) == 0

    eventually(is_read)
    run_to_the_end(store, held(store, 1))
    out = tmp_path / f"out.{form}"
    shown = shell.run(
        "results", batch_id, "--order", "input", "--with-requests", "--format", form, "-o", str(out), key=key
    )
    assert shown.returncode == 0, shown.stderr
    rows = read_table(out)
    assert [(row["custom_id"], row["prompt"], row["output"]) for row in rows] == [
        ("row-0", "one", "out one"),
        ("row-1", 'two "x", {y}', 'out two "x", {y}'),
    ]
    assert json.loads(rows[1]["metadata"]) == {"id": "b", "label": None}
    refused = shell.run("submit", str(tmp_path / name), "--prompt", "{txt}", key=key)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "there is no column 'txt'" in refused.stderr
