"""Which files of a workspace are closed: those whose names say that they hold keys or passwords, lamina's own, and
everything outside. Used by the tools that read files and by the command gate, for paths, globs and whole trees.

Names are compared without regard to case and without hidden characters; copies that editors and people leave behind
(`.env.bak`, `id_rsa~`) count like the original. Names and links are looked up on the disk, since a link inside can lead
out. Only git's configuration and ignore files are opened.
"""

import os
import stat
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lamina.text.messages import Phrase
from lamina.text.unicode import ANY, visible_command

T = TypeVar("T")
MAX_LOOKS, MAX_FOLDERS, MAX_PATH_CHARS, MAX_LINKED = 16_000, 16, 4_096, 2_000
"""Limits of one decision: names that are looked up (each takes 2 to 4 µs), folders that a `cd` may lead to, characters
of a path, and names of the workspace among which the other name of a hard link is searched."""
MAX_CONFIG_BYTES = 64 * 1024
MAX_INDEX_BYTES = 16 * 1024 * 1024
GIT_ELSEWHERE = tuple("commondir config.worktree gitdir objects/info/alternates worktrees branches remotes".split())
IGNORE_FILES = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude")
CONFIG_KEYS = {
    "core": "repositoryformatversion filemode bare ignorecase precomposeunicode symlinks logallrefupdates quotepath "
    "autocrlf eol",
    "remote": "url pushurl fetch gh-resolved", "branch": "remote merge rebase vscode-merge-base", "user": "name email",
    "pull": "rebase ff", "push": "default autosetupremote followtags", "init": "defaultbranch", "color": "ui",
}  # fmt: skip
"""Settings of a repository that start no program. Anything else in its configuration is a reason to ask."""
PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _./:@+*~,-") | frozenset(
    range(128, 256)
)
SECRET_NAMES = frozenset(
    ".env .envrc .netrc _netrc .npmrc .pypirc .pgpass .my.cnf .git-credentials .htpasswd .vault-token .dockercfg .boto "
    ".s3cfg .pgpass.conf authorized_keys shadow gshadow sudoers wallet.dat master.key .terraformrc "
    "credentials.tfrc.json .dev.vars .flaskenv .vault_pass .passwd htpasswd .mylogin.cnf kubeconfig .dockerconfigjson "
    "rclone.conf auth.json .msmtprc .fetchmailrc .curlrc .wgetrc .hgrc .databrickscfg kaggle.json sftp-config.json "
    ".ftpconfig key4.db logins.json cookies.txt .erlang.cookie .xauthority rootkey.csv private_key deploy_key apikey "
    "fish_history .viminfo .histfile .zhistory .lesshst".split()
)
SECRET_FOLDERS = frozenset(".ssh .gnupg .aws .azure .kube .docker .gcloud .password-store .oci .vnc .envs".split())
"""Everything inside them is closed, and so is a file with such a name."""
SECRET_SUFFIXES = tuple(
    ".env .pem .key .p12 .pfx .pkcs12 .jks .keystore .kdbx .ppk .gpg .ovpn .tfstate .tfvars .tfvars.json .token "
    ".credentials .p8 .keytab .agekey .kubeconfig .secret .secrets .password".split()
)
SECRET_PREFIXES = (".env", "#.env", "ssh_host_", "client_secret", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
SECRET_WORDS = frozenset(
    "credential credentials creds secret secrets password passwords token tokens apikey apikeys".split()
)
"""As the last word of a name, before its ending: `aws-credentials.json`, `db_password.txt`."""
CHINESE_SECRET_WORDS = ("密码", "密钥", "口令", "令牌", "凭证", "凭据")
"""The same in Chinese, which has no space before the last word: `数据库密码.txt`."""
DATA_PREFIXES = ("token", "service-account", "service_account")
DATA_ENDINGS = frozenset(
    "json yaml yml toml ini txt csv xml cfg conf properties asc enc pickle pkl dat bin db sqlite xlsx kdb".split()
) | {""}
"""A name with another ending is that of a program about secrets, such as `secrets.py`."""
SAMPLES = (".example", ".sample", ".template", ".dist", ".pub")
"""Endings of examples, and of public keys."""
TYPICAL_SECRETS = (".env", ".netrc", "x.pem", "x.key")
"""A glob with letters that matches one of these is about secrets, whatever is on the disk now."""
COPY_ENDINGS = ("~", "#", ".bak", ".old", ".orig", ".save", ".swp", ".swo", ".backup", ".tmp", ".1", ".2")


def is_secret_name(name: str) -> bool:
    """Whether the name of a file or a folder says that it holds keys or passwords."""
    folded = fold_name(name)
    if folded.endswith(SAMPLES):
        return False
    while folded.endswith(COPY_ENDINGS):
        folded = folded.removesuffix(next(each for each in COPY_ENDINGS if folded.endswith(each)))
    if folded in SECRET_NAMES or folded in SECRET_FOLDERS or folded.endswith(SECRET_SUFFIXES):
        return True
    if folded.startswith(SECRET_PREFIXES) or ".tfstate." in folded:  # Terraform puts a time between this and .backup
        return True
    stem, _, ending = folded.rpartition(".")
    stem, ending = (stem, ending) if stem else (folded, "")
    if ending not in DATA_ENDINGS or folded.startswith("tokeniz"):
        return False
    before, _, last = stem.replace("-", ".").replace("_", ".").rpartition(".")
    return (
        last in SECRET_WORDS
        or last.endswith(CHINESE_SECRET_WORDS)
        or (bool(before) and last in ("key", "keys"))
        or folded.startswith(DATA_PREFIXES)
        or (folded.startswith(".") and folded.endswith("_history"))
    )


def is_secret_path(path: str) -> bool:
    """Whether a name in a path says so; also behind : or =, as in options and in git's names."""
    for mark in ":=,":
        path = path.replace(mark, "/")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if any(map(is_secret_name, names)):
        return True
    folded = [fold_name(name) for name in names]
    return any(name.endswith(".git") for name in folded[:-1]) and folded[-1].startswith("config")


def fold_name(name: str) -> str:
    """A name without hidden characters, as a file system that ignores case compares it."""
    return name.lower() if name.isascii() and name.isprintable() else ANY.sub("", name).casefold()


def match_glob(pattern: str, name: str) -> bool:
    """Whether a glob matches a name. From a bracket on it matches everything, since the rules for brackets differ. It
    goes back to the last star at most, so it is never slow."""
    pattern = pattern.partition("[")[0] + ("*" if "[" in pattern else "")
    at = mark = star_at = 0
    star = -1
    while at < len(name):
        char = pattern[mark : mark + 1]
        if char == "*":
            star, star_at, mark = mark, at, mark + 1
        elif char and char in ("?", name[at]):
            at, mark = at + 1, mark + 1
        elif star >= 0:
            star_at += 1
            at, mark = star_at, star + 1
        else:
            return False
    return not pattern[mark:].strip("*")


def shorten_command(text: str) -> str:
    """A word of a command, short enough for a reason."""
    return visible_command(text if len(text) <= 60 else f"{text[:59]}…")


class TooManyNamesError(Exception):
    """A command leads to more names on the disk than are looked up for one decision."""


@dataclass
class Disk:
    """What one decision has looked up on the disk: a limited number of names, most of them once."""

    left: int = MAX_LOOKS
    known: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])

    def spend(self, looks: int) -> None:
        self.left -= looks
        if self.left < 0:
            raise TooManyNamesError

    def remember(self, key: Hashable, find: Callable[[], T]) -> T:
        if key not in self.known:
            self.known[key] = find()
        return self.known[key]

    def scan(self, folder: str) -> "list[os.DirEntry[str]]":
        entries = self.remember(("scan", folder), lambda: scan_folder(folder))
        self.spend(1 + len(entries))
        return entries

    def exists(self, path: str) -> bool:
        self.spend(1)
        return self.remember(("exists", path), lambda: os.path.lexists(path))

    def resolve(self, path: str) -> str:
        """Where a path leads. Its folder is resolved once for all names in it."""
        head, name = os.path.split(path)
        if name in ("", ".", ".."):
            return self._follow(path)
        self.spend(1)
        real = os.path.join(self._follow(head), name)
        return self._follow(real) if os.path.islink(real) else real

    def _follow(self, path: str) -> str:
        if ("real", path) not in self.known:
            self.spend(4 * path.count("/"))
        return self.remember(("real", path), lambda: os.path.realpath(path))

    def matches(self, patterns: Sequence[str], name: str) -> bool:
        for at, pattern in enumerate(patterns):
            steps = len(pattern) * len(name)
            self.spend((at > 0) + (steps // 16 if steps > 512 else 0))
            if match_glob(pattern, name):
                return True
        return False

    def expand_glob(self, text: str, globs: Sequence[int], folder: str) -> list[str]:
        """What bash expands a glob to in this folder, or somewhat more."""
        found = self.remember(("glob", text, tuple(globs), folder), lambda: self._expand_glob(text, globs, folder))
        self.spend(len(found))
        return found

    def _expand_glob(self, text: str, globs: Sequence[int], folder: str) -> list[str]:
        found, at = ["/" if text.startswith("/") else ""], 0
        for piece in text.split("/"):
            is_glob = any(at <= mark < at + len(piece) for mark in globs)
            at += len(piece) + 1
            if piece and not is_glob:
                self.spend(len(found))
                found = [os.path.join(one, piece) for one in found]
            elif piece:
                names = ((one, entry.name) for one in found for entry in self.scan(os.path.join(folder, one)))
                seen = ((one, name) for one, name in names if piece[0] == "." or not name.startswith("."))
                found = [os.path.join(one, name) for one, name in seen if self.matches([piece], name)]
        return found

    def entries_below(
        self, waiting: list[str], hidden: bool = True, without: Sequence[str] = ()
    ) -> "Iterator[os.DirEntry[str]]":
        for folder in waiting:  # the list grows; near folders come first
            for entry in self.scan(folder):
                if not hidden and entry.name.startswith(".") and entry.name not in IGNORE_FILES:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif not self.matches(without, entry.name):
                    yield entry
                    waiting.append(entry.path)


class OwnFiles:
    """Files that are closed to every tool, such as lamina's own store. A file that was moved is still recognised by the
    device and inode that it had last."""

    def __init__(self, paths: Collection[Path]) -> None:
        self.last_seen: dict[str, tuple[int, int] | None] = dict.fromkeys(map(os.fspath, paths))
        self.identify()

    def identify(self) -> frozenset[tuple[int, int]]:
        """Device and inode of each."""
        for path in self.last_seen:
            if found := _identify(path):
                self.last_seen[path] = found[:2]
        return frozenset(filter(None, self.last_seen.values()))


@dataclass(frozen=True, slots=True)
class CommandScope:
    """What a command may read: the workspace, the folders in which it may run (more than one, since a `cd` may fail),
    and device and inode of the files that are closed to every command, such as lamina's own store."""

    root: str
    folders: tuple[str, ...]
    own: frozenset[tuple[int, int]] = frozenset()
    disk: Disk = field(default_factory=Disk, compare=False)

    @classmethod
    def at(cls, root: Path, own: "Collection[Path] | OwnFiles" = ()) -> "CommandScope":
        real = os.path.realpath(root)
        return cls(real, (real,), (own if isinstance(own, OwnFiles) else OwnFiles(own)).identify())

    def move(self, folder: str) -> "CommandScope | None":
        """After `cd folder`; None when there are too many folders in which the command may run."""
        moved = [self.disk.resolve(os.path.join(one, folder)) for one in self.folders]
        folders = dict.fromkeys((*self.folders, *moved))
        return replace(self, folders=tuple(folders)) if len(folders) <= MAX_FOLDERS else None

    def why_closed(self, path: str) -> str:
        """Why a path must not be read without asking, from any folder in which the command may run: a code whose text
        has a slot for the path; empty when it may be read."""
        if len(path) > MAX_PATH_CHARS:
            return "gate.path_too_long"
        reasons = (self._why_closed(folder, path) for folder in self.folders)
        return self.disk.remember(("closed", self.folders, path), lambda: next(filter(None, reasons), ""))

    def _why_closed(self, folder: str, path: str) -> str:
        full = os.path.join(folder, path)
        self.disk.spend(2 + max(0, len(full) - len(self.root)) // 16)
        try:
            real = self.disk.resolve(full)
        except (OSError, ValueError):  # a link that we may not follow, or not a path
            return "gate.path_cannot_be_followed"
        # What /proc and /dev/fd mean differs between this process and the child.
        elsewhere = os.path.normpath(full).startswith(("/proc/", "/dev/"))
        if elsewhere or (real != self.root and not real.startswith(self.root.rstrip("/") + "/")):
            return "gate.path_leads_out"
        if is_secret_path(real.removeprefix(self.root)) or (not real.endswith(f"/{path}") and is_secret_path(path)):
            return "gate.path_may_hold_secrets"
        if self.is_own(real):
            return "gate.path_is_own"
        return "gate.path_is_linked_secret" if self._is_linked_secret(real) else ""

    def holds_root(self, path: str) -> bool:
        """Whether a path, or a path with a star for everything in it, leads to the whole workspace."""
        try:
            found = self.disk.resolve(os.path.join(self.folders[-1], path.removesuffix("*") or "."))
        except (OSError, ValueError):
            return False
        return f"{self.root}/".startswith(f"{found.rstrip('/')}/")

    def is_own(self, path: str) -> bool:
        """Whether a file, or a folder that it is in, is one of lamina's own."""
        while self.own and path.startswith(self.root):
            self.disk.spend(1)
            if (found := _identify(path)) and found[:2] in self.own:
                return True
            path = os.path.dirname(path)
        return False

    def _is_linked_secret(self, path: str) -> bool:
        found = _identify(path)
        return found is not None and found[2] > 1 and found[:2] in self.linked_secrets()

    def linked_secrets(self) -> frozenset[tuple[int, int]]:
        """Device and inode of the secret files of the workspace that have a second name."""
        return self.disk.remember("linked", lambda: frozenset(self._find_linked_secrets()))

    def _find_linked_secrets(self) -> Iterator[tuple[int, int]]:
        closed = {self.root: False}
        with suppress(TooManyNamesError):
            for entry in Disk(MAX_LINKED, self.disk.known).entries_below([self.root]):
                inside = closed[os.path.dirname(entry.path)] or is_secret_name(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    closed[entry.path] = inside
                elif inside and (found := _identify(entry.path)) and found[2] > 1:
                    yield found[:2]

    def why_glob_closed(self, text: str, globs: Sequence[int]) -> Phrase | None:
        """The same for a glob, with the positions of its * ? [: for its folder, and for what it expands to."""
        key = ("globbed", self.folders, text, tuple(globs))
        return self.disk.remember(key, lambda: self._why_glob_closed(text, globs))

    def _why_glob_closed(self, text: str, globs: Sequence[int]) -> Phrase | None:
        path = shorten_command(text)
        literal = text[: text.rfind("/", 0, globs[0]) + 1]
        if closed := self.why_closed(literal or "."):
            return Phrase(closed, path=path)
        pieces = text.split("/")
        if any(piece[:1] == "." and piece != "." and match_glob(piece, "..") for piece in pieces):
            return Phrase("gate.glob_may_lead_out", path=path)
        if any(match_glob(piece, each) for piece in pieces for each in TYPICAL_SECRETS if any(map(str.isalnum, piece))):
            return Phrase("gate.path_may_hold_secrets", path=path)
        for folder in self.folders:
            here = replace(self, folders=(folder,))
            for each in self.disk.expand_glob(text, globs, folder):
                why = "gate.name_like_option" if each[0] in "-(!," else here.why_closed(each)
                if why:
                    return Phrase("gate.glob_expands", path=path, why=Phrase(why, path=visible_command(each[:60])))
        return None

    def why_repository(self) -> Phrase | None:
        """Why git might start another program, from any folder in which the command may run."""
        keys = [("git", folder) for folder in self.folders]
        found = (self.disk.remember(key, lambda key=key: _why_repository(Path(key[1]), self)) for key in keys)
        return next(filter(None, found), None)

    def _is_closed_entry(self, entry: "os.DirEntry[str]", inodes: Collection[int]) -> bool:
        if is_secret_name(entry.name):
            return True
        if fold_name(entry.name).startswith("config"):  # every search of a repository meets .git/config
            plain = entry.path.endswith("/.git/config") and entry.is_file(follow_symlinks=False)
            return find_odd_line(entry.path) > 0 if plain else is_secret_path(entry.path.removeprefix(self.root))
        found = _identify(entry.path) if entry.inode() in inodes else None
        return found is not None and (found[:2] in self.own or found[:2] in self.linked_secrets())

    def why_tree_closed(
        self,
        starts: Sequence[str],
        *,
        hidden: bool = True,
        follows: bool = False,
        only: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> Phrase | None:
        """Why everything below these folders must not be read. `only` are patterns of names that are read, `without`
        those of folders that are left out; `follows` says that the program follows links."""
        # A pattern with characters that programs interpret differently leaves nothing out.
        only = [] if any(set("\\[") & set(pattern) for pattern in only) else only
        without = [pattern for pattern in without if not set("\\[?") & set(pattern)]
        tops = tuple(dict.fromkeys(os.path.join(folder, start) for folder in self.folders for start in starts))
        self.disk.spend(len(tops))
        hidden = hidden or any(map(self._may_include_hidden, dict.fromkeys(_list_ignore_files(tops))))
        key = ("tree", tops, hidden, follows, tuple(only), tuple(without))
        return self.disk.remember(key, lambda: self._why_tree_closed(tops, hidden, follows, only, without))

    def _may_include_hidden(self, path: str) -> bool:
        """Whether an ignore file may include files with a dot again, by a line with !."""
        return self.disk.exists(path) and self.disk.remember(
            ("ignore", path), lambda: b"!" in (read_config(path) or b"")
        )

    def _why_tree_closed(
        self, tops: Sequence[str], hidden: bool, follows: bool, only: Sequence[str], without: Sequence[str]
    ) -> Phrase | None:
        inodes = {inode for _, inode in (*self.own, *self.linked_secrets())}
        for entry in self.disk.entries_below(list(tops), hidden, without):
            link = entry.is_symlink()
            if not hidden and entry.name in IGNORE_FILES and self._may_include_hidden(entry.path):
                return self._why_tree_closed(tops, True, follows, only, without)
            if link and not follows:
                continue
            name = visible_command(entry.name[:60])
            if link and not os.path.exists(entry.path):
                return Phrase("gate.follows_link", name=name)
            read = not only or entry.is_dir() or self.disk.matches(only, entry.name)
            if read and self._is_closed_entry(entry, inodes):
                return Phrase("gate.reads_secrets", name=name)
            if link and (entry.is_dir() or self.why_closed(entry.path)):
                return Phrase("gate.follows_link", name=name)
        return None


def _identify(path: str) -> tuple[int, int, int] | None:
    """Device, inode and number of names; None when the file does not exist."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino, info.st_nlink if stat.S_ISREG(info.st_mode) else 1


def _list_ignore_files(tops: Sequence[str]) -> Iterator[str]:
    """The ignore files that a search reads, in the folders where it starts and above."""
    for top in tops:
        for up in (top, *Path(top).parents):
            yield from (os.path.join(up, name) for name in IGNORE_FILES)


def read_config(path: str | Path) -> bytes | None:
    """The beginning of a small file, with one byte more when it is too long; None when it cannot be read. It does not
    wait for a pipe."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError:
        return None


def find_odd_line(path: str | Path) -> int:
    """The number of the first line of a git configuration that may start a program or hold a password; 0 when there is
    none."""
    config = read_config(path)
    if config is None:
        return 1
    keys: Collection[str] = ()
    for number, line in enumerate(config.split(b"\n"), 1):
        if line.startswith(b"["):
            section, quote, name = line[1:-1].partition(b' "')
            keys = CONFIG_KEYS.get(section.decode("ascii", "replace"), "").split()
            named = name[-1:] == b'"' and len(name) > 1 and not set(name[:-1]) - PLAIN_BYTES and b" " not in name
            if not keys or line[-1:] != b"]" or (section in (b"remote", b"branch")) != bool(quote and named):
                return number
        elif line:
            left, equals, value = line.strip(b" \t").partition(b"=")
            key, value = left.strip(b" ").decode("ascii", "replace").lower(), value.strip(b" ")
            if not equals or key not in keys or not value or set(value) - PLAIN_BYTES or value[:1] == b"-":
                return number
            named = value.partition(b"://")[2].partition(b"/")[0].rpartition(b"@")[0]
            secret = bool(named) and (b":" in named or value[:3].lower() != b"ssh")
            if (key == "bare" and value != b"false") or (key.endswith("url") and (secret or b"::" in value)):
                return number
    return 0 if len(config) <= MAX_CONFIG_BYTES else config.count(b"\n")


def scan_folder(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return list(islice(entries, MAX_LOOKS + 1))
    except OSError:  # bash finds nothing there either
        return []


def _why_repository(folder: Path, scope: CommandScope) -> Phrase | None:
    """Why git in this folder might start another program. A repository's files can name programs in many ways, so only
    a few lines of its configuration count as harmless, and nothing in it may lead elsewhere."""
    for up in (folder, *folder.parents):
        git = up / ".git"
        scope.disk.spend(4)
        if os.path.lexists(up / "HEAD") and any(map(os.path.lexists, (up / "objects", up / "refs", up / "commondir"))):
            return Phrase("gate.bare_repository", folder=up.name)
        if not os.path.lexists(git):
            continue
        if str(up) != scope.root:
            return Phrase("gate.other_repository", folder=up.name)
        try:
            return _why_git_folder(git, scope)
        except OSError as error:
            return Phrase("gate.unreadable_repository", reason=error.strerror)
    return None


def _why_git_folder(git: Path, scope: CommandScope) -> Phrase | None:
    entries = list(scope.disk.entries_below([str(git)]))
    files = [path for path in (git / "config", git / "index") if os.path.lexists(path)]
    odd = any(not stat.S_ISREG(path.lstat().st_mode) for path in files)
    if odd or any(entry.is_symlink() for entry in entries) or not stat.S_ISDIR(git.lstat().st_mode):
        return Phrase("gate.git_leads_elsewhere")
    parts = [git / name for name in GIT_ELSEWHERE if scan_folder(str(git / name)) or (git / name).is_file()]
    if parts or any("sharedindex." in each.name.lower() for each in entries):
        return Phrase("gate.git_parts_elsewhere")
    hooks = [each for each in scan_folder(str(git / "hooks")) if not each.name.endswith(".sample")]
    if any(each.stat().st_mode & 0o111 for each in hooks):
        return Phrase("gate.git_hook")
    odd = find_odd_line(git / "config")
    if odd:
        return Phrase("gate.git_config", line=odd)
    index = git / "index"
    if os.path.lexists(index) and index.stat().st_size > MAX_INDEX_BYTES:
        return Phrase("gate.git_index_too_long")
    data = index.read_bytes() if os.path.lexists(index) else b""
    # The modes of an entry that is itself a repository, and of one that is left out of the work tree.
    inside = os.path.lexists(git.parent / ".gitmodules") or b"\0\0\xe0\0" in data or b"sdir\0\0\0\0" in data
    return Phrase("gate.nested_repositories") if inside else None
