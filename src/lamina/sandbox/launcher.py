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
from errno import EACCES, ENOSYS, EPERM

from lamina.sandbox.kernel import (
    CLONE3,
    DEVICES,
    FILE_CAPABILITIES,
    INET,
    INET6,
    IOCTL_DEV,
    MACHINES,
    MAKE_DEVICES,
    MNT_DETACH,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    NETLINK,
    NEW_IPC,
    NEW_MOUNTS,
    NEW_NETWORK,
    NEW_PIDS,
    NEW_USERS,
    OLD_ROOT,
    PAIRED_SOCKETS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    PROCESS_OR_GROUP,
    READ_DIR,
    READ_FILE,
    READ_RIGHTS,
    SCOPE_ALL,
    TCP_ALL,
    TRUNCATE,
    UNIX,
    WRITE_FILE,
    UnavailableError,
    add_rule,
    bind,
    checked,
    drop_capabilities,
    enter_namespaces,
    filter_calls,
    hide,
    landlock_version,
    libc,
    make_devices,
    make_rules,
    mount,
    restrict,
    set_mount_flags,
    start_loopback,
)
from lamina.sandbox.processes import Watch, account_threads, descendants, others_here, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable

    from lamina.sandbox.kernel import Guard
else:  # the module `signal` takes five milliseconds to make its enumerations
    import _signal as signal

PROC_FILES = tuple(
    f"/proc/{name}"
    for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "self", "stat", "uptime", "version", "vmstat")
)
"""What Landlock alone leaves of /proc: nothing about other processes; `self` is the shell that is started."""
CHECK_INTERVAL_S, MAX_CHECK_INTERVAL_S = 0.1, 1.0
CHECK_SHARE = 20
"""The time between two looks at the family is so many times the processor time of a look, within these bounds."""
GRACE_SECONDS = 0.3
"""Between the request to end and the end."""
END_SECONDS = 3.0


class Policy:
    """What the arguments say: `name=value` each, up to `--` and the command."""

    def __init__(self, words: "list[str]") -> None:
        split = words.index("--")
        self.command = words[split + 1 :]
        values: dict[str, list[str]] = {}
        for word in words[:split]:
            name, _, value = word.partition("=")
            values.setdefault(name, []).append(value)
        self.mode, self.folder, self.private = values["mode"][0], values["folder"][0], values["private"][0]
        self.parent = int(values["parent"][0])
        self.network, self.changes = values["network"][0] == "on", values["changes"][0] == "on"
        self.readable, self.writable = values.get("read", []), values.get("write", [])
        self.hidden = values.get("hide", [])
        self.limits = {name: int(value) for name, value in (each.split(":") for each in values.get("limit", []))}
        if os.uname().machine not in MACHINES:
            raise UnavailableError(f"the machine {os.uname().machine} is not known")
        self.machine = MACHINES[os.uname().machine]
        self.landlock = landlock_version()


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
    fields = stat_of(os.getpid())
    start, end = int(fields[45]), int(fields[46])
    ctypes.memset(start, 0, end - start)


def end_with_parent(parent: int, number: int) -> None:
    """When the process that started us is killed, we get this signal."""
    libc().prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


# Namespaces


def start_in_namespaces(policy: Policy, say: "Callable[[str], None]") -> None:
    """A process that is the first of its own process namespace: what it started ends with it, by the system."""
    raise_oom_score()
    enter_namespaces(NEW_USERS | NEW_MOUNTS | NEW_IPC | NEW_PIDS | (0 if policy.network else NEW_NETWORK))
    gone, held = os.pipe()
    first = os.fork()
    if first:
        os.close(held)
        wait_for(first)
        os._exit(0)
    os.close(gone)
    try:
        libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.write(held, b".")  # fails with SIGPIPE or an error when the parent has gone in the meantime
        os.close(held)
        make_root(policy)
        if not policy.network:
            start_loopback()
        os.chdir(policy.folder)
        child = start(policy, say)
        libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        supervise(child, policy, say, others_here, send_to_all)
    except (UnavailableError, OSError) as error:
        say(f"unavailable {error}")
    os._exit(0)


def wait_for(child: int) -> None:
    while True:
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        if os.waitpid(child, os.WNOHANG)[0] == child:
            return


def raise_oom_score() -> None:
    """When memory runs out, the system ends the command first."""
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def make_root(policy: Policy) -> None:
    """A root in memory that holds the named folders and nothing else; the old one is unmounted."""
    mount("", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"/tmp{OLD_ROOT}")
    checked("pivot_root", libc().syscall(policy.machine["pivot_root"][0], b"/tmp", f"/tmp{OLD_ROOT}".encode()))
    os.chdir("/")
    os.makedirs(policy.private)
    mount("tmpfs", policy.private, "tmpfs", MS_NOSUID | MS_NODEV, f"size={policy.limits['temporary']},mode=700")
    if policy.private != "/tmp":
        os.mkdir("/tmp")
    os.mkdir("/proc")
    mount("proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in sorted(policy.readable):
        bind(path, MS_RDONLY | MS_NOSUID | MS_NODEV)
    make_devices(policy.private)
    for path in policy.writable:
        bind(path, MS_NOSUID | MS_NODEV | (0 if policy.changes else MS_RDONLY))
    for path in folders_to_hold(policy):
        mount(path, path, "", MS_BIND | MS_REC)
    for path in policy.hidden:
        hide(path)
    checked("umount", libc().umount2(OLD_ROOT.encode(), MNT_DETACH))
    os.rmdir(OLD_ROOT)
    if not os.path.lexists("/var/tmp"):
        os.makedirs("/var", exist_ok=True)
        os.symlink(policy.private, "/var/tmp")
    set_mount_flags("/", MS_RDONLY, deep=False)


def folders_to_hold(policy: Policy) -> "list[str]":
    """The folders that lead to something hidden in a writable one. As mount points nobody can rename them, so that
    their path hides the same thing from the next command too."""
    held: dict[str, None] = {}
    for path in filter(os.path.lexists, policy.hidden if policy.changes else ()):
        for folder in policy.writable:
            above = os.path.dirname(path)
            while above.startswith(folder.rstrip("/") + "/"):
                held[above] = None
                above = os.path.dirname(above)
    return sorted(path for path in held if os.path.realpath(path) == path)


# Landlock alone


def start_under_landlock(policy: Policy, say: "Callable[[str], None]") -> None:
    """Without a namespace of processes we adopt what loses its parent, so that the family stays below us."""
    if not policy.landlock:
        raise UnavailableError("this system has no Landlock")
    raise_oom_score()
    libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(policy.folder)
    scoped = policy.landlock >= 6 and scope_signals(policy.parent)
    child = start(policy, say)
    libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    supervise(child, policy, say, descendants, send_to_all if scoped else send_to_each)
    os._exit(0)


def scope_signals(parent: int) -> bool:
    """Let our own signals reach only what we start. False when our parent can still be reached: then it failed."""
    checked("no_new_privs", libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    restrict(make_rules(0, 0, SCOPE_ALL, 24))
    try:
        os.kill(parent, 0)
    except PermissionError:
        return True
    return False


def send_to_all(number: int) -> None:
    """To everything that we may send a signal to, at one moment, so that not even a fork bomb gets ahead. Only for the
    first process of a namespace, and for one that Landlock lets reach nothing but its own descendants."""
    os.kill(-1, number)


def send_to_each(number: int) -> None:
    """One by one: all are stopped before the first is ended, since what is stopped starts nothing more."""
    stopped: set[int] = set()
    while number == signal.SIGKILL and (new := set(descendants()) - stopped):
        for each in new:
            send_to_one(each, signal.SIGSTOP)
        stopped |= new
    for each in stopped or descendants():
        send_to_one(each, number)


def send_to_one(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def restrict_files(policy: Policy) -> None:
    """What the rules do not name cannot be opened, made, removed, renamed or run."""
    version = policy.landlock
    every = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    network = TCP_ALL if policy.mode == "landlock" and not policy.network and version >= 4 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = make_rules(every, network, SCOPE_ALL if version >= 6 else 0, size)

    def allow(path: str, rights: int) -> None:
        add_rule(rules, path, rights & every)

    changing = every & ~MAKE_DEVICES
    for name in DEVICES:
        allow(f"/dev/{name}", READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV)
    allow(policy.private, changing)
    if policy.mode == "namespaces":
        allow("/", READ_RIGHTS)
        for path in policy.writable if policy.changes else ():
            allow(path, changing)
    else:
        for path in PROC_FILES:
            allow(path, READ_RIGHTS)
        allowed = [(path, READ_RIGHTS) for path in policy.readable]
        allowed += [(path, changing if policy.changes else READ_RIGHTS) for path in policy.writable]
        for path, rights in allowed:
            for part, whole in open_parts(path, policy.hidden):
                allow(part, rights if whole else READ_DIR)
    restrict(rules)


def open_parts(path: str, hidden: "list[str]") -> "Iterable[tuple[str, bool]]":
    """A folder without what is hidden in it: as a whole, or its entries one by one."""
    if path in hidden:
        return
    if not any(each.startswith(path.rstrip("/") + "/") for each in hidden):
        yield path, True
        return
    yield path, False
    for name in os.listdir(path):
        entry = os.path.join(path, name)
        if not os.path.islink(entry):
            yield from open_parts(entry, hidden)


# The command


def start(policy: Policy, say: "Callable[[str], None]") -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        set_limits(policy)
        checked("no_new_privs", libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if policy.landlock:
            restrict_files(policy)
        drop_capabilities(kept_capabilities(policy))
        filter_calls(policy.machine, refused_calls(policy), guarded_calls(policy))
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
        limits[resource.RLIMIT_NPROC] = policy.limits["processes"] + account_threads()
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    os.nice(5)


def kept_capabilities(policy: Policy) -> "tuple[int, ...]":
    """Of root's powers those over files stay, which its own folders may need; others never have any."""
    powers = FILE_CAPABILITIES if policy.changes else FILE_CAPABILITIES[:1]
    return () if os.geteuid() else powers


def refused_calls(policy: Policy) -> "dict[int, int]":
    """System calls that no command needs and that lead around the rest, each with its error."""
    refused = dict.fromkeys(policy.machine["never"], EPERM) | {CLONE3: ENOSYS}
    refused |= dict.fromkeys(policy.machine["uncounted"], ENOSYS)
    if policy.mode == "landlock":
        refused |= dict.fromkeys(policy.machine["common"], ENOSYS)
        refused |= dict.fromkeys(policy.machine["truncate"] if policy.landlock < 3 else (), EACCES)
        refused |= dict.fromkeys(() if policy.changes else policy.machine["metadata"], EPERM)
    return refused


def guarded_calls(policy: Policy) -> "dict[int, Guard]":
    """System calls that are allowed with some arguments only. Without a namespace of processes a command could change
    the limits and the priority of others, and with a limit end them: it may name only itself, which is 0."""
    families = socket_families(policy)
    guards: dict[int, Guard] = {policy.machine["socket"][0]: (EACCES, ((0, families),))}
    if UNIX not in families:  # one of a pair of datagram sockets can still be pointed at another socket
        guards[policy.machine["socketpair"][0]] = (EACCES, ((1, PAIRED_SOCKETS),))
    if policy.mode == "landlock":
        for number in policy.machine["by_process"]:
            guards[number] = (EPERM, ((0, (0,)),))
        for number, kinds in zip(policy.machine["by_kind"], PROCESS_OR_GROUP, strict=True):
            guards[number] = (EPERM, ((0, kinds), (1, (0,))))
    return guards


def socket_families(policy: Policy) -> "tuple[int, ...]":
    """A daemon's socket is a file, which neither Landlock nor a namespace closes: without the network no command has
    sockets of that family. In a namespace the others lead nowhere."""
    if not policy.changes:
        return ()
    if policy.network:
        return (UNIX, INET, INET6, NETLINK) if policy.mode == "namespaces" else (INET, INET6, NETLINK)
    return (INET, INET6, NETLINK) if policy.mode == "namespaces" else ()


# Its family


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
            quietly(send, signal.SIGTERM)
        code = reap(child)
        if code is None and time.monotonic() > last:
            code = -signal.SIGKILL
        if code is None and got is None:
            began = time.process_time()
            exceeded = watch.exceeded(family())
            pause = min(max(CHECK_INTERVAL_S, CHECK_SHARE * (time.process_time() - began)), MAX_CHECK_INTERVAL_S)
            if exceeded:
                say(f"limit {exceeded}")
                code = -signal.SIGKILL
    until = time.monotonic() + END_SECONDS
    while (alone := reap(-1)) is None and time.monotonic() < until:
        quietly(send, signal.SIGKILL)
        time.sleep(0.001)
    say(f"exit {code}")
    if alone is not None:
        say("alone ")


def quietly(send: "Callable[[int], None]", number: int) -> None:
    try:
        send(number)
    except ProcessLookupError:  # nobody is left to get it
        return


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
