"""Keys of the gateway and what they used. Of a key only a hash is kept: its text is shown once, where it is made.

The hash is taken twice, so that the page's cookie can carry what lies in between: neither the cookie nor the store
tells the key, and the store does not tell the cookie.
"""

import secrets
from collections.abc import Sequence
from hashlib import sha256

from lamina.errors import InputError, format_value
from lamina.records import ApiKey
from lamina.store.database import MAX_NAME, Clock, Database, Row, Steps, clean, insert, not_found
from lamina.store.shapes import read_row

COLUMNS = "owner, key_id, name, scopes, rate, tokens, created, expires, revoked, used"
MARK = "lam"


def key_text(key_id: str) -> str:
    """A new key of this id, as its user gets it."""
    return f"{MARK}_{key_id}_{secrets.token_urlsafe(32)}"


def key_proof(text: str) -> str:
    """The form in which a cookie carries a key."""
    return sha256(b"lamina cookie\0" + text.encode("utf-8", "replace")).hexdigest()


def proof_hash(proof: str) -> str:
    """What the store keeps of a key's proof."""
    return sha256(proof.encode("utf-8", "replace")).hexdigest()


def key_of(row: Row) -> ApiKey:
    values = read_row("api_key", COLUMNS, row)
    values[3] = tuple(values[3].split())
    return ApiKey(*values)


def _add(key: ApiKey, hashed: str) -> Steps[None]:
    row = (
        key.owner, key.key_id, key.name, " ".join(key.scopes), key.rate, key.tokens, key.created, key.expires,
        key.revoked, key.used, hashed,
    )  # fmt: skip
    yield from insert("api_key", f"{COLUMNS}, hash", [row])


def _find(key_id: str, day: str) -> Steps[tuple[ApiKey, str, int] | None]:
    rows = yield f"SELECT {COLUMNS}, hash FROM api_key WHERE key_id = ?", (key_id,)
    if not rows:
        return None
    key = key_of(rows[0][:-1])
    used = yield (
        "SELECT tokens FROM key_use WHERE owner = ? AND key_id = ? AND day = ?",
        (key.owner, key_id, day),
    )
    return key, str(rows[0][-1]), int(used[0][0]) if used else 0


def _any(now: float) -> Steps[bool]:
    rows = yield (
        "SELECT 1 FROM api_key WHERE revoked IS NULL AND (expires IS NULL OR expires > ?) LIMIT 1",
        (now,),
    )
    return bool(rows)


def _list(owner: str) -> Steps[list[ApiKey]]:
    rows = yield f"SELECT {COLUMNS} FROM api_key WHERE owner = ? ORDER BY created, key_id", (owner,)
    return [key_of(row) for row in rows]


def _revoke(owner: str, key_id: str, now: float) -> Steps[ApiKey]:
    rows = yield (
        f"UPDATE api_key SET revoked = COALESCE(revoked, ?) WHERE owner = ? AND key_id = ? RETURNING {COLUMNS}",
        (now, owner, key_id),
    )
    if not rows:
        raise not_found("key.not_found", key_id)
    return key_of(rows[0])


def _spend(owner: str, key_id: str, day: str, requests: int, tokens: int, now: float) -> Steps[int]:
    yield (
        "UPDATE api_key SET used = ? WHERE owner = ? AND key_id = ? AND (used IS NULL OR used < ?)",
        (now, owner, key_id, now),
    )
    rows = yield from insert(
        "key_use", "owner, key_id, day, requests, tokens", [(owner, key_id, day, requests, tokens)],
        "ON CONFLICT (owner, key_id, day) DO UPDATE SET requests = key_use.requests + excluded.requests, "
        "tokens = key_use.tokens + excluded.tokens RETURNING tokens",
    )  # fmt: skip
    return int(rows[0][0])


class Keys:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def add(
        self, owner: str, name: str, *, scopes: Sequence[str], rate: int = 0, tokens: int = 0,
        expires: float | None = None,
    ) -> tuple[ApiKey, str]:  # fmt: skip
        """A new key of this owner, and its text, which cannot be shown again."""
        clean(name, "field.key_name", MAX_NAME)
        if owner.startswith("@"):
            raise InputError("key.reserved_owner", owner=format_value(owner))
        made = ApiKey(owner, secrets.token_hex(8), name, tuple(scopes), rate, tokens, self._clock(), expires)
        text = key_text(made.key_id)
        hashed = proof_hash(key_proof(text))
        await self._db.write(owner, lambda: _add(made, hashed))
        return made, text

    async def find(self, key_id: str, day: str) -> tuple[ApiKey, str, int] | None:
        """The key of this id, of any owner, with its hash and the tokens that it used on this day."""
        return await self._db.read_any_owner(lambda: _find(key_id, day))

    async def any(self) -> bool:
        """Whether anybody has a key that can be used."""
        now = self._clock()
        return await self._db.read_any_owner(lambda: _any(now))

    async def list(self, owner: str) -> Sequence[ApiKey]:
        return await self._db.read(owner, lambda: _list(owner))

    async def revoke(self, owner: str, key_id: str) -> ApiKey:
        """The key opens nothing any more; that it was there stays visible."""
        now = self._clock()
        return await self._db.write(owner, lambda: _revoke(owner, key_id, now))

    async def spend(self, owner: str, key_id: str, day: str, *, requests: int, tokens: int) -> int:
        """Add to what a key used on a day; returns all its tokens of the day, those of other processes too."""
        now = self._clock()
        return await self._db.write(owner, lambda: _spend(owner, key_id, day, requests, tokens, now))
