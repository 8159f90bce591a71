"""Which session a message belongs to, and which answers were delivered as which messages, kept in the sessions.

Each scope has a first session with a name made of the scope; it lists where later ones begin. So a restart finds
everything in the store, and an update that comes a second time finds the session that it was in the first time.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lamina.app.app import App
from lamina.errors import NotFoundError
from lamina.records import Session, TurnRecord
from lamina.telegram.line import Place
from lamina.telegram.reading import Said, Scope

STARTS, LISTED, OPEN, ANSWERS = "telegram_starts", "telegram_listed", "telegram_open", "telegram_answers"
UP_TO = "telegram_up_to"
"""Names in a session's `runtime`, which no model sees. Each has one writer, so that none undoes another."""
MOST_STARTS, MOST_ANSWERS, LOOKED_AT = 500, 200, 50
TITLE = 60


def session_id(scope: Scope, start: int = 0) -> str:
    name = f"telegram {scope.bot} {scope.chat} {scope.topic} {scope.person} {start}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class Threads:
    """The sessions of one bot's scopes."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def current(self, owner: str, said: Said) -> Session:
        """The session that was the current one when this was said; begun where there is none."""
        starts = self._starts(await self._found(owner, session_id(said.scope)))
        start = max((start for start in starts if start <= said.number), default=0)
        return await self._sure(
            owner, session_id(said.scope, start), " ".join(said.text[: 100 * TITLE].split())[:TITLE]
        )

    async def begin(self, owner: str, said: Said) -> Session:
        """A new session from this message on; the one before it is over, and will be summarised."""
        root = await self._sure(owner, session_id(said.scope))
        starts = self._starts(root)
        before = await self._found(owner, session_id(said.scope, max(starts, default=0)))
        if said.number in starts:
            return await self._sure(owner, session_id(said.scope, said.number))
        if before and before.last_seq:
            await self._app.end_session(owner, before.session_id)
        mode = before.mode if before else self._app.settings.mode
        made = await self._app.new_session(owner, session_id=session_id(said.scope, said.number), mode=mode)
        kept = [*starts, said.number][-MOST_STARTS:]
        await self._app.store.sessions.update(owner, root.session_id, runtime={STARTS: kept})
        return made

    async def opened(self, owner: str, session: str, turn_id: str, scope: Scope, place: Place, lang: str) -> None:
        """An answer is on its way: whoever finds this after a restart has to tell how it ended."""
        note = {"turn": turn_id, "bot": scope.bot, "chat": place.chat, "topic": place.topic, "group": place.group,
                "reply_to": place.reply_to, "lang": lang}  # fmt: skip
        await self._app.store.sessions.update(owner, session, runtime={OPEN: note})

    async def delivered(self, turn: TurnRecord, numbers: Sequence[int]) -> None:
        """The newest answers are listed; of those that leave the list the place of the last one is kept, and all up to
        there count as delivered."""
        found = await self._app.store.sessions.get(turn.owner, turn.session_id)
        new = ((number, turn.answer_message_id, turn.user_seq) for number in numbers)
        answers = [*self._answers(found), *new]
        left, kept = answers[:-MOST_ANSWERS], answers[-MOST_ANSWERS:]
        up_to = max(found.runtime.get(UP_TO) or 0, *(place for _, _, place in left), 0)
        known = {ANSWERS: [list(one) for one in kept], UP_TO: up_to or None, OPEN: None}
        await self._app.store.sessions.update(turn.owner, turn.session_id, runtime=known)

    async def was_delivered(self, turn: TurnRecord) -> bool:
        found = await self._app.store.sessions.get(turn.owner, turn.session_id)
        if turn.user_seq <= (found.runtime.get(UP_TO) or 0):
            return True
        return any(answer == turn.answer_message_id for _, answer, _ in self._answers(found))

    async def answer_of(self, owner: str, said: Said) -> str:
        """The id of the answer that was delivered as the message that is replied to; empty where nobody knows."""
        starts = self._starts(await self._found(owner, session_id(said.scope)))
        for start in [*sorted(starts, reverse=True)[:LOOKED_AT], 0]:
            session = await self._found(owner, session_id(said.scope, start))
            for number, answer, _ in self._answers(session):
                if number == said.reply_to:
                    return answer
        return ""

    async def listed(self, owner: str, said: Said, ids: Sequence[str] | None = None) -> Sequence[str]:
        """The memories as somebody saw them last, so that a number means the same one, also the second time."""
        root = await self._sure(owner, session_id(said.scope))
        if ids is None:
            return list(root.runtime.get(LISTED) or ())
        await self._app.store.sessions.update(owner, root.session_id, runtime={LISTED: list(ids)})
        return ids

    async def unfinished(self, owner: str, bot: int) -> AsyncIterator[tuple[Place, str, str]]:
        """Answers of this bot that were on their way when it ended: place, turn and language."""
        for session in await self._app.store.sessions.list(owner, limit=LOOKED_AT):
            note: dict[str, Any] = session.runtime.get(OPEN) or {}
            if note.get("bot") == bot:
                place = Place(note["chat"], note["topic"], note["group"], note["reply_to"])
                yield place, note["turn"], note["lang"]

    async def _found(self, owner: str, name: str) -> Session | None:
        try:
            return await self._app.store.sessions.get(owner, name)
        except NotFoundError:
            return None

    async def _sure(self, owner: str, name: str, title: str = "") -> Session:
        found = await self._found(owner, name)
        if found is None:
            return await self._app.new_session(owner, session_id=name, title=title)
        if title and not found.title:
            return await self._app.store.sessions.update(owner, name, title=title)
        return found

    @staticmethod
    def _starts(root: Session | None) -> list[int]:
        return list(root.runtime.get(STARTS) or ()) if root else []

    @staticmethod
    def _answers(session: Session | None) -> list[tuple[int, str, int]]:
        """Each with the number of its message and the place of its question, 0 where an older lamina kept none."""
        rows: list[Any] = list(session.runtime.get(ANSWERS) or ()) if session else []
        return [(int(number), str(answer), int(place[0]) if place else 0) for number, answer, *place in rows]
