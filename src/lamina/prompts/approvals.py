"""Which texts with hidden characters a person approved: a file of content hashes in that person's own folder."""

import json
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from lamina.errors import InstructionsError, format_value
from lamina.portable import BINARY, sync_folder, take_lock
from lamina.prompts.workspace import AnyPath, Missing, Workspace, below

MAX_FILE_BYTES = 4 * 1024 * 1024
_HASH = re.compile(r"[0-9a-f]{64}")


class Approvals:
    """Content hashes that a person approved although their text holds hidden characters.

    The file must be outside every workspace: a repository cannot approve itself.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = os.path.realpath(path)
        folder = os.path.dirname(self.path)
        self._folder = Workspace(folder, max_bytes=MAX_FILE_BYTES, label=os.path.join(folder, ""))

    def __contains__(self, version: object) -> bool:
        return version in self._read_hashes()

    def approve(self, version: str) -> None:
        if not _HASH.fullmatch(version):
            raise InstructionsError("approvals.not_a_hash", path=self.path, value=format_value(version))
        with self._lock():
            self._write(sorted({*self._read_hashes(), version}))

    def revoke(self, version: str) -> None:
        with self._lock():
            self._write([known for known in self._read_hashes() if known != version])

    def is_inside(self, root: AnyPath) -> bool:
        """Whether this file is in a workspace. Then no approval counts there."""
        return below(os.path.realpath(root), self.path) is not None

    def _read_hashes(self) -> list[str]:
        name = os.path.basename(self.path)
        found = self._folder.find(name) if os.path.isdir(self._folder.root) else Missing(name)
        if isinstance(found, Missing):
            return []
        try:
            hashes: Any = json.loads(found.text)
        except (ValueError, RecursionError):
            hashes = None
        listed: list[Any] = cast(list[Any], hashes) if isinstance(hashes, list) else [None]
        if not all(isinstance(known, str) and _HASH.fullmatch(known) for known in listed):
            raise self._folder.refusal(name, "approvals.damaged")
        return listed

    @contextmanager
    def _lock(self) -> Generator[None, None, None]:
        """One writer at a time, so that two approvals at once both count."""
        try:
            os.makedirs(self._folder.root, mode=0o700, exist_ok=True)
            handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        unlock: Callable[[], None] | None = None
        try:
            unlock = take_lock(handle, f"{self.path}.lock", wait=True)
            yield
        finally:
            if unlock:
                unlock()
            os.close(handle)

    def _write(self, hashes: list[str]) -> None:
        """Write a new file, sync it, then rename it over the old one: a reader finds one of the two."""
        folder = self._folder.root
        draft = f"{self.path}.{os.getpid()}.{time.time_ns()}"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(hashes, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
            sync_folder(folder)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InstructionsError:
        file = format_value(self.path, 200)
        return InstructionsError("approvals.unwritable", path=self.path, file=file, reason=error.strerror)
