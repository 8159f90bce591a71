"""The program that confines one command and then runs it (fault T10). `sandbox` starts it; nothing else imports it.

It runs as a process of its own, without the rest of lamina, and imports little because every command waits for it. Its
arguments are the policy; its reports go to the descriptor that is its standard input. It does not decide which commands
may run. There are two modes, both for Linux: `namespaces` (a root of its own, made of the named folders) and `landlock`
(rules over the real root, for containers that cannot make namespaces).
"""

import ctypes
import os
import resource
import time

from lamina.sandbox.confinement import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    Policy,
    UnavailableError,
    confine_command,
    enter_namespaces,
    make_root,
    scope_signals,
    set_process_option,
    start_loopback,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Iterator, Mapping
else:  # the module `signal` takes five milliseconds to make its enumerations
    import _signal as signal

CHECK_INTERVAL_S, MAX_CHECK_INTERVAL_S = 0.1, 1.0
CHECK_SHARE = 20
"""The time between two checks is this many times the processor time of a check, within the limits above."""
GRACE_SECONDS = 0.3
"""Between the request to end and the kill."""
END_SECONDS = 3.0
KB = 1024
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // KB
HELD_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""Fields of `status` for memory without files: a process's own pages, those it may share, those swapped out."""
SHARE_OF_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
"""The same with each shared page divided among those that share it; this is slower to read."""
SHARED_MAPPINGS = (b"/dev/zero", b"/memfd:", b"/SYSV")


def main(words: "list[str]") -> None:
    """Confine and run the command, and wait for it. A line of the report begins with `ready`, `limit`, `exit`, `alone`
    or `unavailable`."""
    report = os.dup(0)  # not inherited by the command
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)

    def say(line: str) -> None:
        os.write(report, f"{line}\n".encode())

    try:
        policy = Policy(words)
        blank_arguments()
        end_with_parent(policy.parent, signal.SIGTERM if policy.mode == "landlock" else signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        if policy.mode == "namespaces":
            start_in_namespaces(policy, say)
        elif policy.mode == "landlock":
            start_under_landlock(policy, say)
        else:
            raise UnavailableError(f"no mode {policy.mode}")
    except (UnavailableError, OSError) as error:
        say(f"unavailable {error}")
        os._exit(1)


def blank_arguments() -> None:
    """Erase our arguments: the command can read those of the first process of its namespace, with paths outside."""
    fields = read_stat(os.getpid())
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)


def end_with_parent(parent: int, number: int) -> None:
    """Get this signal when the process that started us is killed."""
    set_process_option(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def start_in_namespaces(policy: Policy, say: "Callable[[str], None]") -> None:
    """Be the first process of a namespace: the system then ends everything that it started when it ends."""
    raise_oom_score()
    enter_namespaces(policy)
    reader, writer = os.pipe()
    first = os.fork()
    if first:
        os.close(writer)
        wait_for_child(first)
        os._exit(0)
    os.close(reader)
    try:
        set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(writer, b".")  # fails when the parent has ended in the meantime
        os.close(writer)
        make_root(policy)
        if not policy.network:
            start_loopback()
        os.chdir(policy.folder)
        child = start_command(policy, say)
        set_process_option(PR_SET_DUMPABLE, 0)
        supervise(child, policy, say, list_namespace, send_to_all)
    except (UnavailableError, OSError) as error:
        say(f"unavailable {error}")
    os._exit(0)


def wait_for_child(child: int) -> None:
    while True:
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return


def raise_oom_score() -> None:
    """Make the system end the command first when memory runs out."""
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def start_under_landlock(policy: Policy, say: "Callable[[str], None]") -> None:
    """Without a process namespace, adopt processes that lose their parent, so that all of them stay below us."""
    if not policy.landlock:
        raise UnavailableError("this system has no Landlock")
    raise_oom_score()
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    os.chdir(policy.folder)
    scoped = policy.landlock >= 6 and scope_signals(policy.parent)
    child = start_command(policy, say)
    set_process_option(PR_SET_DUMPABLE, 0)
    supervise(child, policy, say, list_descendants, send_to_all if scoped else send_to_each)
    os._exit(0)


def start_command(policy: Policy, say: "Callable[[str], None]") -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        set_limits(policy)
        confine_command(policy)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        say(f"ready {policy.mode} {policy.landlock}")
        os.execv(policy.command[0], policy.command)
    except (UnavailableError, OSError) as error:
        say(f"unavailable {error}")
    os._exit(126)


def set_limits(policy: Policy) -> None:
    limits = {
        resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: policy.limits["memory"],
        resource.RLIMIT_FSIZE: policy.limits["file"], resource.RLIMIT_CPU: policy.limits["cpu"],
        resource.RLIMIT_NOFILE: policy.limits["handles"],
    }  # fmt: skip
    if policy.mode == "namespaces":  # elsewhere all of the account's count; root is never held by it
        limits[resource.RLIMIT_NPROC] = policy.limits["processes"]
    elif os.geteuid():
        limits[resource.RLIMIT_NPROC] = policy.limits["processes"] + count_account_threads()
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(5)


# Supervision


def supervise(
    child: int,
    policy: Policy,
    say: "Callable[[str], None]",
    family: "Callable[[], list[int]]",
    send: "Callable[[int], None]",
) -> None:
    """Wait until the command ends or it and its descendants use too much; then end all of them."""
    watch = Watch(policy.limits, policy.folder, policy.changes)
    pause, code, deadline = CHECK_INTERVAL_S, None, float("inf")
    while code is None:
        got = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}, pause)
        if got is not None and got.si_signo != signal.SIGCHLD:
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            send_quietly(send, signal.SIGTERM)
        code = reap(child)
        if code is None and time.monotonic() > deadline:
            code = -signal.SIGKILL
        if code is None and got is None:
            began = time.process_time()
            exceeded = watch.find_exceeded_limit(family())
            pause = min(max(CHECK_INTERVAL_S, CHECK_SHARE * (time.process_time() - began)), MAX_CHECK_INTERVAL_S)
            if exceeded:
                say(f"limit {exceeded}")
                code = -signal.SIGKILL
    until = time.monotonic() + END_SECONDS
    while (alone := reap(-1)) is None and time.monotonic() < until:
        send_quietly(send, signal.SIGKILL)
        time.sleep(0.001)
    say(f"exit {code}")
    if alone is not None:
        say("alone ")


def reap(child: int) -> "int | None":
    """The exit code of the command when it has ended; for -1, a code as soon as there are no children."""
    while True:
        try:
            number, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0 if child < 0 else -signal.SIGKILL
        if not number:
            return None
        if number == child:
            return os.waitstatus_to_exitcode(status)


def send_to_all(number: int) -> None:
    """Signal everything that we may signal, at one moment, so that not even a fork bomb escapes. Only for the first
    process of a namespace, and for one that Landlock restricts to its own descendants."""
    os.kill(-1, number)


def send_to_each(number: int) -> None:
    """Signal one by one. All are stopped before the first is killed, since a stopped process starts nothing."""
    stopped: set[int] = set()
    while number == signal.SIGKILL and (new := set(list_descendants()) - stopped):
        for each in new:
            send_to_one(each, signal.SIGSTOP)
        stopped |= new
    for each in stopped or list_descendants():
        send_to_one(each, number)


def send_to_one(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def send_quietly(send: "Callable[[int], None]", number: int) -> None:
    try:
        send(number)
    except ProcessLookupError:  # no process is left
        return


class Watch:
    """Finds the limit that a family of processes exceeds, measured from the state at the start."""

    def __init__(self, limits: "Mapping[str, int]", folder: str, changes: bool) -> None:
        self.limits, self.folder, self.changes = limits, folder, changes
        self.free, self.shared_kb = self.read_free_bytes(), read_system_shared_kb()

    def find_exceeded_limit(self, family: "list[int]") -> str:
        """The exceeded limit and its size, for the whole family; empty for none."""
        limit = self.limits["processes"]
        if len(family) > limit or sum(map(count_threads, family)) > limit:
            return f"processes {limit}"
        if self.is_over_memory(family):
            return f"memory {self.limits['memory']}"
        if self.changes and self.free - self.read_free_bytes() > self.limits["disk"]:
            return f"disk {self.limits['disk']}"
        return ""

    def is_over_memory(self, family: "list[int]") -> bool:
        limit = self.limits["memory"] // KB
        if sum(map(read_resident_kb, family)) > limit and sum(map(read_private_kb, family)) > limit:
            return True
        # A shared page that was unmapped exists as long as its mapping: only the sum of the whole system includes it.
        return read_system_shared_kb() - self.shared_kb > limit and sum_mapped_shared_kb(family) > limit

    def read_free_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize


# Processes, as /proc shows them


def list_namespace() -> "list[int]":
    """All but the first process of this namespace."""
    return [number for number in list_processes() if number != 1]


def list_descendants() -> "list[int]":
    """The descendants of this process, found by their parents."""
    children: dict[int, list[int]] = {}
    for number in list_processes():
        fields = read_stat(number)
        if fields:
            children.setdefault(int(fields[1]), []).append(number)
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        more = children.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def count_account_threads() -> int:
    """How many threads this account has."""
    count = 0
    for number in list_processes():
        try:
            mine = os.stat(f"/proc/{number}").st_uid == os.geteuid()
        except OSError:
            continue
        count += count_threads(number) if mine else 0
    return count


def list_processes() -> "list[int]":
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def count_threads(number: int) -> int:
    fields = read_stat(number)
    return int(fields[17]) if len(fields) > 17 else 0


def read_stat(number: int) -> "list[bytes]":
    """The fields after the name, which may contain anything: the state, the parent, …"""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def sum_kb(number: int, name: str, fields: "tuple[bytes, ...]") -> "int | None":
    """The sum of some fields of a file about a process; None where the system does not show them."""
    try:
        with open(f"/proc/{number}/{name}", "rb") as file:
            found = [int(line.split()[1]) for line in file if line.startswith(fields)]
    except OSError:  # it has ended, or we may not read it
        return None
    return sum(found) if found else None


def read_resident_kb(number: int) -> int:
    """All memory of a process, with files: quick to read, and rarely over the limit."""
    try:
        with open(f"/proc/{number}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return 0


def read_private_kb(number: int) -> int:
    """Memory without files, and with a share of what is shared where the system shows it."""
    share = sum_kb(number, "smaps_rollup", SHARE_OF_MEMORY)
    return share if share is not None else sum_kb(number, "status", HELD_MEMORY) or 0


def read_system_shared_kb() -> int:
    """Shared memory of the whole system."""
    with open("/proc/meminfo", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Shmem:")), 0)


def sum_mapped_shared_kb(family: "Iterable[int]") -> "int | float":
    """The shared memory that a family has mapped, each piece once; infinite where we may not read a process."""
    sizes: dict[bytes, int] = {}
    try:
        for number in family:
            for piece, end in read_shared_mappings(number):
                sizes[piece] = max(end, sizes.get(piece, 0))
    except PermissionError:
        return float("inf")
    return sum(sizes.values()) // KB


def read_shared_mappings(number: int) -> "Iterator[tuple[bytes, int]]":
    try:
        with open(f"/proc/{number}/maps", "rb") as file:
            lines = [line.split(None, 5) for line in file if b"s " in line]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return
    for words in lines:
        if len(words) == 6 and words[1].endswith(b"s") and words[5].startswith(SHARED_MAPPINGS):
            start, _, end = words[0].partition(b"-")
            yield words[4], int(words[2], 16) + int(end, 16) - int(start, 16)
