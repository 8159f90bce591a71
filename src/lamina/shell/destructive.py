"""Commands that are always blocked: they destroy the system or a home folder, stop the machine, run what was just
downloaded, or read the environment of a running program.

Pure and linear. It also checks commands that could not be read with certainty, but reports only what is plainly there.
"""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile

from lamina.shell.tokens import MAX_COMMAND_CHARS, Part, Script, Word, is_assignment, read_script
from lamina.text.messages import Phrase
from lamina.tools.closed_files import match_glob

_DEPTH, _MAX_INNER = 4, 50
_SYSTEM = frozenset(
    "/ /bin /boot /dev /etc /home /lib /lib32 /lib64 /opt /proc /root /run /sbin /srv /sys /usr /var /mnt /media "
    "/Users /System /Library /Applications /Volumes /private /usr/bin /usr/lib /usr/local /usr/sbin /usr/share".split()
)
_DEVICES = frozenset("disk rdisk sd hd vd xvd nvme mmcblk md dm- mapper/ loop mem kmem port nbd".split())
_PROCESS_FILES = frozenset("environ mem auxv syscall stack kcore".split())
_SHELLS = frozenset("sh bash zsh dash ksh csh fish ash".split())
_INTERPRETERS = frozenset("python python2 python3 perl ruby node php lua".split())
_RUNS_TEXT = _SHELLS | _INTERPRETERS | {"eval", "source", "."}
_DOWNLOADS = frozenset("curl wget fetch aria2c lwp-download".split())
_KEYWORDS = frozenset("if then else elif while until do time ! { coproc".split())
_WRAPPERS = {
    "sudo": "CDghpRrtTUu", "doas": "Cu", "env": "uCS", "nohup": "", "nice": "n", "ionice": "cnp", "exec": "a",
    "command": "", "builtin": "", "setsid": "", "stdbuf": "ioe", "timeout": "ks", "busybox": "", "xargs": "IndPLsa",
    "chroot": "", "time": "of", "strace": "eop", "unshare": "", "pkexec": "u", "toybox": "", "parallel": "j",
}  # fmt: skip
"""Programs that run the words after them, and their options with a value."""
_STOPS = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_ONTO_DEVICES = frozenset("cp tee shred mv truncate wipefs badblocks blkdiscard sgdisk ln rm".split())
Step = tuple[Part, list[Word]]  # a part, and its words without the programs that only run others
_FIRST_IS_TEXT = frozenset("grep egrep fgrep rg sed".split())


def why_destructive(script: Script, command: str, depth: int = 0, folder: Word | None = None) -> Phrase | None:
    """Why a command must never run; None when nothing destructive is plainly in it."""
    steps = [(part, _unwrap(list(part.words))) for part in script.parts]
    reasons = (_why_step(part, words, depth, at) for part, words, at in _in_context(steps, folder))
    found = _why_download(steps) or _why_fork_bomb(steps) or next(filter(None, reasons), None)
    if found or not script.unclear or depth >= _DEPTH:
        return found
    for outer, inner in islice(_inner_commands(command[:MAX_COMMAND_CHARS]), _MAX_INNER):
        words = inner.split(maxsplit=2)[:2]
        if _DOWNLOADS & set(words[: 2 if words[:1] == ["sudo"] else 1]) and outer in _RUNS_TEXT:
            return Phrase("danger.runs_download")
        found = found or _why_text(inner, depth, folder)
    return found


def _why_text(text: str, depth: int, folder: Word | None) -> Phrase | None:
    """Check an inner command. It is at most half as long as the outer one, so that all levels together stay linear."""
    if not text.strip() or depth >= _DEPTH or len(text) > MAX_COMMAND_CHARS >> (depth + 1):
        return None
    return why_destructive(read_script(text), text, depth + 1, folder)


def _in_context(steps: Sequence[Step], folder: Word | None) -> Iterator[tuple[Part, list[Word], Word | None]]:
    """Each part with what earlier parts give it: the words that are piped to xargs, and the folder of a cd."""
    before: list[Word] = []
    for part, words in steps:
        folder = None if ")" in part.joint else folder
        if any(word.text.endswith(("xargs", "parallel")) for word in part.words[:8]):
            piped = _program_of(before) if _is_piped(part) else ""
            if piped == "find":
                yield part, [*before, Word("-exec", "-exec"), *words], folder
            fed = [each.target for each in part.redirects if each.operator == "<<<"]
            fed += before[1:] if piped in ("echo", "printf", "ls", "yes") else []
            words += [replace(word, text=text) for word in fed for text in word.text.split()]
        yield part, words, None if part.joint.startswith("||") else folder
        if _program_of(words) in ("cd", "pushd"):
            home = [Word("~", "~", tilde=True)] if len(words) == 1 else []
            folder = next((_from_folder(word, folder) for word in words[1:] + home if word.text[:1] != "-"), None)
            folder = folder if folder and (folder.tilde or folder.text[:1] in ("/", "$")) else None
        before = words


def _from_folder(word: Word, folder: Word | None) -> Word:
    """A word relative to the folder of an earlier cd, where that is known."""
    if folder is None or word.tilde or word.text[:1] in ("/", "-", "$"):
        return word
    return replace(word, text=posixpath.join(folder.text, word.text), tilde=folder.tilde)


def _program_of(words: Sequence[Word]) -> str:
    return posixpath.basename(words[0].text) if words else ""


def _is_piped(part: Part) -> bool:
    return part.joint.strip("()\n") in ("|", "|&")


def _why_fork_bomb(steps: Sequence[Step]) -> Phrase | None:
    """Find a function that calls itself twice and leaves a call running, or pipes itself into itself."""
    for at, (_, words) in enumerate(steps[:-1]):
        is_named = _program_of(words) == "function" and len(words) > 1
        if not words or not (is_named or steps[at + 1][0].joint.startswith("()")):
            continue
        trace = f"{'x@'[is_named and words[-1].text == words[1].text and len(words) > 2]}"
        for follows, called in takewhile(lambda step: _program_of(step[0].words) != "}", steps[at + 1 : at + 12]):
            trace += follows.joint.strip("()") + "x@"[_program_of(called) == words[is_named].text]
        end = steps[at + trace.count("x") + trace.count("@") :][:1]
        trace = (trace + "".join(part.joint for part, _ in end)).replace("&&", "")
        if (trace.count("@") > 1 and "@&" in trace) or "@|@" in trace or "@|&@" in trace:
            return Phrase("danger.fork_bomb")
    return None


def _inner_commands(command: str) -> Iterator[tuple[str, str]]:
    """What is inside $(…), <(…), >(…) and backticks, outermost only, with the program of the outer command."""
    depth = start = 0
    for at, char in enumerate(command):
        opens = (char == "(" and (depth or command[at - 1 : at] in ("$", "<", ">"))) or (char == "`" and not depth)
        if opens and not depth:
            start = at
        depth += 1 if opens else -1 if depth and (char == ")" or char == "`" == command[start]) else 0
        if depth == 0 and char in ")`" and start < at:
            mark = max(command.rfind(mark, max(0, start - 200), start) for mark in ";&|\n(")
            before = (posixpath.basename(word) for word in command[mark + 1 : start].split())
            yield next((word for word in before if word not in _WRAPPERS), ""), command[start + 1 : at].strip()
            start = at


def _why_step(part: Part, words: Sequence[Word], depth: int, folder: Word | None) -> Phrase | None:
    for redirect in part.redirects:
        target = _from_folder(redirect.target, folder).text
        if ">" in redirect.operator and (_is_device(target) or target in ("/proc/sysrq-trigger", "/sys/power/state")):
            return Phrase("danger.redirect_to_device", target=target)
        if _is_process_file(target):
            return Phrase("danger.process_secrets", target=target)
    name, texts = _program_of(words), [word.text for word in words[1:]]
    files = [_from_folder(word, folder) for word in words[1:]]
    operands = [word for word in files if not word.text.startswith("-")]
    options = [text for text in texts if text.startswith("-")]
    whys = [_why_removal(name, options, operands), _why_device(name, operands), _why_stop(name, texts)]
    secret = next(filter(_is_process_file, _list_files(name, files)), "")
    whys.append(Phrase("danger.reads_process_secrets", program=name, target=secret) if secret else None)
    return next(filter(None, whys), None) or _why_text(_inner_text(name, words), depth, folder)


def _unwrap(words: list[Word]) -> list[Word]:
    for _ in range(8):
        while words and (words[0].text in _KEYWORDS or is_assignment(words[0])):
            words = words[1:]
        name = _program_of(words)
        if name not in _WRAPPERS or len(words) == 1:
            break
        words = words[1:]
        while len(words) > 1 and words[0].text.startswith("-"):
            takes = len(words[0].text) == 2 and words[0].text[1] in _WRAPPERS[name]
            words = words[2:] if takes else words[1:]
        if name == "chroot" or (name in ("timeout", "nice") and words[0].text[:1].isdecimal()):
            words = words[1:]
    return words


def _inner_text(name: str, words: Sequence[Word]) -> str:
    at = next((at for at, word in enumerate(words) if at and word.text[:1] == "-" and "c" in word.text), len(words))
    inner = words[1:] if name == "eval" else words[at + 1 : at + 2] if name in _SHELLS or name == "su" else ()
    return " ".join(word.text for word in inner)


def _expand_braces(text: str) -> list[str]:
    """What bash expands {a,b} to, and other spellings; a few dozen at most."""
    found, at = [text], 0
    while at < len(found) < 64:
        each = found[at]
        start = each.rfind("{", 0, each.rfind(",") + 1)
        end = each.find("}", start) if start >= 0 else -1
        inside = each[start + 1 : end].split(",")[:32] if end > 0 else []
        found += [f"{each[:start]}{one}{each[end + 1 :]}" for one in inside if len(inside) > 1]
        at += 1
    return found


def _is_system(word: Word) -> bool:
    for text in _expand_braces(word.text):
        base = text
        for end in ("/.*", "/*", "/.", "/"):
            base = base.removesuffix(end)
        path = posixpath.normpath(base or "/").replace("//", "/")
        known = path in _SYSTEM or posixpath.dirname(path) in ("/home", "/Users")
        known = known or (bool(word.globs) and any(match_glob(path, each) for each in _SYSTEM))
        home = base in ("$HOME", "${HOME}", "${HOME:?}") or (word.tilde and "/" not in base)
        if home or (known and text.startswith("/")):
            return True
    return False


def _why_removal(name: str, options: Sequence[str], operands: Sequence[Word]) -> Phrase | None:
    deep = any(each == "--recursive" or (each[:2] != "--" and set("rR") & set(each)) for each in options)
    named = operands if name in ("rm", "chmod", "chown", "chgrp", "mv", "find") else ()
    hit = next((word.text for word in named if _is_system(word)), "")
    if name == "rm" and "--no-preserve-root" in options:
        return Phrase("danger.no_preserve_root")
    if name in ("rm", "chmod", "chown", "chgrp") and deep and hit:
        return Phrase("danger.removes_all" if name == "rm" else "danger.changes_all", program=name, target=hit)
    if name == "mv" and any(_is_system(word) for word in operands[:-1]):
        return Phrase("danger.moves_away", program=name, target=hit)
    runs = {"rm", "shred", "unlink"} & {posixpath.basename(word.text) for word in operands}
    deletes = "-delete" in options or (runs and {"-exec", "-execdir", "-ok"} & set(options))
    return Phrase("danger.removes_all", program=name, target=hit) if name == "find" and hit and deletes else None


def _is_device(text: str) -> bool:
    return text.startswith("/dev/") and text.removeprefix("/dev/").startswith(tuple(_DEVICES))


def _why_device(name: str, operands: Sequence[Word]) -> Phrase | None:
    writes = name.startswith(("mkfs", "mke2fs", "mkswap", "newfs")) or name in _ONTO_DEVICES
    mark = "of=" if name == "dd" else ""
    texts = [word.text.removeprefix(mark) for word in operands if word.text.startswith(mark)]
    device = next(filter(_is_device, texts), "")
    return Phrase("danger.overwrites_device", program=name, target=device) if device and (writes or mark) else None


def _why_stop(name: str, texts: Sequence[str]) -> Phrase | None:
    stops = name in _STOPS and not {"--help", "--version", "-c"} & set(texts)
    stops = stops or (name == "systemctl" and (_STOPS | {"kexec", "emergency"}) & set(texts))
    if stops or (name in ("init", "telinit") and texts in (["0"], ["6"])):
        return Phrase("danger.stops_machine", program=name)
    return Phrase("danger.ends_all") if name == "kill" and len(texts) > 1 and texts[-1] == "-1" else None


def _is_process_file(text: str) -> bool:
    path = posixpath.normpath(text).replace('"', "/").replace("'", "/")
    names = path[path.find("/proc/") :].split("/") if "/proc/" in path else []
    return any(match_glob(name, each) for name in names[2:] for each in _PROCESS_FILES if name.strip("*?"))


def _list_files(name: str, words: Sequence[Word]) -> list[str]:
    """The words that may be files: a quoted one is text for echo, and the first one is for grep."""
    first = next((at for at, word in enumerate(words) if not word.text.startswith("-")), -1)
    texts = range(len(words)) if name in ("echo", "printf", "git") else [first] if name in _FIRST_IS_TEXT else ()
    return [word.text for at, word in enumerate(words) if not word.quoted or at not in texts]


def _why_download(steps: Sequence[Step]) -> Phrase | None:
    downloads = group = False
    for part, words in steps:
        name, first = _program_of(words), "".join(word.text for word in words[1:2])
        group, starts = group and ")" not in part.joint, part.texts[:1]
        downloads = downloads and (group or starts == ["}"] or _is_piped(part))
        reads = first in ("", "-") or (name in _SHELLS and first[:1] == "-" and "c" not in first)
        if downloads and _is_piped(part) and reads and name in _SHELLS | _INTERPRETERS:
            return Phrase("danger.program_runs_download", program=name)
        group = "(" in part.joint or starts == ["{"] or (group and starts != ["}"])
        downloads = downloads or name in _DOWNLOADS
    return None
