"""Keys of the gateway and what they used. Of a key only a hash is kept: its text is shown once, where it is made.

The hash is taken twice, so that the page's cookie can carry what is in between: neither the cookie nor the store
tells the key, and the store does not tell the cookie.
"""

import secrets
from collections.abc import Sequence
from hashlib import sha256

from lamina.errors import InputError, format_value
from lamina.records import ApiKey
from lamina.store.database import (
    MAX_NAME,
    Group,
    Row,
    Steps,
    clean,
    columns_of,
    insert,
    one_row,
    read,
    read_any_owner,
    write,
)
from lamina.store.schema import read_row

COLUMNS = columns_of(ApiKey)
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


class Keys(Group):
    async def add(
        self,
        owner: str,
        name: str,
        *,
        scopes: Sequence[str],
        rate: int = 0,
        tokens: int = 0,
        expires: float | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key of this owner, and its text, which cannot be shown again."""
        clean(name, "field.key_name", MAX_NAME)
        if owner.startswith("@"):
            raise InputError("key.reserved_owner", owner=format_value(owner))
        key = ApiKey(owner, secrets.token_hex(8), name, tuple(scopes), rate, tokens, self._clock(), expires)
        text = key_text(key.key_id)
        await self._insert(owner, key, proof_hash(key_proof(text)))
        return key, text

    @write
    def _insert(self, owner: str, key: ApiKey, key_hash: str) -> Steps[None]:
        values = [" ".join(key.scopes) if name == "scopes" else getattr(key, name) for name in COLUMNS.split(", ")]
        yield from insert("api_key", f"{COLUMNS}, hash", [(*values, key_hash)])

    @read_any_owner
    def find(self, key_id: str, day: str) -> Steps[tuple[ApiKey, str, int] | None]:
        """The key of this id, of any owner, with its hash and the tokens that it used on this day."""
        rows = yield f"SELECT {COLUMNS}, hash FROM api_key WHERE key_id = ?", (key_id,)
        if not rows:
            return None
        key = key_of(rows[0][:-1])
        used = yield (
            "SELECT tokens FROM key_use WHERE owner = ? AND key_id = ? AND day = ?",
            (key.owner, key_id, day),
        )
        return key, str(rows[0][-1]), int(used[0][0]) if used else 0

    @read_any_owner
    def any(self) -> Steps[bool]:
        """Whether anybody has a key that can be used."""
        rows = yield (
            "SELECT 1 FROM api_key WHERE revoked IS NULL AND (expires IS NULL OR expires > ?) LIMIT 1",
            (self._clock(),),
        )
        return bool(rows)

    @read
    def list(self, owner: str) -> Steps[Sequence[ApiKey]]:
        rows = yield f"SELECT {COLUMNS} FROM api_key WHERE owner = ? ORDER BY created, key_id", (owner,)
        return [key_of(row) for row in rows]

    @write
    def revoke(self, owner: str, key_id: str) -> Steps[ApiKey]:
        """The key opens nothing any more; that it was there stays visible."""
        rows = yield (
            f"UPDATE api_key SET revoked = COALESCE(revoked, ?) WHERE owner = ? AND key_id = ? RETURNING {COLUMNS}",
            (self._clock(), owner, key_id),
        )
        return key_of(one_row(rows, "key.not_found", key_id))

    @write
    def spend(self, owner: str, key_id: str, day: str, *, requests: int, tokens: int) -> Steps[int]:
        """Add to what a key used on a day; returns all its tokens of the day, those of other processes too."""
        now = self._clock()
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
