"""What a gateway needs of keys: how one is read, and the token of this machine's own user, which opens the page here.

The token lies in the user's state folder, for nobody else to read, one for each store and user; it is no row of the
store, and it only counts where the gateway listens on this machine alone.
"""

import os
import stat
from hashlib import sha256
from html import escape
from pathlib import Path

from lamina.errors import SettingsError
from lamina.settings import Settings, state_folder
from lamina.store.keys import MARK, key_proof, key_text, proof_hash

LOOPBACK = "loopback"
"""The id of the token: no key of the store has it, those are hexadecimal."""
__all__ = ["LOOPBACK", "key_id_in", "key_proof", "loopback_token", "opening_file", "proof_hash"]


def key_id_in(text: str) -> str:
    """The id in a key's text; empty when it is no key of ours."""
    mark, _, rest = text.partition("_")
    key_id, sign, secret = rest.partition("_")
    return key_id if mark == MARK and sign and secret and key_id.isalnum() and len(key_id) <= 32 else ""


def token_file(settings: Settings) -> Path:
    place = settings.store if "://" in settings.store else os.path.realpath(settings.store)
    name = sha256(f"{place}\0{settings.user}".encode("utf-8", "replace")).hexdigest()[:16]
    return state_folder(settings.environ or None) / f"gateway-{name}.token"


def loopback_token(settings: Settings) -> str:
    """The token for this store and user, made when there is none yet."""
    path = token_file(settings)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            return _kept(path)
        token = key_text(LOOPBACK)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        return token
    except OSError as error:
        raise SettingsError(
            f"the token file {path} cannot be used: {error.strerror}", hint="check the folder"
        ) from None


def opening_file(settings: Settings, url: str) -> Path:
    """A page that leads to this address: the token must not stand in the arguments of a browser, which all can see."""
    path = token_file(settings).with_suffix(".html")
    try:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">'
            )
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}", hint="check the folder") from None
    return path


def _kept(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        token = file.read(200).decode("ascii", "replace").strip()
    hint = f"remove {path}: a new one is made at the next start"
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
        raise SettingsError(f"the token file {path} can be read by others", hint=hint)
    if key_id_in(token) != LOOPBACK or len(token) < 40:
        raise SettingsError(f"the token file {path} holds no token", hint=hint)
    return token
