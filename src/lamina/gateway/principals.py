"""Who asks: from the credential to a principal, and from nothing else. No body, header or metadata names a user here.

A key that was looked up is believed for a few seconds, so the store is not asked for each request; then it is looked
up again: a revoked key opens nothing five seconds later.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lamina.app.app import App
from lamina.app.keys import LOOPBACK, key_id_in, key_proof, proof_hash
from lamina.gateway.http import SCOPES, HttpError, Principal
from lamina.gateway.limits import Buckets, Limits, day_of
from lamina.gateway.options import Options

BELIEVED = 4.0
"""Seconds; with the time of a look-up itself a revoked key counts for at most five."""
KEPT = 10_000
"""Credentials that are remembered."""
WHEN_KEYS = " (with a SQLite store while the gateway is not running)"
"""Where keys are advised: on SQLite the gateway has the store to itself."""
COOKIE_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows: the id of a key and the proof that it knows the key."""

    key_id: str
    proof: str
    by_cookie: bool = False


def unknown() -> HttpError:
    return HttpError(
        401, "no key that is known here", kind="unauthorized",
        hint=f"the address that `lamina serve` printed has a token in it, and `lamina keys new` makes keys{WHEN_KEYS}",
    )  # fmt: skip


def several() -> HttpError:
    return HttpError(401, "the request shows different credentials", hint="send one of them", kind="unauthorized")


def shown_key(text: str) -> Shown:
    return Shown(key_id_in(text), key_proof(text))


def cookie_name(headers: Mapping[str, str]) -> str:
    """By the port that the browser sees, as it keeps cookies by host alone; several gateways behind one front have one
    name for it, whichever ports they listen at themselves."""
    before, sign, port = headers.get("host", "").rpartition(":")
    return f"lamina_{port}" if sign and before and port.isascii() and port.isdigit() and len(port) < 6 else "lamina"


def _in_cookie(given: str, headers: Mapping[str, str]) -> Shown | None:
    found, ours = None, cookie_name(headers)
    for piece in given.split(";"):
        name, _, value = piece.strip().partition("=")
        if name == ours and value:
            key_id, _, proof = value.partition(".")
            if found and found.proof != proof:
                raise several()
            found = Shown(key_id, proof, by_cookie=True)
    return found


class Principals:
    def __init__(
        self, app: App, options: Options, limits: Limits, *, token: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """`token` is the loopback's own: whoever shows it is the user of the settings."""
        self._app, self._limits, self._clock = app, limits, clock
        self._marks = f"; Path=/; HttpOnly; SameSite=Strict{'; Secure' if options.https else ''}"
        self._token = proof_hash(key_proof(token)) if token else ""
        self._known: dict[str, tuple[Principal, float]] = {}
        self._asking: dict[str, asyncio.Task[Principal | None]] = {}
        self._guesses = Buckets()
        self._most_guesses = options.guesses

    def shown(self, headers: Mapping[str, str]) -> Shown | None:
        """The credential of a request; an error when it shows several that differ."""
        found: Shown | None = None
        if given := headers.get("authorization"):
            scheme, _, text = given.partition(" ")
            if scheme.lower() != "bearer":
                raise unknown()
            found = shown_key(text.strip())
        if given := headers.get("x-api-key"):
            other = shown_key(given.strip())
            if found and other.proof != found.proof:
                raise several()
            found = other
        if (given := headers.get("cookie")) and (cookie := _in_cookie(given, headers)):
            if found and cookie.proof != found.proof:
                raise several()
            found = found or cookie
        return found

    def cookie_for(self, shown: Shown, headers: Mapping[str, str]) -> str:
        return f"{cookie_name(headers)}={shown.key_id}.{shown.proof}; Max-Age={COOKIE_SECONDS}{self._marks}"

    def no_cookie(self, headers: Mapping[str, str]) -> str:
        return f"{cookie_name(headers)}=; Max-Age=0{self._marks}"

    def believed(self, shown: Shown) -> Principal | None:
        """The principal, where it was looked up a moment ago."""
        known = self._known.get(shown.proof)
        return known[0] if known and known[1] > time.monotonic() else None

    async def principal(self, shown: Shown | None, address: str) -> Principal:
        """Who this is; an error when nobody is, or when too many wrong ones came from this address."""
        if shown is None:
            raise unknown()
        if found := self.believed(shown):
            return found
        found = await self._asked(shown)
        if found is None:  # what is right always comes in: behind a front all have one address
            if wait := self._guesses.take(address, self._most_guesses):
                raise HttpError(429, "too many wrong keys from this address", kind="rate_limit", retry_after=wait)
            raise unknown()
        return found

    async def counts(self, shown: Shown) -> bool:
        """Whether a credential that was right once still is; it is no guess."""
        return self.believed(shown) is not None or await self._asked(shown) is not None

    async def _asked(self, shown: Shown) -> Principal | None:
        """Looked up, once for all who ask at the same moment."""
        task = self._asking.get(shown.proof)
        if task is None:
            task = self._asking[shown.proof] = asyncio.create_task(self._look_up(shown))
            task.add_done_callback(lambda _: self._asking.pop(shown.proof, None))
        found = await asyncio.shield(task)
        if found is None:
            self._known.pop(shown.proof, None)
        return found

    async def _look_up(self, shown: Shown) -> Principal | None:
        until = time.monotonic() + BELIEVED
        found = self._local(shown) if shown.key_id == LOOPBACK else await self._stored(shown)
        if found is not None:
            self._known.pop(shown.proof, None)
            self._known[shown.proof] = (found, until)
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return found

    def _local(self, shown: Shown) -> Principal | None:
        if not self._token or not hmac.compare_digest(proof_hash(shown.proof), self._token):
            return None
        return Principal(self._app.settings.user, LOOPBACK, frozenset(SCOPES))

    async def _stored(self, shown: Shown) -> Principal | None:
        if not shown.key_id or len(shown.key_id) > 32 or not shown.key_id.isalnum():
            return None
        now = self._clock()
        row = await self._app.store.keys.find(shown.key_id, day_of(now))
        if row is None or not hmac.compare_digest(row[1], proof_hash(shown.proof)) or not row[0].usable(now):
            return None
        key = row[0]
        found = Principal(key.owner, key.key_id, frozenset(key.scopes), key.rate, key.tokens)
        self._limits.learnt(found, row[2])
        return found
