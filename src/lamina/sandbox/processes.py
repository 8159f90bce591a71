"""The processes that a command started, and how much they take together (fault T10).

This room hides /proc: who belongs to the family, and what each process holds. It ends nobody: that is the matter of
`sandbox_launcher`, which alone imports it, so it loads little.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KB = 1024
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // KB
HELD_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""What status says of memory that is not a file's: a process's own pages, those it may share, those swapped out."""
SHARE_OF_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
"""The same with each shared page divided among those that share it; it takes longer to find out."""
SHARED_MAPPINGS = (b"/dev/zero", b"/memfd:", b"/SYSV")


class Watch:
    """Which limit a family is over, measured against what was there when it began."""

    def __init__(self, limits: "Mapping[str, int]", folder: str, changes: bool) -> None:
        self.limits, self.folder, self.changes = limits, folder, changes
        self.free, self.shared_kb = self.free_bytes(), all_shared_kb()

    def exceeded(self, family: "list[int]") -> str:
        """The limit and its size, for all of the family together; empty for none."""
        most = self.limits["processes"]
        if len(family) > most or sum(map(count_threads, family)) > most:
            return f"processes {most}"
        if self.is_over_memory(family):
            return f"memory {self.limits['memory']}"
        if self.changes and self.free - self.free_bytes() > self.limits["disk"]:
            return f"disk {self.limits['disk']}"
        return ""

    def is_over_memory(self, family: "list[int]") -> bool:
        most = self.limits["memory"] // KB
        if sum(map(resident_kb, family)) > most and sum(map(held_kb, family)) > most:
            return True
        # A shared page that is unmapped again is kept as long as its mapping: only the whole system's sum has it.
        return all_shared_kb() - self.shared_kb > most and mapped_shared_kb(family) > most

    def free_bytes(self) -> int:
        known = os.statvfs(self.folder)
        return known.f_bavail * known.f_frsize


def others_here() -> "list[int]":
    """All but the first process of this namespace."""
    return [number for number in processes() if number != 1]


def descendants() -> "list[int]":
    """Of this process, found by their parents."""
    children: dict[int, list[int]] = {}
    for number in processes():
        fields = stat_of(number)
        if fields:
            children.setdefault(int(fields[1]), []).append(number)
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def account_threads() -> int:
    """How many threads this account has now."""
    count = 0
    for number in processes():
        try:
            mine = os.stat(f"/proc/{number}").st_uid == os.geteuid()
        except OSError:
            continue
        count += count_threads(number) if mine else 0
    return count


def processes() -> "list[int]":
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def count_threads(number: int) -> int:
    fields = stat_of(number)
    return int(fields[17]) if len(fields) > 17 else 0


def stat_of(number: int) -> "list[bytes]":
    """What follows the name, which may hold anything: the state, the parent, …"""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def sum_kb(number: int, name: str, fields: "tuple[bytes, ...]") -> "int | None":
    """The sum of these lines of a file about a process; None where the system does not tell."""
    try:
        with open(f"/proc/{number}/{name}", "rb") as file:
            found = [int(line.split()[1]) for line in file if line.startswith(fields)]
    except OSError:  # it has ended, or is closed to us
        return None
    return sum(found) if found else None


def resident_kb(number: int) -> int:
    """All that a process has in memory, files too: quickly found, and rarely too much."""
    try:
        with open(f"/proc/{number}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return 0


def held_kb(number: int) -> int:
    """Without files, and with a part of what is shared, where the system tells."""
    share = sum_kb(number, "smaps_rollup", SHARE_OF_MEMORY)
    return share if share is not None else sum_kb(number, "status", HELD_MEMORY) or 0


def all_shared_kb() -> int:
    """Shared memory of the whole system."""
    with open("/proc/meminfo", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Shmem:")), 0)


def mapped_shared_kb(family: "Iterable[int]") -> "int | float":
    """How large the shared memory is that a family has mapped, each piece once; without bound where one process does
    not let us see it."""
    sizes: dict[bytes, int] = {}
    try:
        for number in family:
            for piece, end in shared_mappings(number):
                sizes[piece] = max(end, sizes.get(piece, 0))
    except PermissionError:
        return float("inf")
    return sum(sizes.values()) // KB


def shared_mappings(number: int) -> "Iterator[tuple[bytes, int]]":
    try:
        with open(f"/proc/{number}/maps", "rb") as file:
            lines = [line.split(None, 5) for line in file if b"s " in line]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return
    for words in lines:
        if len(words) == 6 and words[1].endswith(b"s") and words[5].startswith(SHARED_MAPPINGS):
            start, _, end = words[0].partition(b"-")
            yield words[4], int(words[2], 16) + int(end, 16) - int(start, 16)
