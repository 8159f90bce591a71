"""Who approved a text with hidden characters: a file of content hashes in the person's own folder.

It must lie outside every workspace: a repository cannot approve itself.
"""

import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from lamina.errors import InstructionsError, shown
from lamina.layers.workspace import AnyPath, Missing, Workspace, below

try:
    import fcntl
except ImportError:  # a system without it can still read approvals
    fcntl = None

MAX_APPROVALS = 4 * 1024 * 1024
_HASH = re.compile(r"[0-9a-f]{64}")


class Approvals:
    """Content hashes that a person approved although their text holds hidden characters.

    The file must lie outside every workspace: a repository cannot approve itself.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = os.path.realpath(path)
        folder = os.path.dirname(self.path)
        self._folder = Workspace(folder, max_bytes=MAX_APPROVALS, label=folder.rstrip("/") + "/")

    def __contains__(self, version: object) -> bool:
        return version in self._hashes()

    def approve(self, version: str) -> None:
        if not _HASH.fullmatch(version):
            hint = "64 of 0-9 and a-f, as `lamina rules` shows them"
            raise InstructionsError(f"{shown(version)} is no content hash", hint=hint, path=self.path)
        with self._alone():
            self._write(sorted({*self._hashes(), version}))

    def revoke(self, version: str) -> None:
        with self._alone():
            self._write([known for known in self._hashes() if known != version])

    def lie_in(self, root: AnyPath) -> bool:
        """Does a workspace hold this file? Then no approval counts there."""
        return below(os.path.realpath(root), self.path) is not None

    def _hashes(self) -> list[str]:
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
            raise self._folder.refusal(
                name, "is no JSON list of content hashes", "mend it, or remove it and approve anew"
            )
        return listed

    @contextmanager
    def _alone(self) -> Generator[None, None, None]:
        """One writer at a time: two people who approve at once both count."""
        try:
            os.makedirs(self._folder.root, mode=0o700, exist_ok=True)
            handle = os.open(self._folder.root, os.O_RDONLY)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if fcntl:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, hashes: list[str]) -> None:
        """Whole or not at all: beside the file, to the disk, then in its place."""
        folder = self._folder.root
        draft = f"{self.path}.{os.getpid()}.{time.time_ns()}"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(hashes, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InstructionsError:
        what = f"{shown(self.path, 200)} cannot be written: {error.strerror}"
        return InstructionsError(what, hint="check its folder", path=self.path)
