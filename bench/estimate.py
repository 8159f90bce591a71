"""How far three token estimates are from the exact counts of four vocabularies, kind of text by kind.

A text is a paragraph of `bench/texts` (written for this, never fitted on) or a message of the transcripts in
LAMINA_BENCH_DATA. Of those, the chats with an even number were used to fit the weights; only the odd ones are measured.
"""

import gzip
import json
from collections.abc import Callable, Sequence

from bench.measure import DATA, ROOT, Section, Verdict, low, ratio, table, versions
from lamina import estimate_message_tokens, estimate_tokens, exact_counter

TEXTS = ("english", "chinese", "japanese", "korean", "code", "json")
TRANSCRIPTS = ("en", "zh")
VOCABULARIES = ("o200k", "cl100k", "qwen3", "deepseek")


def quarter_of_characters(text: str) -> float:
    return len(text) / 4


ESTIMATES: dict[str, Callable[[str], float]] = {
    "UTF-8 bytes / 4": estimate_message_tokens,
    "characters / 4": quarter_of_characters,
    "`estimate_tokens`": estimate_tokens,
}


def paragraphs(kind: str) -> list[str]:
    """The samples of a shipped text."""
    text = (ROOT / "bench" / "texts" / f"{kind}.txt").read_text(encoding="utf-8")
    return [paragraph.strip("\n") for paragraph in text.split("\n\n") if paragraph.strip()]


def messages(language: str) -> list[str]:
    """The messages of the transcripts that the weights have not seen; none when the file is not there."""
    path = DATA / f"transcripts_{language}.jsonl.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        items = [json.loads(line) for line in lines]
    odd = [item for item in items if item["type"] == "turn" and item["user"][-1] in "13579"]
    return [item["text"] for item in odd if item["text"]]


def errors(guessed: Sequence[float], exact: Sequence[int]) -> tuple[float, float]:
    """In percent: the signed error of the sum, and the mean absolute error of a sample."""
    total = sum(guessed) / sum(exact) - 1
    each = sum(abs(guess - true) / true for guess, true in zip(guessed, exact, strict=True)) / len(exact)
    return 100 * total, 100 * each


def rows() -> list[dict[str, str]]:
    """A row for each kind of text and estimate: `total / mean` error in percent for each vocabulary."""
    corpora = {kind: paragraphs(kind) for kind in TEXTS}
    corpora |= {f"transcripts {language}": messages(language) for language in TRANSCRIPTS}
    found: list[dict[str, str]] = []
    for kind, samples in corpora.items():
        if not samples:
            continue
        exact = {name: [exact_counter(name)(sample) for sample in samples] for name in VOCABULARIES}
        for label, estimate in ESTIMATES.items():
            guessed = [estimate(sample) for sample in samples]
            row = {"text": kind, "samples": f"{len(samples):,}", "estimate": label}
            for name, counts in exact.items():
                total, each = errors(guessed, counts)
                row[name] = f"{total:+.1f} / {each:.1f}"
            found.append(row)
    return found


def run() -> Section:
    """The table for the report."""
    found = rows()
    text = (
        "Error in %: of the whole text, signed (+ is too many tokens) / mean absolute error of a sample.\nThe weights "
        "are fitted to o200k, and not on the shipped texts. For cl100k no weights that fit o200k can fit "
        "Chinese, Japanese and Korean too: use `exact_counter`.\n\n"
        + table(list(found[0]), [list(row.values()) for row in found])
    )
    missing = tuple(
        f"transcripts_{name}" for name in TRANSCRIPTS if not (DATA / f"transcripts_{name}.jsonl.gz").exists()
    )
    worst = {
        label: max(abs(float(row["o200k"].split(" / ")[0])) for row in found if row["estimate"] == label)
        for label in ESTIMATES
    }
    ours = worst.pop("`estimate_tokens`")
    peer, name = min((value, name) for name, value in worst.items())
    verdict = Verdict("error of a text's token count on o200k, the worst kind of text", f"{ours:.1f} %",
                      f"{peer:.1f} %, {name}", ratio(peer / ours))  # fmt: skip
    title, figures = "Token estimates against exact counts", {"worst total error on o200k, %": low(ours, 1.1)}
    return Section(title, text, figures, (verdict,), None, versions("splintr-rs"), missing)
