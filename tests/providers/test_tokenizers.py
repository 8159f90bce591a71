"""Exact counters, offline: equal to an independent implementation, with clear errors."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lamina import exact_counter
from lamina.errors import CounterError
from lamina.providers.tokenizers import VOCABULARIES

TEXTS = [
    "",
    "hello world",
    "你好，世界。林默是28岁侦探。",
    "def f(x):\n    return x ** 2\n",
    '{"a": [1, 2.5, null]}',
    "🙂👩‍🚀",
]


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real Hugging Face file: a byte-level BPE trained here on this project's own sources."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    root = Path(__file__).parents[2]
    files = [root / "bench" / "texts" / name for name in ("english.txt", "chinese.txt", "code.txt")]
    tokenizer.train([str(path) for path in files], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_any_tokenizer_json_counts_as_hugging_face_does(tokenizer_json: Path) -> None:
    count, oracle = exact_counter(str(tokenizer_json)), tokenizers.Tokenizer.from_file(str(tokenizer_json))
    root = Path(__file__).parents[2] / "bench" / "texts"
    for text in [*TEXTS, *(path.read_text(encoding="utf-8") for path in sorted(root.glob("*.txt")))]:
        assert count(text) == len(oracle.encode(text, add_special_tokens=False).ids)


@given(st.text(max_size=60))
def test_any_text_can_be_counted_and_longer_is_never_fewer_by_much(text: str) -> None:
    count = exact_counter("o200k")
    assert 0 <= count(text) <= len(text.encode())
    assert count(text + "。") <= count(text) + 3


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("o200k", "hello world", 2),
        ("cl100k", "hello world", 2),
        ("cl100k", "tiktoken is great!", 6),
        ("o200k", "你好，世界", 3),
        ("cl100k", "你好，世界", 6),
    ],
)
def test_known_counts(name: str, text: str, tokens: int) -> None:
    assert exact_counter(name)(text) == tokens


@pytest.mark.parametrize("name", sorted(VOCABULARIES))
def test_every_vocabulary_is_inside_and_counts(name: str) -> None:
    assert [exact_counter(name)(text) > 0 for text in TEXTS] == [bool(text) for text in TEXTS]


def test_a_control_token_in_the_text_is_text() -> None:
    assert exact_counter("o200k")("<|endoftext|>") > 1


def test_tools_are_counted() -> None:
    count: Any = exact_counter("o200k")
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "find", "description": "Find a file.", "parameters": {}},
    }
    bigger = {"properties": {"path": {"type": "string", "description": "where to look"}}}
    assert count.tools([tool]) > 0
    assert count.tools([{**tool, "function": {**tool["function"], "parameters": bigger}}]) > count.tools([tool])


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CounterError, match=r"no tokenizer file 'nowhere\.json'"):
        exact_counter("nowhere.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(CounterError, match=r"not a tokenizer\.json"):
        exact_counter(str(broken))
