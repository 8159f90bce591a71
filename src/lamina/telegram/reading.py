"""What an update says: who, where, to whom, which words and pictures. Pure: nothing is fetched, stored or answered."""

from dataclasses import dataclass

from aiogram.types import Message, MessageEntity, Update, User

from lamina.telegram.line import Place
from lamina.telegram.say import COMMANDS

KNOWN = {*COMMANDS, "start"}
"""Commands that are ours in a group too, where other bots may have theirs."""
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose chat it is: a person in a topic of a chat with one bot."""

    bot: int
    chat: int
    topic: int
    person: int


@dataclass(frozen=True, slots=True)
class Said:
    """A message, as far as the bot is concerned."""

    update: int
    number: int
    """Of the message: it grows within a chat, which an update's does not after a quiet week."""
    scope: Scope
    place: Place
    lang: str
    addressed: bool
    """Is it for the bot? In a group only what is a command, a mention of it or a reply to it."""
    text: str = ""
    command: str = ""
    rest: str = ""
    """What follows a command."""
    pictures: tuple[str, ...] = ()
    """File ids."""
    album: str = ""
    other: bool = False
    """Something in it cannot be understood, such as a voice message."""
    too_large: bool = False
    reply_to: int = 0
    """The number of the bot's message that it replies to."""
    replies_to_other: bool = False
    """It replies to a message of somebody else."""


def read(update: Update, me: User, most: int) -> Said | None:
    """None for what is no message of a person."""
    message = update.message
    if message is None or message.from_user is None or message.from_user.is_bot or message.sender_chat:
        return None
    person = message.from_user
    topic = (message.message_thread_id or 0) if message.is_topic_message else 0
    group = message.chat.type != "private"
    words, marks = message.text or message.caption or "", message.entities or message.caption_entities or []
    command, rest, bot = _command(words, marks)
    ours = bot in ("", (me.username or "").lower())
    words, mentioned = _without_mention(words, marks, me)
    replied = message.reply_to_message
    to_me = bool(replied and replied.from_user and replied.from_user.id == me.id)
    in_topic = bool(replied and replied.forum_topic_created)  # what Telegram adds to every message of a topic
    pictures, too_large = _pictures(message, most)
    return Said(
        update=update.update_id,
        number=message.message_id,
        scope=Scope(me.id, message.chat.id, topic, person.id),
        place=Place(message.chat.id, topic, group, message.message_id),
        lang="zh" if (person.language_code or "").lower().startswith("zh") else "en",
        addressed=not group or (ours and (command in KNOWN or bool(bot) or to_me)) or mentioned,
        text=words.strip(),
        command=command if ours else "",
        rest=rest,
        pictures=pictures,
        album=message.media_group_id or "",
        other=not (words or pictures or too_large or _silent(message)),
        too_large=too_large,
        reply_to=replied.message_id if replied and to_me else 0,
        replies_to_other=bool(replied) and not to_me and not in_topic,
    )  # fmt: skip


def _command(words: str, marks: list[MessageEntity]) -> tuple[str, str, str]:
    """A command at the beginning, what follows it, and the bot that it names, if any."""
    if not any(mark.type == "bot_command" and mark.offset == 0 for mark in marks):
        return "", "", ""
    first, _, rest = words.partition(" ") if " " in words.split("\n")[0] else words.partition("\n")
    name, _, bot = first.removeprefix("/").partition("@")
    return name.lower(), rest.strip(), bot.lower()


def _without_mention(words: str, marks: list[MessageEntity], me: User) -> tuple[str, bool]:
    """The words without the bot's name at their front or end, and whether it is named in them."""
    name = f"@{me.username or ''}".lower()
    found = [
        mark.extract_from(words)
        for mark in marks
        if (mark.type == "mention" and mark.extract_from(words).lower() == name)
        or (mark.type == "text_mention" and mark.user and mark.user.id == me.id)
    ]
    if not found:
        return words, False
    bare = words.strip()
    return bare.removeprefix(found[0]).removesuffix(found[-1]).strip(" ,:，：\n"), True


def _pictures(message: Message, most: int) -> tuple[tuple[str, ...], bool]:
    """The largest size that is not too large; an image that was sent as a file counts too."""
    if message.photo:
        fitting = [size for size in message.photo if (size.file_size or 0) <= most]
        largest = max(fitting, key=lambda size: size.width * size.height, default=None)
        return ((largest.file_id,), False) if largest else ((), True)
    file = message.document
    if file and file.mime_type in PICTURES:
        return ((), True) if (file.file_size or 0) > most else ((file.file_id,), False)
    return (), False


def _silent(message: Message) -> bool:
    """What happens in a chat without anybody saying anything: members, titles, pins."""
    return message.content_type not in (
        "voice", "audio", "video", "video_note", "animation", "sticker", "document", "contact", "location", "venue",
        "poll", "dice", "story", "game", "paid_media", "checklist",
    )  # fmt: skip
