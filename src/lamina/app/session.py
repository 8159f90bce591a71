"""One session as an object: what `App` does with an owner and a session's id, without saying them each time."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Unpack

from lamina.assembly.request import Words
from lamina.engine.compaction import CompactionResult
from lamina.engine.handle import TurnHandle
from lamina.ports import Ask
from lamina.records import Session, SessionChanges, StoredMessage, TurnOptions
from lamina.types import Context, TurnEvent

if TYPE_CHECKING:
    from lamina.app.app import App


class SessionHandle:
    """A session of one owner: `session = await app.session("ann")`, `async for event in session.ask("…")`.

    `record` is its row in the store as it was read last; everything else is asked of the store each time.
    """

    def __init__(self, app: "App", record: Session) -> None:
        self._app, self.record = app, record

    @property
    def owner(self) -> str:
        return self.record.owner

    @property
    def session_id(self) -> str:
        return self.record.session_id

    def ask(
        self, user: Words, *, key: str = "", ask: Ask | None = None, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[TurnEvent]:
        """Say something and read what comes; `lamina.events` has the events. Leaving does not end the turn.

        The same `key` again is the same turn. `ask` is called for a yes before a tool runs that needs one.
        """
        return self._app.run(self.owner, self.session_id, user, key=key, ask=ask, **options)

    async def start(
        self, user: Words, *, key: str = "", ask: Ask | None = None, **options: Unpack[TurnOptions]
    ) -> TurnHandle:
        """The same for those who do not read along: returns as soon as the words are stored."""
        return await self._app.start(self.owner, self.session_id, user, key=key, ask=ask, **options)

    async def context(self, user: Words, **options: Unpack[TurnOptions]) -> Context:
        """What the model would see if this were said now. Nothing is sent and nothing changes."""
        return await self._app.context(self.owner, self.session_id, user, **options)

    async def messages(self) -> Sequence[StoredMessage]:
        """All of its messages, in their order."""
        return await self._app.store.messages.list(self.owner, self.session_id)

    async def collect(self, message_id: str, on: bool = True) -> None:
        """Keep this answer at hand for other sessions; or, with `on=False`, no longer."""
        await self._app.collect(self.owner, message_id, on)

    async def branch(self, seq: int | None = None, *, title: str | None = None) -> "SessionHandle":
        """A new session with the messages up to the number `seq`, or all of them; this one stays as it is."""
        last = (await self.refresh()).last_seq if seq is None else seq
        made = await self._app.store.sessions.branch(self.owner, self.session_id, last, title=title)
        return SessionHandle(self._app, made)

    async def compact(self) -> CompactionResult:
        """Fold all but the newest turn into a summary; what would free too little is an error."""
        return await self._app.compact(self.owner, self.session_id)

    async def update(self, **changes: Unpack[SessionChanges]) -> Session:
        """Change its title, scenario, app, mode, skill, phase or meta."""
        self.record = await self._app.store.sessions.update(self.owner, self.session_id, **changes)
        return self.record

    async def refresh(self) -> Session:
        """Its row as it is now."""
        self.record = await self._app.store.sessions.get(self.owner, self.session_id)
        return self.record

    async def end(self) -> Session:
        """It is over: it is summarised in the background, unless memory is switched off."""
        self.record = await self._app.end_session(self.owner, self.session_id)
        return self.record

    async def delete(self) -> None:
        """With its messages and turns; memories stay."""
        await self._app.store.sessions.delete(self.owner, self.session_id)

    def __repr__(self) -> str:
        return f"SessionHandle({self.owner!r}, {self.session_id!r})"
