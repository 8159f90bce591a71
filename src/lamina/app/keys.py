"""What a gateway needs of keys: how one is read, and the token of this machine's own user, which opens the page here.

The token is in the user's state folder, readable by that user alone, one per store and user; it is not a row of the
store, and it only counts where the gateway listens on this machine alone.
"""

import os
import stat
import time
from hashlib import sha256
from html import escape
from pathlib import Path

from lamina.errors import SettingsError
from lamina.portable import BINARY, NOFOLLOW, NONBLOCK, is_private
from lamina.settings import Settings, state_folder
from lamina.store.keys import MARK, key_proof, key_text, proof_hash
from lamina.store.lock import make_private_folder

LOOPBACK = "loopback"
"""The id of the token: no key of the store has it, those are hexadecimal."""
WRITE_TIMEOUT_S = 2.0
__all__ = ["LOOPBACK", "key_id_in", "key_proof", "loopback_token", "opening_file", "proof_hash"]


def key_id_in(text: str) -> str:
    """The id in a key's text; empty when it is not one of our keys."""
    mark, _, rest = text.partition("_")
    key_id, sign, secret = rest.partition("_")
    return key_id if mark == MARK and sign and secret and key_id.isalnum() and len(key_id) <= 32 else ""


def token_file(settings: Settings) -> Path:
    place = settings.store if "://" in settings.store else os.path.realpath(settings.store)
    name = sha256(f"{place}\0{settings.user}".encode("utf-8", "replace")).hexdigest()[:16]
    return Path(state_folder(settings.environ or None), f"gateway-{name}.token")


def loopback_token(settings: Settings) -> str:
    """The token for this store and user, made when there is none yet."""
    path = token_file(settings)
    try:
        make_private_folder(path.parent)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, 0o600)
        except FileExistsError:
            _wait_until_written(path)
            return _read_token(path)
        token = key_text(LOOPBACK)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        return token
    except OSError as error:
        raise SettingsError("key.file_unusable", hint="key.check_folder", path=str(path), why=error.strerror) from None


def opening_file(settings: Settings, url: str) -> Path:
    """A page that leads to this address: the token must not stand in the arguments of a browser, which all can see."""
    path = token_file(settings).with_suffix(".html")
    try:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">'
            )
    except OSError as error:
        raise SettingsError("file.unwritable", path=str(path), why=error.strerror) from None
    return path


def _wait_until_written(path: Path) -> None:
    """Another gateway of this store that starts at the same moment has made the file, and is about to write it."""
    until = time.monotonic() + WRITE_TIMEOUT_S
    while path.lstat().st_size == 0 and time.monotonic() < until:
        time.sleep(0.01)


def _read_token(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | NOFOLLOW | NONBLOCK | BINARY)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        token = file.read(200).decode("ascii", "replace").strip()
    if not stat.S_ISREG(found.st_mode) or not is_private(found):
        raise SettingsError("key.file_readable_by_others", hint="key.remove_file", path=str(path))
    if key_id_in(token) != LOOPBACK or len(token) < 40:
        raise SettingsError("key.file_without_token", hint="key.remove_file", path=str(path))
    return token
