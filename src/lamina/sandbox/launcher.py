"""The program that confines one command and then runs it (fault T10). `sandbox` starts it; nothing else imports it.

It runs as a process of its own, without the rest of lamina, and imports little because every command waits for it. Its
policy comes as arguments; what it has to say goes to the descriptor that it finds as its input. It never decides which
commands may run. Two ways to confine, both Linux: `namespaces` (a root of its own, made of the named folders) and
`landlock` (rules over the real root, for containers that cannot make namespaces).
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
"""The time between two looks at the family is so many times the processor time of a look, within these bounds."""
GRACE_SECONDS = 0.3
"""Between the request to end and the end."""
END_SECONDS = 3.0
KB = 1024
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // KB
HELD_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
"""What status says of memory that is not a file's: a process's own pages, those it may share, those swapped out."""
SHARE_OF_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
"""The same with each shared page divided among those that share it; it takes longer to find out."""
SHARED_MAPPINGS = (b"/dev/zero", b"/memfd:", b"/SYSV")


def main(words: "list[str]") -> None:
    """Confine, run, wait. The report has lines that begin with `ready`, `limit`, `exit`, or `unavailable` and why."""
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
    """The command may read how the first process of its namespace was called: it has no use for paths outside."""
    fields = read_stat(os.getpid())
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)


def end_with_parent(parent: int, number: int) -> None:
    """When the process that started us is killed, we get this signal."""
    set_process_option(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def start_in_namespaces(policy: Policy, say: "Callable[[str], None]") -> None:
    """A process that is the first of its own process namespace: what it started ends with it, by the system."""
    raise_oom_score()
    enter_namespaces(policy)
    gone, held = os.pipe()
    first = os.fork()
    if first:
        os.close(held)
        wait_for_child(first)
        os._exit(0)
    os.close(gone)
    try:
        set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.write(held, b".")  # fails with SIGPIPE or an error when the parent has gone in the meantime
        os.close(held)
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
    """When memory runs out, the system ends the command first."""
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def start_under_landlock(policy: Policy, say: "Callable[[str], None]") -> None:
    """Without a namespace of processes we adopt what loses its parent, so that the family stays below us."""
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
    child: int, policy: Policy, say: "Callable[[str], None]", family: "Callable[[], list[int]]",
    send: "Callable[[int], None]",
) -> None:  # fmt: skip
    """Until the command ends or its family takes too much; then all of it is ended."""
    watch = Watch(policy.limits, policy.folder, policy.changes)
    pause, code, last = CHECK_INTERVAL_S, None, float("inf")
    while code is None:
        got = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}, pause)
        if got is not None and got.si_signo != signal.SIGCHLD:
            last = min(last, time.monotonic() + GRACE_SECONDS)
            send_quietly(send, signal.SIGTERM)
        code = reap(child)
        if code is None and time.monotonic() > last:
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
    """The code of the command, when it has ended; for -1, a code as soon as there are no children."""
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
    """To everything that we may send a signal to, at one moment, so that not even a fork bomb gets ahead. Only for the
    first process of a namespace, and for one that Landlock lets reach nothing but its own descendants."""
    os.kill(-1, number)


def send_to_each(number: int) -> None:
    """One by one: all are stopped before the first is ended, since what is stopped starts nothing more."""
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
    except ProcessLookupError:  # nobody is left to get it
        return


class Watch:
    """Which limit a family is over, measured against what was there when it began."""

    def __init__(self, limits: "Mapping[str, int]", folder: str, changes: bool) -> None:
        self.limits, self.folder, self.changes = limits, folder, changes
        self.free, self.shared_kb = self.free_bytes(), read_system_shared_kb()

    def find_exceeded_limit(self, family: "list[int]") -> str:
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
        if sum(map(read_resident_kb, family)) > most and sum(map(read_private_kb, family)) > most:
            return True
        # A shared page that is unmapped again is kept as long as its mapping: only the whole system's sum has it.
        return read_system_shared_kb() - self.shared_kb > most and sum_mapped_shared_kb(family) > most

    def free_bytes(self) -> int:
        known = os.statvfs(self.folder)
        return known.f_bavail * known.f_frsize


# Processes, as /proc shows them


def list_namespace() -> "list[int]":
    """All but the first process of this namespace."""
    return [number for number in list_processes() if number != 1]


def list_descendants() -> "list[int]":
    """Of this process, found by their parents."""
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
    """How many threads this account has now."""
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


def read_resident_kb(number: int) -> int:
    """All that a process has in memory, files too: quickly found, and rarely too much."""
    try:
        with open(f"/proc/{number}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return 0


def read_private_kb(number: int) -> int:
    """Without files, and with a part of what is shared, where the system tells."""
    share = sum_kb(number, "smaps_rollup", SHARE_OF_MEMORY)
    return share if share is not None else sum_kb(number, "status", HELD_MEMORY) or 0


def read_system_shared_kb() -> int:
    """Shared memory of the whole system."""
    with open("/proc/meminfo", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Shmem:")), 0)


def sum_mapped_shared_kb(family: "Iterable[int]") -> "int | float":
    """How large the shared memory is that a family has mapped, each piece once; without bound where one process does
    not let us see it."""
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
