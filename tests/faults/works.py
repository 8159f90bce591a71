"""What a child of the nursery can be told to do. What it will need is loaded here, before it is born."""

from importlib import import_module

from tests.faults.chats import chats, check, go_on
from tests.faults.failpoints import jobs, prepare, turns
from tests.faults.nursery import Body
from tests.faults.others import lay, look, others

for name in ("tools.calls", "memory.recall", "providers.embeddings", "store.postgres"):
    import_module(f"lamina.{name}")

WORKS: dict[str, Body] = {
    "chats": chats,
    "check": check,
    "go_on": go_on,
    "prepare": prepare,
    "turns": turns,
    "jobs": jobs,
    "lay": lay,
    "others": others,
    "look": look,
}
