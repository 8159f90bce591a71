"""Who asks: from the credential to a principal, and from nothing else. No body, header or metadata names a user here.

A key that was looked up is cached for a few seconds, so the store is not asked for each request; then it is looked
up again: a revoked key opens nothing five seconds later.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lamina.app.app import App
from lamina.app.config import LOOPBACK, key_id_in, key_proof, proof_hash
from lamina.gateway.http import SCOPES, HttpError, Principal
from lamina.gateway.limits import Buckets, Limits, day_of
from lamina.gateway.options import Options

CACHE_SECONDS = 4.0
"""Seconds; with the time of a look-up itself a revoked key counts for at most five."""
MAX_CACHED = 10_000
"""Credentials that are remembered."""

COOKIE_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request shows: the id of a key and the proof that it knows the key."""

    key_id: str
    proof: str
    by_cookie: bool = False


def unknown_key() -> HttpError:
    return HttpError(401, "gateway.unknown_key", kind="unauthorized")


def conflicting_keys() -> HttpError:
    return HttpError(401, "gateway.several_keys", kind="unauthorized")


def parse_key(text: str) -> Credential:
    return Credential(key_id_in(text), key_proof(text))


def cookie_name(headers: Mapping[str, str]) -> str:
    """By the port that the browser sees, as it keeps cookies by host alone; several gateways behind one front have one
    name for it, whichever ports they listen at themselves."""
    before, sign, port = headers.get("host", "").rpartition(":")
    return f"lamina_{port}" if sign and before and port.isascii() and port.isdigit() and len(port) < 6 else "lamina"


def _read_cookie(given: str, headers: Mapping[str, str]) -> Credential | None:
    found, ours = None, cookie_name(headers)
    for piece in given.split(";"):
        name, _, value = piece.strip().partition("=")
        if name == ours and value:
            key_id, _, proof = value.partition(".")
            if found and found.proof != proof:
                raise conflicting_keys()
            found = Credential(key_id, proof, by_cookie=True)
    return found


class Principals:
    def __init__(
        self, app: App, options: Options, limits: Limits, *, token: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """`token` is the loopback's own: a request with it acts for the user of the settings."""
        self._app, self._limits, self._clock = app, limits, clock
        self._marks = f"; Path=/; HttpOnly; SameSite=Strict{'; Secure' if options.https else ''}"
        self._token = proof_hash(key_proof(token)) if token else ""
        self._cached: dict[str, tuple[Principal, float]] = {}
        self._lookups: dict[str, asyncio.Task[Principal | None]] = {}
        self._guesses = Buckets()
        self._max_guesses = options.guesses

    def read_credential(self, headers: Mapping[str, str]) -> Credential | None:
        """The credential of a request; an error when it shows several that differ."""
        found: Credential | None = None
        if given := headers.get("authorization"):
            scheme, _, text = given.partition(" ")
            if scheme.lower() != "bearer":
                raise unknown_key()
            found = parse_key(text.strip())
        if given := headers.get("x-api-key"):
            other = parse_key(given.strip())
            if found and other.proof != found.proof:
                raise conflicting_keys()
            found = other
        if (given := headers.get("cookie")) and (cookie := _read_cookie(given, headers)):
            if found and cookie.proof != found.proof:
                raise conflicting_keys()
            found = found or cookie
        return found

    def cookie_for(self, credential: Credential, headers: Mapping[str, str]) -> str:
        return f"{cookie_name(headers)}={credential.key_id}.{credential.proof}; Max-Age={COOKIE_SECONDS}{self._marks}"

    def no_cookie(self, headers: Mapping[str, str]) -> str:
        return f"{cookie_name(headers)}=; Max-Age=0{self._marks}"

    def cached(self, credential: Credential) -> Principal | None:
        """The principal, where it was looked up a moment ago."""
        known = self._cached.get(credential.proof)
        return known[0] if known and known[1] > time.monotonic() else None

    async def principal(self, credential: Credential | None, address: str) -> Principal:
        """Who this is; an error when nobody is, or when too many wrong ones came from this address."""
        if credential is None:
            raise unknown_key()
        if found := self.cached(credential):
            return found
        found = await self._look_up_once(credential)
        if found is None:  # what is right always comes in: behind a front all have one address
            if wait := self._guesses.take(address, self._max_guesses):
                raise HttpError(429, "gateway.too_many_guesses", kind="rate_limit", retry_after=wait)
            raise unknown_key()
        return found

    async def is_valid(self, credential: Credential) -> bool:
        """Whether a credential that was right once still is; this does not count as a guess."""
        return self.cached(credential) is not None or await self._look_up_once(credential) is not None

    async def _look_up_once(self, credential: Credential) -> Principal | None:
        """Looked up, once for all who ask at the same moment."""
        task = self._lookups.get(credential.proof)
        if task is None:
            task = self._lookups[credential.proof] = asyncio.create_task(self._look_up(credential))
            task.add_done_callback(lambda _: self._lookups.pop(credential.proof, None))
        found = await asyncio.shield(task)
        if found is None:
            self._cached.pop(credential.proof, None)
        return found

    async def _look_up(self, credential: Credential) -> Principal | None:
        until = time.monotonic() + CACHE_SECONDS
        found = self._check_token(credential) if credential.key_id == LOOPBACK else await self._check_stored(credential)
        if found is not None:
            self._cached.pop(credential.proof, None)
            self._cached[credential.proof] = (found, until)
            if len(self._cached) > MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return found

    def _check_token(self, credential: Credential) -> Principal | None:
        if not self._token or not hmac.compare_digest(proof_hash(credential.proof), self._token):
            return None
        return Principal(self._app.settings.user, LOOPBACK, frozenset(SCOPES))

    async def _check_stored(self, credential: Credential) -> Principal | None:
        if not credential.key_id or len(credential.key_id) > 32 or not credential.key_id.isalnum():
            return None
        now = self._clock()
        row = await self._app.store.keys.find(credential.key_id, day_of(now))
        if row is None or not hmac.compare_digest(row[1], proof_hash(credential.proof)) or not row[0].usable(now):
            return None
        key = row[0]
        found = Principal(key.owner, key.key_id, frozenset(key.scopes), key.rate, key.tokens)
        self._limits.note_stored(found, row[2])
        return found
