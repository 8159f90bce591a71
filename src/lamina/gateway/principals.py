"""Is a request meant for us, does it come from a page that may send it, and who makes it? A principal follows from the
credential and from nothing else: no body, header or metadata names a user here.

A name in `Host` that is not ours is how a page elsewhere reaches this machine by DNS; an `Origin` that is not ours is
another page in our user's browser. A key that was looked up is cached for a few seconds, so the store is not asked for
each request; then it is looked up again: a revoked key opens nothing five seconds later.
"""

import asyncio
import hmac
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from lamina.app.app import App
from lamina.app.config import LOOPBACK, key_id_in, key_proof, proof_hash
from lamina.gateway.handlers import SCOPES, HttpError, Principal
from lamina.gateway.limits import Buckets, GatewayOptions, UsageLimits, day_of

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
ALLOWED_METHODS = "GET, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS = (
    "authorization, x-api-key, content-type, accept, idempotency-key, last-event-id, x-lamina-session, "
    "anthropic-version, anthropic-beta, openai-organization, openai-project"
)
EXPOSED_HEADERS = "x-request-id, x-lamina-turn, x-lamina-session, x-lamina-payload-sha256, retry-after"
CACHE_SECONDS = 4.0
"""With the time of a look-up itself a revoked key counts for at most five."""
MAX_CACHED = 10_000
"""Credentials that are cached."""
REVOKED_CHECK_INTERVAL_S = 1.0
"""Between two checks of the keys of open streams; most of them are cached and do not read the store."""
COOKIE_SECONDS = 30 * 86_400


class Guard:
    """Checks where a request comes from, before anything else of it is read."""

    def __init__(self, options: GatewayOptions) -> None:
        names = {*LOOPBACK_NAMES, *(name.lower().rstrip(".") for name in options.host_names)}
        bound = options.address.lower()
        if bound not in ("0.0.0.0", "[::]"):
            names.add(bound)
        self._names = frozenset(names)
        self._hosts = {f"{name}:{options.port}" for name in names}
        self._origins = frozenset(origin.lower().rstrip("/") for origin in options.origins)

    def check_host(self, host: str, server: object) -> None:
        """`server` is the address at which the connection came in: people may write that one too."""
        if host in self._hosts:
            return
        name = host.lower()
        if not name.endswith("]"):
            before, sign, port = name.rpartition(":")
            name = before if sign and port.isascii() and port.isdigit() else name
        name = name.removesuffix(".")
        if name in self._names or (isinstance(server, str) and name.strip("[]") == server):
            return
        raise HttpError(403, "gateway.wrong_host", kind="host")

    def check_origin(self, origin: str, host: str) -> str:
        """Empty for a page of ours; otherwise the origin, when it is one that the operator allows."""
        given = origin.lower()
        scheme, _, place = given.partition("://")
        if scheme in ("http", "https") and place == host.lower():
            return ""
        if given in self._origins:
            return origin
        raise HttpError(403, "gateway.foreign_origin", hint="gateway.allow_origin", kind="origin")

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """A cookie comes along by itself, so what changes something must say that it comes from our own page."""
        if method in SAFE_METHODS:
            return
        if "origin" not in headers and headers.get("sec-fetch-site") != "same-origin":
            raise HttpError(403, "gateway.foreign_origin", hint="gateway.send_key", kind="origin")

    def cors_headers(self, origin: str) -> dict[str, str]:
        """Never with credentials: such pages bring a key of their own."""
        return {
            "access-control-allow-origin": origin,
            "vary": "Origin",
            "access-control-expose-headers": EXPOSED_HEADERS,
        }

    def preflight_headers(self, origin: str) -> dict[str, str]:
        return {
            **self.cors_headers(origin),
            "access-control-allow-methods": ALLOWED_METHODS,
            "access-control-allow-headers": ALLOWED_HEADERS,
            "access-control-max-age": "600",
        }


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request presents: the id of a key and the proof that it knows the key."""

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
    """By the port that the browser sees, because it stores cookies by host alone; several gateways behind one proxy
    have one name for it, whichever ports they listen at themselves."""
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
        self,
        app: App,
        options: GatewayOptions,
        limits: UsageLimits,
        *,
        token: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A request with the loopback's own `token` acts for the user of the settings."""
        self._app, self._limits, self._clock = app, limits, clock
        self._marks = f"; Path=/; HttpOnly; SameSite=Strict{'; Secure' if options.https else ''}"
        self._token = proof_hash(key_proof(token)) if token else ""
        self._cached: dict[str, tuple[Principal, float]] = {}
        self._lookups: dict[str, asyncio.Task[Principal | None]] = {}
        self._guesses = Buckets()
        self._max_guesses = options.guesses
        self._streams: dict[Callable[[], None], Credential] = {}
        """The credential of each open stream, by the function that ends it."""

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
        """Who this is; an error when the credential is wrong, or too many wrong ones came from this address."""
        if credential is None:
            raise unknown_key()
        if found := self.cached(credential):
            return found
        found = await self._look_up_once(credential)
        if found is None:  # a right one is always accepted: behind a proxy all clients have one address
            if wait := self._guesses.take(address, self._max_guesses):
                raise HttpError(429, "gateway.too_many_guesses", kind="rate_limit", retry_after=wait)
            raise unknown_key()
        return found

    async def is_valid(self, credential: Credential) -> bool:
        """Whether a credential that was right once still is; this does not count as a guess."""
        return self.cached(credential) is not None or await self._look_up_once(credential) is not None

    @contextmanager
    def end_when_revoked(self, credential: Credential | None, end: Callable[[], None]) -> Generator[None, None, None]:
        """Inside, `end` is called once the credential is revoked or has expired."""
        if credential is not None:
            self._streams[end] = credential
        try:
            yield
        finally:
            self._streams.pop(end, None)

    async def run(self) -> None:
        """End the streams of those whose key is revoked or has expired."""
        while True:
            await asyncio.sleep(REVOKED_CHECK_INTERVAL_S)
            every = list({credential.proof: credential for credential in self._streams.values()}.values())
            valid = await asyncio.gather(*map(self.is_valid, every), return_exceptions=True)
            over = {credential.proof for credential, counts in zip(every, valid, strict=True) if counts is False}
            for end, credential in list(self._streams.items()) if over else ():  # a store that is silent ends nothing
                if credential.proof in over:
                    end()

    async def _look_up_once(self, credential: Credential) -> Principal | None:
        """One look-up for all requests that need it at the same moment."""
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
