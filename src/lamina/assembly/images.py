"""What a picture costs: OpenAI's tile rule, with the size read from the picture's own first bytes."""

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from typing import Any

BASE, TILE = 85, 170
UNKNOWN = (1024, 1024)
"""The size assumed for a picture that is only a link: four tiles, 765 tokens."""


def image_tokens(image: Mapping[str, Any]) -> int:
    """Tokens of one picture: 85 at low detail, else 85 and 170 for each tile of 512 pixels."""
    if image.get("detail") == "low":
        return BASE
    width, height = data_url_size(image["url"]) or UNKNOWN
    fit = min(1.0, 2048 / max(width, height))
    fit *= min(1.0, 768 / (min(width, height) * fit))
    tiles = math.ceil(width * fit / 512) * math.ceil(height * fit / 512)
    return BASE + TILE * max(1, tiles)


def data_url_size(url: str) -> tuple[int, int] | None:
    """Width and height of the picture in a `data:` URL, or None where that cannot be told."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        raw = base64.b64decode(data[:87_380])  # 64 KiB: the size stands near the start
    except (binascii.Error, ValueError):
        return None
    size = _size(raw)
    return size if size and min(size) > 0 else None


def _size(raw: bytes) -> tuple[int, int] | None:
    if raw.startswith(b"\x89PNG\r\n\x1a\n") and len(raw) >= 24:
        return struct.unpack(">II", raw[16:24])
    if raw[:6] in (b"GIF87a", b"GIF89a") and len(raw) >= 10:
        return struct.unpack("<HH", raw[6:10])
    if raw[:4] == b"RIFF" and raw[8:16] == b"WEBPVP8X" and len(raw) >= 30:
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if raw.startswith(b"\xff\xd8"):
        return _jpeg_size(raw)
    return None


def _jpeg_size(raw: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(raw) and raw[at] == 0xFF:
        marker = raw[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    return None
