"""Keys of the gateway, over both stores: made, found by their id alone, revoked, used up; never exported."""

import asyncio

import pytest

from lamina.errors import InputError, NotFoundError, OwnerError
from lamina.store.keys import key_proof, proof_hash
from lamina.store.store import Store, open_store

DAY = "2026-11-15"


async def test_a_key_is_found_by_its_id_alone_and_its_text_is_nowhere(store: Store) -> None:
    key, text = await store.keys.add("ann", "laptop", scopes=("chat", "read"), rate=60, tokens=1_000, expires=9e9)
    found = await store.keys.find(key.key_id, DAY)
    assert found == (key, proof_hash(key_proof(text)), 0)
    assert text.startswith(f"lam_{key.key_id}_")
    assert len(text) > 60
    assert await store.keys.find("0" * 16, DAY) is None
    assert await store.keys.list("ann") == [key]
    assert await store.keys.list("bo") == []
    lines = "\n".join([line async for line in store.admin.export()])
    assert key.key_id not in lines
    assert text not in lines


async def test_neither_the_store_tells_the_cookie_nor_the_cookie_the_key(store: Store) -> None:
    _, text = await store.keys.add("ann", "x", scopes=("chat",))
    proof, hashed = key_proof(text), proof_hash(key_proof(text))
    assert len({text, proof, hashed}) == 3
    assert text.split("_", 2)[2] not in proof + hashed


async def test_a_key_is_revoked_by_its_owner_alone_and_stays_so(store: Store) -> None:
    key, _ = await store.keys.add("ann", "x", scopes=("chat",))
    assert await store.keys.any()
    with pytest.raises(NotFoundError):
        await store.keys.revoke("bo", key.key_id)
    gone = await store.keys.revoke("ann", key.key_id)
    assert gone.revoked is not None
    assert not gone.usable(0)
    assert (await store.keys.revoke("ann", key.key_id)).revoked == gone.revoked
    assert not await store.keys.any()


async def test_a_key_expires(store: Store) -> None:
    key, _ = await store.keys.add("ann", "x", scopes=("chat",), expires=1.0)
    assert key.usable(0.5)
    assert not key.usable(1.0)
    assert not await store.keys.any()


async def test_uses_of_several_processes_add_up(where: str) -> None:
    async with open_store(where) as store:
        key, _ = await store.keys.add("ann", "x", scopes=("chat",))
        many = [store.keys.spend("ann", key.key_id, DAY, requests=1, tokens=n) for n in range(20)]
        totals = await asyncio.gather(*many)
        assert max(totals) == sum(range(20))
        assert await store.keys.spend("ann", key.key_id, "2026-11-16", requests=1, tokens=5) == 5
        found = await store.keys.find(key.key_id, DAY)
        assert found is not None
        assert found[2] == sum(range(20))
        assert found[0].used is not None


async def test_nobody_gets_a_key_for_a_name_of_laminas_own(store: Store) -> None:
    with pytest.raises(InputError, match="reserved"):
        await store.keys.add("@shared", "x", scopes=("chat",))
    with pytest.raises(OwnerError):
        await store.keys.add("", "x", scopes=("chat",))
