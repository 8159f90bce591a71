"""Whether a text holds what must not be remembered: keys, passwords, card numbers, tokens.

Pure. It errs on the side of yes: a fact that is not kept can be told again, a secret that was kept cannot be untold.
"""

import math
import re
from collections import Counter

from lamina.memory.sentences import fold

_KNOWN = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|glpat|xox[abprs]|hf|npm|pypi|shpat|AIza|AKIA|ASIA|ya29|dop_v1"
    r"|SG)[-_.]?[A-Za-z0-9_\-]{12,}"
    r"|\bgithub_pat_\w{20,}|\beyJ[\w-]{8,}\.[\w-]{8,}|-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)"
    r"|\bBearer\s+[\w\-.=+/]{12,}|\bssh-(?:rsa|ed25519)\s+\S{20,}|://[^\s/:@]+:[^\s/@]+@"
)
_NAMED = re.compile(
    r"\b(?:pass(?:word|code|phrase|wd)?s?|pwd|pin(?: code| number)?|secret(?: key)?|api[ _-]?keys?|access[ _-]?(?:key"
    r"|token)s?|"
    r"auth(?:entication|orization)? ?(?:code|token)|tokens?|private key|seed phrase|recovery (?:code|phrase|key)s?|otp|"
    r"one[- ]time (?:code|password)|verification code|cvv2?|cvc|security code|login|credentials?|license key|"
    r"social security|ssn|passport (?:number|no)|account number|routing number|iban)\b"
    r"[^.!?\n]{0,40}?(?:\bis\b|\bare\b|\bwas\b|=|:|：|\bto\b|\bof\b)\s*\S",
    re.IGNORECASE,
)
_NAMED_CHINESE = re.compile(
    r"(?:密码|口令|密钥|秘钥|私钥|令牌|验证码|校验码|安全码|助记词|暗号|支付密码|身份证号?码?|护照号码?|社保号码?"
    r"|银行卡号?|信用卡号?|卡号|账号密码|"
    r"api ?key|apikey|token|secret|passw(?:or)?d|pin码|pin)[^。！？\n]{0,12}?(?:是|为|：|:|=|改成|设成|设为|换成"
    r"|叫)\s*\S"
    r"|(?:密码|口令|验证码|卡号|密钥|身份证号?码?)[^\w]{0,3}[A-Za-z0-9]{4,}",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"(?<![\w.])\d(?:[ -]?\d){11,22}(?!\w|\.\d)")
_CHINESE_ID = re.compile(r"(?<!\d)\d{6}(?:19|20)\d{2}(?:0\d|1[0-2])(?:[0-2]\d|3[01])\d{3}[\dXx](?!\w)")
_SSN = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")
_WORD = re.compile(r"[A-Za-z0-9_\-+/=.]{20,}")


def has_secret(text: str) -> bool:
    """Whether anything in it looks like a credential, a card or an identity number."""
    text = fold(text)
    return bool(
        _KNOWN.search(text)
        or _NAMED.search(text)
        or _NAMED_CHINESE.search(text)
        or _CHINESE_ID.search(text)
        or _SSN.search(text)
        or any(_is_card(found[0]) for found in _DIGITS.finditer(text))
        or any(_is_random(found[0]) for found in _WORD.finditer(text))
    )


def _is_card(text: str) -> bool:
    """Luhn's check, which one in ten other long numbers passes as well."""
    digits = [int(char) for char in text if char.isdigit()]
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [d if n % 2 == 0 else d * 2 - 9 * (d > 4) for n, d in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0


def _is_random(word: str) -> bool:
    """Letters and digits mixed as no word mixes them."""
    if ("/" in word and "." in word) or not re.search(r"\d", word) or not re.search(r"[A-Za-z]", word):
        return False
    counts = Counter(word)
    entropy = -sum(n / len(word) * math.log2(n / len(word)) for n in counts.values())
    changes = len(re.findall(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", word))
    return entropy > 3.3 and changes >= 3
