"""Builds the demo model's corpus from this Python's standard library, split by hash, and its byte-level BPE.

It knows files and strings only and must not import torch.
"""

import hashlib
import importlib
import random
import re
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

from snippets import module_prose, of_module
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|eos|>"
HELDOUT_CODE_BYTES = 125_000
HELDOUT_TOPIC_BYTES = 20_000
TEST_SLICES = 6

SKIPPED_PARTS = {"site-packages", "dist-packages", "__pycache__", "encodings", "turtledemo", "pydoc_data"}
SKIPPED_NAMES = re.compile(r"_sysconfigdata|bad_?coding|badsyntax|nullbyte|pep3131|_pyrepl")

# A newline and the indentation after it are one piece, so a prompt may end on either side of a line break.
# A word includes one mark before it ("_path", ".join", " the"); a piece has at most three digits.
PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\n[\n ]*|[ \t]+(?=\S)|\s+"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Training documents by kind; `tests` are cut into slices, and each epoch reads a different one."""

    files: list[str]
    snippets: list[str]
    prose: list[str]
    tests: list[list[str]]
    heldout: str
    heldout_names: list[str]

    def epoch(self, number: int, *, refined: bool) -> list[str]:
        """Return the documents of one epoch, shuffled; the refined mix leans on snippets and prose."""
        rng = random.Random(number)  # noqa: S311
        if refined:
            half = [text for text in self.files if rng.random() < 0.5]
            documents = self.snippets + self.prose + half
        else:
            half = [text for text in self.snippets if rng.random() < 0.5]
            documents = self.files + self.prose + half + self.tests[number % len(self.tests)]
        rng.shuffle(documents)
        return documents


def _rank(name: str) -> str:
    """Return the hash by which names are ordered for every choice here; it is the same on every machine."""
    return hashlib.sha256(f"headrace-demo:{name}".encode()).hexdigest()


def _is_test(name: str) -> bool:
    return any(part in {"test", "tests", "idle_test"} for part in name.split("/"))


def read_stdlib() -> dict[str, str]:
    """Return the text of every useful standard library module, by its path inside the library."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(name.split("/")) or SKIPPED_NAMES.search(name) or name.startswith("config-"):
            continue
        try:
            text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        packed = len(zlib.compress(text.encode()))
        is_table = packed < 0.12 * len(text) or packed > 0.6 * len(text)
        if 300 < len(text) < 400_000 and not is_table and str(root) not in text:
            texts[name] = text.rstrip() + "\n"
    return texts


def read_topics() -> dict[str, str]:
    """Return the language reference that `pydoc` carries, by topic."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return {name: text.strip() + "\n" for name, text in topics.items() if len(text) > 300}


def _shingles(text: str) -> set[int]:
    """Return hashes of every run of eight words; two texts that share many are near-duplicates."""
    words = re.findall(r"\w+", text)
    return {zlib.crc32(" ".join(words[i : i + 8]).encode()) for i in range(len(words) - 7)}


def choose_heldout(texts: dict[str, str], topics: dict[str, str]) -> list[str]:
    """Choose by hash the modules and topics that are never trained on."""
    chosen = []
    sizes = {"code": 0, "topic": 0}
    for name in sorted(texts, key=_rank):
        if not _is_test(name) and 4_000 < len(texts[name]) < 40_000 and sizes["code"] < HELDOUT_CODE_BYTES:
            chosen.append(name)
            sizes["code"] += len(texts[name])
    for name in sorted(topics, key=_rank):
        if 1_000 < len(topics[name]) < 8_000 and sizes["topic"] < HELDOUT_TOPIC_BYTES:
            chosen.append(f"topic:{name}")
            sizes["topic"] += len(topics[name])
    return chosen


def build() -> Corpus:
    """Read, split and clean everything; the same Python gives the same corpus."""
    texts, topics = read_stdlib(), read_topics()
    heldout_names = choose_heldout(texts, topics)
    heldout_texts = [
        topics[name.removeprefix("topic:")] if name.startswith("topic:") else texts[name]
        for name in heldout_names
    ]
    heldout_shingles = [_shingles(text) for text in heldout_texts]
    every = set().union(*heldout_shingles)
    stems = {Path(name).stem for name in heldout_names}

    def is_near(text: str) -> bool:
        own = _shingles(text)
        shared = own & every
        return bool(shared) and (
            len(shared) > 0.04 * len(own) or any(len(own & s) > 0.04 * len(s) for s in heldout_shingles)
        )

    files, tests, prose = [], [], []
    snippets: dict[str, None] = {}
    for name in sorted(texts, key=_rank):
        text = texts[name]
        if name in heldout_names or Path(name).stem.removeprefix("test_") in stems or is_near(text):
            continue
        if _is_test(name):
            tests.append(text)
            continue
        files.append(text)
        snippets |= dict.fromkeys(s for s in of_module(text, lambda part: _rank(part) < "8") if len(s) > 80)
        if doc := module_prose(text):
            prose.append(doc)
    topic_texts = [t for n, t in topics.items() if f"topic:{n}" not in heldout_names and not is_near(t)]
    clean = [s for s in snippets if len(_shingles(s) & every) <= 0.1 * len(_shingles(s))]
    return Corpus(
        files=files,
        snippets=clean,
        prose=prose + topic_texts,
        tests=[tests[i::TEST_SLICES] for i in range(TEST_SLICES)],
        heldout="\n\n".join(heldout_texts),
        heldout_names=heldout_names,
    )


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train the byte-level BPE; its post-processor puts BOS before every prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.files + corpus.prose + corpus.tests[0], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return int(found)
