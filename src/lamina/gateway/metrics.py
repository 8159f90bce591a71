"""Counters of the gateway, in the text form of Prometheus. Routes are named by their template: no ids, no users."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from lamina.records import TurnRecord

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MEDIA = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, list[float]] = {}
        """For each route: how many in each bound and above all, and their sum at the end."""
        self.streams = 0
        """Open now."""
        self._turns: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def count_request(self, label: str, status: int, seconds: float) -> None:
        """`label` is a method and the template of a path."""
        self._requests[label, status] += 1
        row = self._seconds.get(label)
        if row is None:
            row = self._seconds[label] = [0] * (len(BOUNDS) + 2)
        row[bisect_left(BOUNDS, seconds)] += 1
        row[-1] += seconds

    def count_turn(self, turn: TurnRecord) -> None:
        """A turn that ended."""
        self._turns[turn.state] += 1
        for kind in ("prompt", "cached", "completion"):
            self._tokens[kind] += int(turn.usage.get(kind, 0))

    def text(self, more: Mapping[str, tuple[str, str, float]]) -> str:
        """`more` has what others know, by name: its kind, its help and its value."""
        lines: list[str] = []
        lines += _family("lamina_requests_total", "counter", "Requests by route and status.", (
            (_labels(label, status=str(status)), count) for (label, status), count in sorted(self._requests.items())
        ))  # fmt: skip
        lines += _family("lamina_request_seconds", "histogram", "Seconds from a request to the end of its reply.", ())
        for label, row in sorted(self._seconds.items()):
            lines += _histogram(label, row)
        lines += _family("lamina_streams_open", "gauge", "Replies that come in pieces, open now.", [("", self.streams)])
        lines += _family("lamina_turns_total", "counter", "Turns that ended here, by state.", (
            (f'{{state="{state}"}}', count) for state, count in sorted(self._turns.items())
        ))  # fmt: skip
        lines += _family("lamina_tokens_total", "counter", "Tokens of those turns; cached are part of prompt.", (
            (f'{{kind="{kind}"}}', self._tokens[kind]) for kind in ("prompt", "cached", "completion")
        ))  # fmt: skip
        for name, (kind, words, value) in more.items():
            lines += _family(name, kind, words, [("", value)])
        return "\n".join(lines) + "\n"


def _labels(label: str, **more: str) -> str:
    method, _, path = label.partition(" ")
    pairs = {"method": method, "route": path, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(name: str, kind: str, words: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value:g}" for labels, value in rows)]


def _histogram(label: str, row: list[float]) -> list[str]:
    name, total, lines = "lamina_request_seconds", 0.0, list[str]()
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), row[:-1], strict=True):
        total += count
        lines.append(f"{name}_bucket{_labels(label, le=bound)} {total:.0f}")
    return [*lines, f"{name}_sum{_labels(label)} {row[-1]:.6f}", f"{name}_count{_labels(label)} {total:.0f}"]
