"""Embedders: the real embedded one, a function, and an endpoint served by a real HTTP server on this machine."""

import json
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from lamina.errors import EmbedderError
from lamina.ports import Embedder
from lamina.providers.embeddings import (
    EndpointEmbedder,
    FunctionEmbedder,
    SentenceEncoder,
    default_embedder,
    split_text,
)

KEY = "sk-very-secret-1234"


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


def test_the_default_is_loaded_late_and_named() -> None:
    embedder: Embedder = default_embedder()
    assert (embedder.name, embedder.dimension) == ("use-multilingual-3", 512)


def test_one_meaning_in_two_languages_lies_together(encoder: SentenceEncoder) -> None:
    cat, chinese_cat, market = encoder.embed(["I like cats", "我喜欢猫", "the stock market fell"])
    assert cat @ chinese_cat > 0.7
    assert cat @ market < 0.3


def test_vectors_are_unit_in_order_and_repeatable(encoder: SentenceEncoder) -> None:
    texts = ["one", "二", "", "three words here", "x. " * 2000]
    vectors = encoder.embed(texts)
    assert vectors.shape == (5, 512)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors, np.concatenate([encoder.embed([text]) for text in texts]), atol=1e-5)
    assert encoder.embed([]).shape == (0, 512)


def test_long_text_is_embedded_by_pieces_and_capped() -> None:
    assert split_text("short") == ["short"]
    pieces = split_text("这是一个很长的句子。" * 1000)
    assert len(pieces) == 8
    assert all(len(piece) <= 310 for piece in pieces)
    assert len(split_text("a" * 100_000)) == 8
    assert split_text(" " * 1000)


def test_text_that_is_no_unicode_does_not_fail(encoder: SentenceEncoder) -> None:
    assert np.isfinite(encoder.embed(["half \ud800 pair"])).all()


def test_many_threads_get_what_one_gets(encoder: SentenceEncoder) -> None:
    fresh = SentenceEncoder()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: fresh.embed([f"text number {n % 3}"])[0], range(12)))
    expected = encoder.embed([f"text number {n}" for n in range(3)])
    assert all(np.allclose(vector, expected[n % 3], atol=1e-5) for n, vector in enumerate(found))


def test_any_function_is_an_embedder() -> None:
    embedder: Embedder = FunctionEmbedder(lambda texts: [[len(t), 1.0] for t in texts], name="lengths", dimension=2)
    assert np.allclose(np.asarray(embedder.embed(["", "abc"])), [[0, 1], [3 / 10**0.5, 1 / 10**0.5]])
    assert np.asarray(embedder.embed([])).shape == (0, 2)


@pytest.mark.parametrize("bad", [[[1.0]], [[1.0, 2.0], [1.0, 2.0]], [], [[float("nan"), 1.0]], [["a", "b"]], [5]])
def test_what_is_no_vector_is_refused(bad: Any) -> None:
    with pytest.raises(EmbedderError, match="toy"):
        FunctionEmbedder(lambda _texts: bad, name="toy", dimension=2).embed(["text"])


@pytest.mark.parametrize("wrong", [{"name": " "}, {"dimension": 0}, {"dimension": True}, {"dimension": 2.5}])
def test_a_name_and_a_dimension_are_needed(wrong: dict[str, Any]) -> None:
    def none(_texts: Sequence[str]) -> list[list[float]]:
        return []

    options: dict[str, Any] = {"name": "toy", "dimension": 2, **wrong}
    with pytest.raises(EmbedderError):
        FunctionEmbedder(none, **options)


@contextmanager
def serving(answer: Any, status: int = 200, hold: threading.Event | None = None) -> Generator[tuple[str, list[Any]]]:
    """An endpoint; `answer` is its body, or a function of the request's body. `hold` keeps the answer back."""
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, dict(self.headers), body))
            if hold is not None:
                hold.wait(30)
            said = answer(body) if callable(answer) else answer
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name that the base class has
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        if hold is not None:
            hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


def vectors_of(body: dict[str, Any]) -> dict[str, Any]:
    rows = [{"index": n, "embedding": [float(len(text)), 1.0]} for n, text in enumerate(body["input"])]
    return {"data": rows[::-1]}


def test_an_endpoint_is_asked_in_batches_and_its_order_is_restored() -> None:
    with serving(vectors_of) as (url, seen):
        embedder: Embedder = EndpointEmbedder(url + "/", model="m", dimension=2, key=KEY)
        vectors = np.asarray(embedder.embed(["x" * n for n in range(100)]))
    assert np.allclose(vectors[:, 0] / vectors[:, 1], range(100))
    assert [len(body["input"]) for _, _, body in seen] == [64, 36]
    assert all(path == "/v1/embeddings" and headers["Authorization"] == f"Bearer {KEY}" for path, headers, _ in seen)


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        ({"error": f"bad key {KEY}"}, 401, "check the key"),
        ({"error": "no such model"}, 404, "no such model"),
        ({"oops": 1}, 200, "did not answer with embeddings"),
        (b"<html>", 200, "did not answer with embeddings"),
        ({"data": [{"index": 0, "embedding": [1.0]}]}, 200, "dimension 2"),
        ({}, 302, "302"),
    ],
)
def test_what_goes_wrong_is_said_and_the_key_is_not(answer: Any, status: int, says: str) -> None:
    with serving(answer, status) as (url, seen):
        embedder = EndpointEmbedder(url, model="m", dimension=2, key=KEY)
        with pytest.raises(EmbedderError) as raised:
            embedder.embed(["text"])
    assert says in str(raised.value)
    assert KEY not in str(raised.value) + repr(embedder)
    assert len(seen) == 1, "a redirect, which could carry the key elsewhere, is not followed"


def test_a_silent_endpoint_ends_at_its_deadline() -> None:
    with serving(vectors_of, hold=threading.Event()) as (url, _), pytest.raises(EmbedderError, match="deadline"):
        EndpointEmbedder(url, model="m", dimension=2, deadline=0.1).embed(["text"])


def test_nobody_there_is_said() -> None:
    with serving({}) as (url, _):
        pass
    with pytest.raises(EmbedderError, match="cannot be reached"):
        EndpointEmbedder(url, model="m", dimension=2, deadline=2).embed(["text"])


@pytest.mark.parametrize(
    "wrong", [{"base_url": "ftp://x"}, {"base_url": "file:///etc"}, {"key": "a\nb"}, {"deadline": 0}]
)
def test_an_endpoint_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"base_url": "http://127.0.0.1/v1", "model": "m", "dimension": 2, **wrong}
    with pytest.raises(EmbedderError):
        EndpointEmbedder(options.pop("base_url"), **options)
