"""What the events of a turn add up to, for every front end; and the events again, from the rows of a stored turn.

There is one fold: which text belongs together, which result belongs to which call, the sum of all usages, and how the
turn ended. It keeps values; how they are shown is left to the front ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lamina.assembly.fences import read_result
from lamina.records import FinalState, StoredMessage, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Began, Ended, Text, ToolCallEvent, ToolOutput, ToolResult, TurnEvent, Usage

Call = tuple[ToolCallEvent, ToolResult | None]
"""A call and what came back, unless the turn ended before."""


@dataclass(slots=True)
class Transcript:
    """What is known of a turn from its events so far."""

    began: Began | None = None
    text: str = ""
    """The whole answer; a blank line separates the texts between which tools ran."""
    calls: list[Call] = field(default_factory=list[Call])
    usage: Usage = Usage(0, 0, 0)  # noqa: RUF009 -- it is frozen
    ended: Ended | None = None
    starts_step: bool = False
    """Tools were called since the last text."""

    @property
    def running_calls(self) -> list[ToolCallEvent]:
        return [call for call, result in self.calls if result is None]

    def take(self, event: TurnEvent) -> str:
        """Take in the next event; returns the text that it adds to the answer."""
        match event:
            case Began():
                self.began = event
            case Text():
                new = self._separator() + event.text
                self.starts_step = False
                self.text += new
                return new
            case ToolCallEvent():
                self.calls.append((event, None))
                self.starts_step = True
            case ToolResult():
                self.starts_step = True
                for number, (call, result) in enumerate(self.calls):
                    if call.id == event.id and result is None:
                        self.calls[number] = (call, event)
                        break
            case Usage(prompt, cached, completion):
                was = self.usage
                self.usage = Usage(was.prompt + prompt, was.cached + cached, was.completion + completion)
            case Ended():
                self.ended = event
            case _:
                pass
        return ""

    def _separator(self) -> str:
        if not self.starts_step or not self.text:
            return ""
        newlines = len(self.text) - len(self.text.rstrip("\n"))
        return "\n" * max(0, 2 - newlines)


def replay_events(rows: Sequence[StoredMessage], turn: TurnRecord, current: str, over: bool) -> Iterator[TurnEvent]:
    """What the rows of a turn say, in the order in which it was streamed: text, then each call with its result.
    `current` is the text of an answer that still streams."""
    results = _results_by_call(rows)
    for row in rows:
        if row.role != "assistant":
            continue
        last = row.seq == turn.answer_seq
        text = current if last and not over else row.text
        if text:
            yield Text(text)
        for call in _calls_in(row):
            yield call
            result = results.get(call.id)
            if result is not None:
                yield _stored_result(call, result)
            elif not last:  # it is still running, or was cut off
                return
    if over and turn.usage:
        yield Usage(turn.usage.get("prompt", 0), turn.usage.get("cached", 0), turn.usage.get("completion", 0))


def stored_calls(rows: Sequence[StoredMessage]) -> list[Call]:
    """The calls in these messages with their results, as the model got them."""
    results = _results_by_call(rows)
    return [
        (call, _stored_result(call, results[call.id]) if call.id in results else None)
        for row in rows
        for call in _calls_in(row)
    ]


def stored_end(turn: TurnRecord) -> Ended:
    """The end of a turn as it is stored."""
    state: FinalState = "interrupted" if turn.state == "streaming" else turn.state
    hint = Phrase.load(str(turn.usage.get("hint", "")))
    return Ended(state, Phrase.load(turn.error), hint, turn.usage.get("done", "stop"))


def _results_by_call(rows: Sequence[StoredMessage]) -> dict[str, StoredMessage]:
    return {str(row.extra.get("tool_call_id")): row for row in rows if row.role == "tool"}


def _calls_in(row: StoredMessage) -> Iterator[ToolCallEvent]:
    for call in row.extra.get("tool_calls") or ():
        yield ToolCallEvent(call["id"], call["function"]["name"], call["function"]["arguments"])


def _stored_result(call: ToolCallEvent, row: StoredMessage) -> ToolResult:
    """How a call ended, from its stored result. How long it took is not stored, nor, by 0.1.0, its state."""
    content = row.message["content"]
    state = content.state if isinstance(content, ToolOutput) else "done"
    return ToolResult(call.id, call.name, read_result(row.text, row.message), state, 0.0)
