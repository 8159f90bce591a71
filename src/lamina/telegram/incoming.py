"""What an update says: who, where, to whom, which words and pictures. Pure: nothing is fetched, stored or answered."""

from collections.abc import Sequence
from dataclasses import dataclass

from aiogram.types import Message, MessageEntity, Update, User

from lamina.text.messages import Phrase, Value

COMMANDS = ("new", "stop", "collect", "uncollect", "memory", "context", "mode", "phase", "help")
"""The menu, in this order."""
GROUP_COMMANDS = {*COMMANDS, "start"}
"""Commands that are ours in a group too, where other bots may have theirs."""
PICTURE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
UNSUPPORTED_TYPES = (
    "voice", "audio", "video", "video_note", "animation", "sticker", "document", "contact", "location", "venue",
    "poll", "dice", "story", "game", "paid_media", "checklist",
)  # fmt: skip
"""Contents that people send. All others are events of a chat, such as new members, titles and pins."""


def say(lang: str, code: str, /, **values: Value) -> str:
    """What the bot itself says, in the language of the person. Markdown, as the answers are."""
    return Phrase(code, **values).text(lang)


@dataclass(frozen=True, slots=True)
class ChatPlace:
    """Where a person writes and gets the answer."""

    chat: int
    topic: int = 0
    group: bool = False
    reply_to: int = 0


@dataclass(frozen=True, slots=True)
class ChatScope:
    """Whose conversation it is: a person in a topic of a chat with one bot."""

    bot: int
    chat: int
    topic: int
    person: int


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message, as far as the bot is concerned."""

    update_id: int
    message_id: int
    """It grows within a chat, which an update's does not after a quiet week."""
    scope: ChatScope
    place: ChatPlace
    lang: str
    addressed: bool
    """Is it for the bot? In a group only a command, a mention of it or a reply to it."""
    text: str
    command: str
    argument: str
    """What follows a command."""
    pictures: tuple[str, ...]
    """File ids."""
    too_large: bool
    album: str
    unsupported: bool
    """It is something that cannot be understood, such as a voice message."""
    reply_to: int
    """The bot's message that it replies to."""
    replies_to_other: bool
    """It replies to a message of somebody else."""


def read_update(update: Update, me: User, max_bytes: int) -> IncomingMessage | None:
    """None for anything but a message of a person."""
    message = update.message
    if message is None or message.from_user is None or message.from_user.is_bot or message.sender_chat:
        return None
    person, chat = message.from_user, message.chat
    topic = (message.message_thread_id or 0) if message.is_topic_message else 0
    group = chat.type != "private"
    words, entities = message.text or message.caption or "", message.entities or message.caption_entities or []
    command, argument, bot = _read_command(words, entities)
    ours = bot in ("", (me.username or "").lower())
    words, mentioned = _remove_mention(words, entities, me)
    replied = message.reply_to_message
    to_me = bool(replied and replied.from_user and replied.from_user.id == me.id)
    in_topic = bool(replied and replied.forum_topic_created)  # Telegram adds it to every message of a topic
    pictures, too_large = _find_pictures(message, max_bytes)
    return IncomingMessage(
        update_id=update.update_id,
        message_id=message.message_id,
        scope=ChatScope(me.id, chat.id, topic, person.id),
        place=ChatPlace(chat.id, topic, group, message.message_id),
        lang="zh" if (person.language_code or "").lower().startswith("zh") else "en",
        addressed=not group or (ours and (command in GROUP_COMMANDS or bool(bot) or to_me)) or mentioned,
        text=words.strip(),
        command=command if ours else "",
        argument=argument,
        pictures=pictures,
        too_large=too_large,
        album=message.media_group_id or "",
        unsupported=not (words or pictures or too_large) and message.content_type in UNSUPPORTED_TYPES,
        reply_to=replied.message_id if replied and to_me else 0,
        replies_to_other=bool(replied) and not to_me and not in_topic,
    )


def _read_command(words: str, entities: Sequence[MessageEntity]) -> tuple[str, str, str]:
    """A command at the beginning, what follows it, and the bot that it names, if any."""
    if not any(entity.type == "bot_command" and entity.offset == 0 for entity in entities):
        return "", "", ""
    first, *rest = words.split(maxsplit=1)
    name, _, bot = first.removeprefix("/").partition("@")
    return name.lower(), "".join(rest).strip(), bot.lower()


def _remove_mention(words: str, entities: Sequence[MessageEntity], me: User) -> tuple[str, bool]:
    """The words without the bot's name at their front or end, and whether it is named in them."""
    name = f"@{me.username or ''}".lower()
    mentions = [
        entity.extract_from(words)
        for entity in entities
        if (entity.type == "mention" and entity.extract_from(words).lower() == name)
        or (entity.type == "text_mention" and entity.user and entity.user.id == me.id)
    ]
    if not mentions:
        return words, False
    return words.strip().removeprefix(mentions[0]).removesuffix(mentions[-1]).strip(" ,:，：\n"), True


def _find_pictures(message: Message, max_bytes: int) -> tuple[tuple[str, ...], bool]:
    """The largest size that is not too large; an image that was sent as a file counts too."""
    if message.photo:
        fitting = [size for size in message.photo if (size.file_size or 0) <= max_bytes]
        largest = max(fitting, key=lambda size: size.width * size.height, default=None)
        return ((largest.file_id,), False) if largest else ((), True)
    file = message.document
    if file and file.mime_type in PICTURE_TYPES:
        return ((), True) if (file.file_size or 0) > max_bytes else ((file.file_id,), False)
    return (), False
