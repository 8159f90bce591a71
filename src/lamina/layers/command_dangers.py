"""What nobody means: commands that destroy the system or a home folder, stop the machine, run what was just downloaded,
or read lamina's own environment. These are blocked.

Pure. It also looks into commands that could not be read with certainty, but only names what is plainly there.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from lamina.layers.shell_words import Part, Script, Word, read_script

_DEPTH = 4
_SYSTEM = re.compile(
    r"/(?:\*|\.\*|(?:bin|boot|dev|etc|home|lib|lib32|lib64|opt|proc|root|run|sbin|srv|sys|usr|var|mnt|media|Users|System|"
    r"Library|Applications|Volumes|private)(?:/\*)?|(?:home|Users)/[^/*]+(?:/\*)?|root/\*|usr/(?:bin|lib|local|sbin|share))?"
)
_HOME = re.compile(r"(?:~[\w.-]*|\$HOME|\$\{HOME\}|~\+|\$\{HOME:\?\})(?:/|/\*|/\.\*|/\.)?")
_DEVICE = re.compile(
    r"/dev/(?:r?disk\d|[shv]d[a-z]|xvd[a-z]|nvme\d|mmcblk\d|md\d|dm-|mapper/|loop\d|k?mem\b|port\b|nbd\d)"
)
_INSIDE = ("environ", "mem", "auxv", "syscall", "stack", "kcore")
_PROCESS = re.compile(r"/proc/(?:[^/\s]+/(?:task/[^/\s]+/)?)?([^/\s'\"]+)")
_TRIGGER = re.compile(r"/proc/sysrq-trigger|/sys/power/state")
_BOMB = re.compile(r"(?P<name>[\w:.]+)\s*\(\s*\)\s*\{[^}]*(?P=name)\s*\|\s*(?P=name)\s*&")
_SHELLS = r"(?:ba|z|da|k|c|fi|a)?sh"
_DOWNLOADS = frozenset({"curl", "wget", "fetch", "aria2c", "lwp-download"})
_FETCHED = re.compile(
    rf"(?:^|[\s;&|(])(?:{_SHELLS}|eval|source|\.|python[\d.]*|perl|ruby|node)\s[^;|&\n]*(?:<\(|\$\(|`)\s*(?:sudo\s+)?(?:curl|wget)\b"
)
_INNER = re.compile(r"\$\(([^()]*)\)|`([^`]*)`|[<>]\(([^()]*)\)")
_KEYWORDS = frozenset(["if", "then", "else", "elif", "while", "until", "do", "time", "!", "{", "coproc"])
_WRAPPERS: dict[str, str] = {
    "sudo": "CDghpRrtTUu", "doas": "Cu", "env": "uCS", "nohup": "", "nice": "n", "ionice": "cnp", "exec": "a",
    "command": "",
    "builtin": "", "setsid": "", "stdbuf": "ioe", "timeout": "ks", "busybox": "", "xargs": "IndPLsa", "chroot": "",
    "time": "of",
    "strace": "eop", "unshare": "", "pkexec": "u", "toybox": "",
}  # fmt: skip
"""Programs that run the words behind them, and their letters that take a value."""
_STOPS = frozenset({"shutdown", "reboot", "halt", "poweroff"})
_ONTO_DEVICES = frozenset(
    {"cp", "tee", "shred", "mv", "truncate", "wipefs", "badblocks", "blkdiscard", "sgdisk", "ln", "rm"}
)
_MOSTLY_WORDS = frozenset({"echo", "printf", "git"})
"""Programs to which a quoted word is mostly a text: one about a danger is none."""
_FIRST_WORD = frozenset({"grep", "egrep", "fgrep", "rg", "sed"})
"""Programs whose first operand, or the one behind -e, is a text and whose others are files."""


def destruction(command: str, script: Script, depth: int = 0) -> str:
    """Why a command must never run, in words; empty when nothing of that is plainly in it."""
    if script.unclear and _BOMB.search(command):
        return "it starts itself again and again until the machine stands still (a fork bomb)"
    if script.unclear and _FETCHED.search(command):
        return "it runs what it has just downloaded, unseen"
    found = _piped_download(script.parts) or next(filter(None, (_of_part(part, depth) for part in script.parts)), "")
    if found or depth >= _DEPTH:
        return found
    for groups in _INNER.findall(command) if script.unclear else ():
        inner = "".join(groups)
        found = destruction(inner, read_script(inner), depth + 1)
        if found:
            return found
    return ""


def _of_part(part: Part, depth: int) -> str:
    for redirect in part.redirects:
        target = redirect.target.text
        if ">" in redirect.operator and (_DEVICE.match(target) or _TRIGGER.fullmatch(target)):
            return f"> {target} writes onto a device"
        if _inside_process(target):
            return f"{target} holds the secrets of a running program"
    words = _unwrapped(list(part.words))
    if not words:
        return ""
    name = posixpath.basename(words[0].text)
    operands = [word for word in words[1:] if not word.text.startswith("-")]
    options = [word.text for word in words[1:] if word.text.startswith("-")]
    return (
        _script(name, words, depth)
        or _removes(name, options, operands)
        or _devices(name, operands)
        or _stops(name, words)
        or _reads_secrets(name, words)
    )


def _unwrapped(words: list[Word]) -> list[Word]:
    """The command that sudo, env, nohup and the like would run."""
    for _ in range(8):
        while words and (words[0].text in _KEYWORDS or re.match(r"[A-Za-z_]\w*\+?=", words[0].raw)):
            words = words[1:]
        name = posixpath.basename(words[0].text) if words else ""
        if name not in _WRAPPERS or len(words) == 1:
            return words
        words = words[1:]
        while words and words[0].text.startswith("-") and len(words) > 1:
            takes = len(words[0].text) == 2 and words[0].text[1] in _WRAPPERS[name]
            words = words[2:] if takes else words[1:]
        if (
            name in ("timeout", "chroot", "nice")
            and words
            and (name == "chroot" or re.match(r"[\d.]+\w?$", words[0].text))
        ):
            words = words[1:]
    return words


def _script(name: str, words: Sequence[Word], depth: int) -> str:
    """A command inside a command: sh -c "…", eval "…"."""
    if depth >= _DEPTH:
        return ""
    inner = ""
    if name == "eval":
        inner = " ".join(word.text for word in words[1:])
    elif re.fullmatch(_SHELLS, name) or name == "su":
        at = next((n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word.text)), 0)
        inner = words[at + 1].text if at and at + 1 < len(words) else ""
    return destruction(inner, read_script(inner), depth + 1) if inner.strip() else ""


def _is_system(word: Word) -> bool:
    text = word.text
    if _HOME.fullmatch(text) and (word.tilde or "$" in text):
        return True
    if not text.startswith("/"):
        return False
    plain = "/" + posixpath.normpath(text).lstrip("/")
    return bool(_SYSTEM.fullmatch(plain))


def _removes(name: str, options: Sequence[str], operands: Sequence[Word]) -> str:
    deep = any(
        re.match(r"-[A-Za-z]*[rR]", each) or ("--recursive".startswith(each) and len(each) > 4) for each in options
    )
    hit = next((word.text for word in operands if _is_system(word)), "")
    if name == "rm" and "--no-preserve-root" in options:
        return "rm --no-preserve-root: is only ever used to remove everything"
    if name == "rm" and deep and hit:
        return f"rm: removes all of {hit}"
    if name in ("chmod", "chown", "chgrp") and deep and hit:
        return f"{name}: changes all of {hit}"
    if name == "mv" and hit and any(_is_system(word) for word in operands[:-1]):
        return f"mv: moves {hit} away"
    kills = {"-delete", "-exec", "-execdir", "-ok"} & set(options)
    words = [posixpath.basename(word.text) for word in operands]
    if name == "find" and hit and ("-delete" in kills or (kills and {"rm", "shred", "unlink"} & set(words))):
        return f"find: removes all of {hit}"
    return ""


def _devices(name: str, operands: Sequence[Word]) -> str:
    device = next((word.text for word in operands if _DEVICE.match(word.text)), "")
    if device and (name.startswith(("mkfs", "mke2fs", "mkswap", "newfs")) or name in _ONTO_DEVICES):
        return f"{name}: overwrites {device}"
    target = next((word.text[3:] for word in operands if word.text.startswith("of=")), "")
    return f"dd: overwrites {target}" if name == "dd" and _DEVICE.match(target) else ""


def _stops(name: str, words: Sequence[Word]) -> str:
    texts = [word.text for word in words[1:]]
    if name in _STOPS and not {"--help", "--version", "-c"} & set(texts):
        return f"{name}: stops the machine"
    if name in ("init", "telinit") and texts in (["0"], ["6"]):
        return f"{name}: stops the machine"
    if name == "systemctl" and {"poweroff", "reboot", "halt", "kexec", "emergency", "rescue"} & set(texts):
        return "systemctl: stops the machine"
    if name == "kill" and len(texts) > 1 and texts[-1] == "-1":
        return "kill: ends every process"
    return ""


def _inside_process(text: str) -> bool:
    """Whether a path shows the memory or the environment of a running program, also by a glob."""
    names = [found[1] for found in _PROCESS.finditer(posixpath.normpath(text).replace("//", "/"))]
    return any(fnmatchcase(inside, name) for name in names for inside in _INSIDE if name.strip("*?"))


def _reads_secrets(name: str, words: Sequence[Word]) -> str:
    found = next((text for text in _files(name, words[1:]) if _inside_process(text)), "")
    return f"{name}: {found} holds the secrets of a running program" if found else ""


def _files(name: str, words: Sequence[Word]) -> list[str]:
    """The words that may be files: not those that the program takes for a text."""
    if name in _MOSTLY_WORDS:
        return [word.text for word in words if not word.quoted]
    if name not in _FIRST_WORD:
        return [word.text for word in words]
    given = [at for at, word in enumerate(words) if re.fullmatch(r"-[A-Za-z]*e|--regexp|--expression", word.text)]
    first = next((at for at, word in enumerate(words) if not word.text.startswith("-")), -1)
    texts = {at + 1 for at in given} or {first}
    return [word.text for at, word in enumerate(words) if at not in texts or not word.quoted]


def _piped_download(parts: Sequence[Part]) -> str:
    for pipeline in _pipelines(parts):
        downloads = False
        for part in pipeline:
            words = _unwrapped(list(part.words))
            name = posixpath.basename(words[0].text) if words else ""
            if downloads and _runs_input(name, [word.text for word in words[1:]]):
                return f"{name}: runs what was just downloaded, unseen"
            downloads = downloads or name in _DOWNLOADS
    return ""


def _pipelines(parts: Sequence[Part]) -> Iterator[list[Part]]:
    pipeline: list[Part] = []
    for part in parts:
        if part.joint != "|" and pipeline:
            yield pipeline
            pipeline = []
        pipeline.append(part)
    if pipeline:
        yield pipeline


def _runs_input(name: str, texts: Sequence[str]) -> bool:
    """Whether a program runs what it reads."""
    if re.fullmatch(_SHELLS, name):
        return not texts or (texts[0].startswith("-") and "c" not in texts[0]) or texts[0] == "-"
    return bool(re.fullmatch(r"python[\d.]*|perl|ruby|node|php|lua", name)) and (not texts or texts[0] == "-")
