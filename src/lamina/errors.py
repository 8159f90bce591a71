"""Every error that lamina raises on purpose, as one tree.

LaminaError
├── BudgetError        a budget that is not a finite number of at least 0
├── MessageError       a message, history or request that no provider would take
│   └── OpenCallsError a tool call still waits for its result
├── PromptError        text that would blur the structure of the prompt
├── LayerError         a layer that is unknown, of a wrong type or cannot be read
│   └── InstructionsError a file of instructions or rules that is missing, unreadable or not to be trusted
├── OwnerError         a segment that belongs to another owner
├── CounterError       a token counter that is unknown, missing or gives no count
├── EmbedderError      an embedder that is missing, cannot be reached or gives no vectors
├── ProviderError      a model's answer that could not be had, or not to its end
│   ├── ConnectError   the server was not reached, or the connection ended before any answer
│   ├── RateLimitError the provider asks to wait; `retry_after` says how long, where it is known
│   ├── RejectedError  the provider refused the request; `provider_status` is its HTTP status
│   ├── StalledError   nothing more came before a deadline
│   └── BrokenStreamError an answer that was cut, or that is not what the provider's form allows
├── ToolError          a tool that cannot be registered, or a call of one that cannot be carried out
├── CompactionError    a compaction that would free too little, or has nothing to fold
├── LimitError         a turn that reached its limit of steps, tokens or time
├── StoreError         the store cannot be used: in use, full, damaged, unreachable
│   ├── StoreBusyError another process owns the store
│   ├── StoreDamagedError its file is damaged, cut off or gone; `hint` names the commands to recover what is left
│   └── LeaseError     a turn or job that ended already, or that another process holds by now
├── NotFoundError      what was asked for is not there, or not the asker's
├── MemoryFormError    a model's answer that is not in the form asked for: facts or a summary
├── SettingsError      a setting with a value that cannot be used
└── InputError         a file or option given to a command that cannot be used

An error says what happened, where, and with which value; `hint` says what to do next.
`exit_code` and `status` are what a command and an HTTP answer should use.
"""

from itertools import takewhile
from typing import cast

from lamina.text.messages import Phrase, Value, is_known


class LaminaError(Exception):
    """The root: what happened as a code with its values, and what to do next. `code` names an entry of the catalogues;
    the next step is the entry `<code>.hint` unless `hint` names another one."""

    exit_code = 1
    status = 500

    def __init__(self, code: str | Phrase, /, *, hint: str | Phrase = "", **values: Value) -> None:
        self.phrase = code if isinstance(code, Phrase) else Phrase(code, **values)
        super().__init__(self.phrase.code)
        self._hint = hint if isinstance(hint, Phrase) else Phrase(hint, **values)

    @property
    def code(self) -> str:
        return self.phrase.code

    @property
    def next_step(self) -> Phrase:
        """What to do next; false where nothing is known."""
        if self._hint or not is_known(f"{self.code}.hint"):
            return self._hint
        return Phrase(f"{self.code}.hint", **self.phrase.values)

    @property
    def message(self) -> str:
        """What happened, in English, as logs and programs read it."""
        return self.phrase.text()

    @property
    def hint(self) -> str:
        """The next step, in English."""
        return self.next_step.text()

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BudgetError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class MessageError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class OpenCallsError(MessageError):
    status = 409


class PromptError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class LayerError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class InstructionsError(LayerError):
    """`path` is the file to check. It is on the server, so no client is to blame for it."""

    status = 500

    def __init__(self, code: str, /, *, hint: str | Phrase = "", path: str = "", **values: Value) -> None:
        super().__init__(code, hint=hint, path=path, **values)
        self.path = path


class OwnerError(LaminaError):
    exit_code = 3
    status = 403


class CounterError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class EmbedderError(LaminaError):
    status = 502


class ProviderError(LaminaError):
    """`retryable`: the same request may succeed later. `provider_status` is the HTTP status it gave, 0 for none."""

    status = 502
    retryable = False

    def __init__(
        self,
        code: str,
        /,
        *,
        hint: str | Phrase = "",
        provider_status: int = 0,
        retryable: bool | None = None,
        retry_after: float | None = None,
        **values: Value,
    ) -> None:
        super().__init__(code, hint=hint, **values)
        self.provider_status = provider_status
        self.retry_after = retry_after
        if retryable is not None:
            self.retryable = retryable


class ConnectError(ProviderError):
    retryable = True


class RateLimitError(ProviderError):
    status = 503
    retryable = True


class RejectedError(ProviderError):
    pass


class StalledError(ProviderError):
    status = 504
    retryable = True


class BrokenStreamError(ProviderError):
    retryable = True


class ToolError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class CompactionError(LaminaError):
    status = 409


class LimitError(LaminaError):
    status = 409


class StoreError(LaminaError):
    exit_code = 4
    status = 503


class StoreBusyError(StoreError):
    """`pid` is the process that owns the store, 0 when it is not known."""

    def __init__(self, code: str, /, *, hint: str | Phrase = "", pid: int = 0, **values: Value) -> None:
        super().__init__(code, hint=hint, pid=pid, **values)
        self.pid = pid


class StoreDamagedError(StoreError):
    pass


class LeaseError(StoreError):
    status = 409


ABSENT = "error.absent"


class NotFoundError(LaminaError, LookupError):
    """One hint, `ABSENT`, for what is not there and what belongs to another owner: an answer must not reveal which."""

    exit_code = 2
    status = 404


class MemoryFormError(LaminaError, ValueError):
    """Asked again, the model may answer in the right form, so the worker tries the job again."""

    status = 502


class SettingsError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class InputError(LaminaError, ValueError):
    exit_code = 2
    status = 400


def format_value(value: object, limit: int = 80) -> str:
    """A value as an error message shows it: its repr, shortened, never failing."""
    try:
        text = repr(_shorten(value, [limit]))
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, OSError):
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _shorten(value: object, left: list[int]) -> object:
    """No more of a value than an error message has room for: its repr may be as long as a request."""
    left[0] -= 1
    if isinstance(value, str | bytes):
        room = max(left[0], 0) + 2
        left[0] -= len(value)
        return value[:room]
    if type(value) in (list, tuple):
        items = takewhile(lambda _: left[0] >= 0, cast("list[object]", value))
        return cast("type[list[object]]", type(value))(_shorten(one, left) for one in items)
    if type(value) is dict:
        fields = takewhile(lambda _: left[0] >= 0, cast("dict[object, object]", value).items())
        return {_shorten(name, left): _shorten(one, left) for name, one in fields}
    return value
