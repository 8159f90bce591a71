"""Every error that lamina raises on purpose, as one tree.

LaminaError
├── BudgetError        a budget that is not a finite number of at least 0
├── MessageError       a message, history or request that no provider would take
│   └── OpenCallsError a tool call still waits for its result
├── PromptError        text that would blur the structure of the prompt
├── LayerError         a layer that is unknown, of a wrong type or cannot be read
│   └── InstructionsError a file of instructions or rules that is missing, unreadable or not to be trusted
├── OwnerError         a segment that belongs to somebody else
├── CounterError       a token counter that is unknown, missing or gives no count
├── EmbedderError      an embedder that is missing, cannot be reached or gives no vectors
├── ProviderError      a model's answer that could not be had, or not to its end
│   ├── ConnectError   nobody could be reached, or the connection ended before any answer
│   ├── RateLimitError the provider asks to wait; `retry_after` says how long, where it is known
│   ├── RejectedError  the provider refused the request; `code` is its HTTP status
│   ├── StalledError   nothing more came before a deadline
│   └── BrokenStreamError an answer that was cut, or that is not what the provider's form allows
├── ToolError          a tool that cannot be registered, or a call of one that cannot be carried out
├── CompactionError    a compaction that would free too little, or has nothing to fold
├── LimitError         a turn that reached its limit of steps, tokens or time
├── StoreError         the store cannot be used: in use, full, damaged, unreachable
│   ├── StoreBusyError another process owns the store
│   └── LeaseError     a turn or job that ended already, or that somebody else holds by now
├── NotFoundError      what was asked for is not there, or not the asker's
├── MemoryFormError    a model's answer that is not in the form asked for: facts or a summary
├── SettingsError      a setting with a value that cannot be used
└── InputError         a file or option given to a command that cannot be used

An error says what happened, where, and with which value; `hint` says what to do next.
`exit_code` and `status` are what a command and an HTTP answer should use.
"""


class LaminaError(Exception):
    """The root: what happened, with the value; `hint` is what to do next."""

    exit_code = 1
    status = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

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
    """`path` is the file to check. It lies on our side of the wire, so no client is to blame for it."""

    status = 500

    def __init__(self, message: str, *, hint: str = "", path: str = "") -> None:
        super().__init__(message, hint=hint)
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
    """`retryable`: the same request may well succeed later. `code` is the provider's HTTP status, 0 for none."""

    status = 502
    retryable = False

    def __init__(
        self, message: str, *, hint: str = "", code: int = 0, retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, hint=hint)
        self.code = code
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

    def __init__(self, message: str, *, hint: str = "", pid: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class LeaseError(StoreError):
    status = 409


ABSENT = "it does not exist, or it is not yours"


class NotFoundError(LaminaError, LookupError):
    """One wording, `ABSENT`, for what is not there and what belongs to somebody else: an id must not tell which."""

    exit_code = 2
    status = 404


class MemoryFormError(LaminaError, ValueError):
    """Asked again, the model may answer in the right form, so whoever runs the job tries again."""

    status = 502


class SettingsError(LaminaError, ValueError):
    exit_code = 2
    status = 400


class InputError(LaminaError, ValueError):
    exit_code = 2
    status = 400


def shown(value: object, limit: int = 80) -> str:
    """A value as an error message shows it: its repr, shortened, never failing."""
    try:
        text = repr(value)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, OSError):
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def surrogate_error(text: str, error: UnicodeEncodeError, where: str) -> MessageError:
    """The error for text that is no Unicode: half of a surrogate pair stands alone in it."""
    return MessageError(
        f"{where} holds the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}",
        hint="decode the text as UTF-8 with errors='replace' before you hand it in",
    )
