"""How Linux confines a process: namespaces, Landlock, capabilities, limits, a filter of system calls.

Every function does one thing to the process that calls it, and raises `UnavailableError` with what the system refused.
`launcher` decides the order. It is loaded before every command, without the rest of lamina, so it imports little.
"""

import ctypes
import os
import sys
from errno import EACCES, ENOSYS, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Guard = tuple[int, tuple[tuple[int, tuple[int, ...]], ...]]
    """An error, and for each argument that matters its place and the values that are allowed."""

OLD_ROOT = "/.outside"
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}

# linux/sched.h, linux/mount.h, linux/prctl.h
NEW_MOUNTS, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
SYS_MOUNT_SETATTR, SYS_LANDLOCK = 442, 444
"""The same numbers on every machine that Landlock runs on."""
FILE_CAPABILITIES = (1, 0, 3, 4)
"""DAC_OVERRIDE, which reading may need too, CHOWN, FOWNER and FSETID."""

# linux/landlock.h
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ_RIGHTS = EXECUTE | READ_FILE | READ_DIR
MAKE_DEVICES = 1 << 6 | 1 << 11
SCOPE_ALL, TCP_ALL = 3, 3

# linux/filter.h, linux/seccomp.h
LOAD, JUMP_EQUAL, JUMP_ABOVE, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
X32 = 0x40000000
MACHINES = {
    "x86_64": {
        "arch": (0xC000003E,), "pivot_root": (155,), "socket": (41,), "clone": (56, 272), "truncate": (76,),
        "socketpair": (53,), "uncounted": (29, 319, 447), "common": (30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240),
        "by_process": (302, 142, 144, 203, 314), "by_kind": (141, 251),
        "never": (165, 166, 155, 175, 176, 246, 248, 249, 250, 298, 304, 308, 313, 320, 321, 323, 425, 426, 427),
        "metadata": (
            90, 91, 92, 93, 94, 132, 188, 189, 190, 197, 198, 199, 235, 260, 261, 268, 280, 452, 463, 466, 469,
        ),
    },
    "aarch64": {
        "arch": (0xC00000B7,), "pivot_root": (41,), "socket": (198,), "clone": (220, 97), "truncate": (45,),
        "socketpair": (199,), "uncounted": (194, 279, 447),
        "common": (180, 186, 187, 188, 189, 190, 191, 192, 193, 195, 196),
        "by_process": (261, 118, 119, 122, 274), "by_kind": (140, 30),
        "never": (40, 39, 41, 105, 106, 104, 217, 218, 219, 241, 265, 268, 273, 294, 280, 282, 425, 426, 427),
        "metadata": (5, 6, 7, 14, 15, 16, 52, 53, 54, 55, 88, 452, 463, 466, 469),
    },
}  # fmt: skip
"""Numbers of system calls. `never`: mount, umount2, pivot_root, modules, kexec, keys, perf_event_open,
open_by_handle_at, setns, bpf, userfaultfd, io_uring. `clone`: clone and unshare, whose first argument are flags.
`metadata`: chmod, chown, utime and xattr in all forms, which Landlock does not see. `uncounted`: shmget, memfd_create
and memfd_secret, whose memory belongs to no process as long as it is not mapped. `common`: the other calls of System V
IPC and mq_open, which without a namespace reach those of all processes. `by_process`: prlimit64, sched_setparam,
sched_setscheduler, sched_setaffinity and sched_setattr, whose first argument is a process; `by_kind`: setpriority and
ioprio_set, whose first argument says what the second one is."""
PROCESS_OR_GROUP = ((0, 1), (1, 2))
"""The kinds of `by_kind` for a process or a group. The kind for all processes of an account is left out."""
PAIRED_SOCKETS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM and SOCK_SEQPACKET: a paired socket of these types cannot be connected to anything else."""
CLONE3 = 435
PROC_FILES = tuple(
    f"/proc/{name}"
    for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "self", "stat", "uptime", "version", "vmstat")
)
"""What can be read of /proc under Landlock alone: nothing about other processes. `self` is the shell that starts."""


class UnavailableError(Exception):
    """This machine does not offer what the policy requires; the command was not started."""


class Policy:
    """The arguments of the launcher: `name=value` each, up to `--` and the command."""

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
        self.landlock = read_landlock_version()


# System calls


def load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def check_result(what: str, result: int) -> int:
    if result < 0:
        raise UnavailableError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    source_or_none, kind_or_none = os.fsencode(source) or None, kind.encode() or None
    done = load_libc().mount(source_or_none, os.fsencode(target), kind_or_none, ctypes.c_ulong(flags), options.encode())
    check_result(f"mount {target}", done)


def set_process_option(option: int, value: int) -> int:
    return load_libc().prctl(option, value, 0, 0, 0)


def set_mount_flags(target: str, flags: int, *, deep: bool = True) -> None:
    """Set flags of a mount and of those below it. MS_RDONLY, MS_NOSUID and MS_NODEV have the same values here."""
    values = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    check_result(
        f"protect {target}",
        load_libc().syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE if deep else 0, values, ctypes.sizeof(values)
        ),
    )


def start_loopback() -> None:
    """Programs that connect to themselves need it; it leads nowhere else."""
    library = load_libc()
    handle = check_result("socket", library.socket(INET, 2, 0))
    up = b"lo".ljust(16, b"\0") + (1).to_bytes(2, sys.byteorder) + bytes(22)
    check_result("loopback", library.ioctl(handle, 0x8914, up))
    os.close(handle)


def read_landlock_version() -> int:
    return max(0, load_libc().syscall(SYS_LANDLOCK, None, 0, 1))


def add_rule(rules: int, path: str, rights: int) -> None:
    """Allow rights for a file, or for a folder and everything below it."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it does not exist, or we may not open it anyway
        return
    rights &= -1 if os.path.isdir(path) else FILE_RIGHTS
    rule = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
    check_result(f"landlock {path}", load_libc().syscall(SYS_LANDLOCK + 1, rules, 1, rule, 0))
    os.close(handle)


def make_ruleset(files: int, network: int, scopes: int, size: int) -> int:
    values = (ctypes.c_uint64 * 3)(files, network, scopes)
    return check_result("landlock", load_libc().syscall(SYS_LANDLOCK, values, ctypes.c_size_t(size), 0))


def apply_rules(rules: int) -> None:
    check_result("landlock", load_libc().syscall(SYS_LANDLOCK + 2, rules, 0))
    os.close(rules)


def drop_capabilities(kept: "Sequence[int]") -> None:
    """Drop all capabilities but these, for good: no program that is run later gets them back."""
    library = load_libc()
    for number in range(64):
        if number not in kept and library.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # past the last one that this system has, or we have none
    bits = sum(1 << number for number in kept)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(bits, bits)
    check_result("capset", library.capset(header, sets))


def filter_calls(
    machine: "Mapping[str, Sequence[int]]", refused: "Mapping[int, int]", guarded: "Mapping[int, Guard]"
) -> None:
    """Refuse system calls with an error each, some only with certain arguments, and new user namespaces."""
    steps = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, machine["arch"][0]), (RETURN, 0, 0, ERRNO | ENOSYS), (LOAD, 0, 0, 0)]
    steps += [(JUMP_ABOVE, 0, 1, X32), (RETURN, 0, 0, ERRNO | ENOSYS)]
    for number, error in refused.items():
        steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | error)]
    for number in machine["clone"]:
        steps += [(JUMP_EQUAL, 0, 4, number), (LOAD, 0, 0, 16), (JUMP_BITS, 0, 1, NEW_USERS)]
        steps += [(RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
    for number, (error, arguments) in guarded.items():
        checks: list[tuple[int, int, int, int]] = []
        for place, allowed in arguments:  # the lower half of the argument, which is all that these calls read
            checks.append((LOAD, 0, 0, 16 + 8 * place))
            checks += [(JUMP_EQUAL, len(allowed) - at, 0, value) for at, value in enumerate(allowed)]
            checks.append((RETURN, 0, 0, ERRNO | error))
        steps += [(JUMP_EQUAL, 0, len(checks) + 1, number), *checks, (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, ALLOW))
    code = b"".join(
        kind.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)
        for kind, yes, no, value in steps
    )
    program = ctypes.create_string_buffer(code, len(code))
    values = (ctypes.c_uint64 * 2)(len(steps), ctypes.addressof(program))
    check_result("seccomp", load_libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, values, 0, 0))


# A root of its own


def enter_namespaces(policy: Policy) -> None:
    """Root keeps all ids, so that the owners of files stay what they are; a helper outside has to map them. Others keep
    their own id."""
    flags = NEW_USERS | NEW_MOUNTS | NEW_IPC | NEW_PIDS | (0 if policy.network else NEW_NETWORK)
    if os.geteuid():
        me, group = os.geteuid(), os.getegid()
        check_result("unshare", load_libc().unshare(flags))
        write_file("/proc/self/setgroups", "deny")
        write_file("/proc/self/uid_map", f"{me} {me} 1")
        write_file("/proc/self/gid_map", f"{group} {group} 1")
        return
    maps = {name: read_id_map(f"/proc/self/{name}") for name in ("uid_map", "gid_map")}
    me, (hear, tell) = os.getpid(), os.pipe()
    helper = os.fork()
    if not helper:
        code = 1
        try:
            os.close(tell)
            if os.read(hear, 1):
                for name, lines in maps.items():
                    write_file(f"/proc/{me}/{name}", lines)
                code = 0
        finally:
            os._exit(code)
    os.close(hear)
    try:
        check_result("unshare", load_libc().unshare(flags))
        os.write(tell, b".")
    finally:
        os.close(tell)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise UnavailableError("the ids could not be mapped")


def read_id_map(path: str) -> str:
    with open(path) as file:
        extents = [line.split() for line in file]
    return "\n".join(f"{first} {first} {count}" for first, _, count in extents)


def write_file(path: str, text: str) -> None:
    """Write in one call, as the system requires for these files."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def make_root(policy: Policy) -> None:
    """Make a root in memory with the named folders and nothing else, and unmount the old one."""
    mount("", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"/tmp{OLD_ROOT}")
    check_result(
        "pivot_root", load_libc().syscall(policy.machine["pivot_root"][0], b"/tmp", f"/tmp{OLD_ROOT}".encode())
    )
    os.chdir("/")
    os.makedirs(policy.private)
    mount("tmpfs", policy.private, "tmpfs", MS_NOSUID | MS_NODEV, f"size={policy.limits['temporary']},mode=700")
    if policy.private != "/tmp":
        os.mkdir("/tmp")
    os.mkdir("/proc")
    mount("proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in sorted(policy.readable):
        bind_path(path, MS_RDONLY | MS_NOSUID | MS_NODEV)
    make_devices(policy.private)
    for path in policy.writable:
        bind_path(path, MS_NOSUID | MS_NODEV | (0 if policy.changes else MS_RDONLY))
    for path in list_folders_to_pin(policy):
        mount(path, path, "", MS_BIND | MS_REC)
    for path in policy.hidden:
        hide_path(path)
    check_result("umount", load_libc().umount2(OLD_ROOT.encode(), MNT_DETACH))
    os.rmdir(OLD_ROOT)
    if not os.path.lexists("/var/tmp"):
        os.makedirs("/var", exist_ok=True)
        os.symlink(policy.private, "/var/tmp")
    set_mount_flags("/", MS_RDONLY, deep=False)


def list_folders_to_pin(policy: Policy) -> "list[str]":
    """The folders on the way to something hidden in a writable folder. As mount points they cannot be renamed, so the
    same path is hidden from the next command too."""
    held: dict[str, None] = {}
    for path in filter(os.path.lexists, policy.hidden if policy.changes else ()):
        for folder in policy.writable:
            above = os.path.dirname(path)
            while above.startswith(folder.rstrip("/") + "/"):
                held[above] = None
                above = os.path.dirname(above)
    return sorted(path for path in held if os.path.realpath(path) == path)


def bind_path(path: str, flags: int) -> None:
    outside = f"{OLD_ROOT}{path}"
    if os.path.islink(outside):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.lexists(path):
            os.symlink(os.readlink(outside), path)
        return
    if os.path.isdir(outside):
        os.makedirs(path, exist_ok=True)
    elif os.path.exists(outside):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        return
    mount(outside, path, "", MS_BIND | MS_REC)
    set_mount_flags(path, flags)


def make_devices(private: str) -> None:
    for name in DEVICES:
        bind_path(f"/dev/{name}", MS_NOSUID)
    for name, target in {**DEVICE_LINKS, "shm": private}.items():
        os.symlink(target, f"/dev/{name}")


def hide_path(path: str) -> None:
    """Replace a file or folder with an empty one that cannot be opened; do nothing where it is not visible anyway."""
    if os.path.islink(path) or not os.path.exists(path):
        return
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=000")
    else:
        mount(f"{OLD_ROOT}/dev/null", path, "", MS_BIND)
        set_mount_flags(path, MS_RDONLY)


# What the command may do


def confine_command(policy: Policy) -> None:
    """Everything that this process runs from here on is held by the policy, for good."""
    check_result("no_new_privs", set_process_option(PR_SET_NO_NEW_PRIVS, 1))
    if policy.landlock:
        restrict_files(policy)
    drop_capabilities(list_capabilities(policy))
    filter_calls(policy.machine, list_refused_calls(policy), list_guarded_calls(policy))


def scope_signals(parent: int) -> bool:
    """Let our own signals reach only what we start. False when our parent can still be reached, so it failed."""
    check_result("no_new_privs", set_process_option(PR_SET_NO_NEW_PRIVS, 1))
    apply_rules(make_ruleset(0, 0, SCOPE_ALL, 24))
    try:
        os.kill(parent, 0)
    except PermissionError:
        return True
    return False


def restrict_files(policy: Policy) -> None:
    """Forbid to open, make, remove, rename or run what the rules do not name."""
    version = policy.landlock
    every = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    network = TCP_ALL if policy.mode == "landlock" and not policy.network and version >= 4 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = make_ruleset(every, network, SCOPE_ALL if version >= 6 else 0, size)

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
            for part, whole in list_open_parts(path, policy.hidden):
                allow(part, rights if whole else READ_DIR)
    apply_rules(rules)


def list_open_parts(path: str, hidden: "list[str]") -> "Iterator[tuple[str, bool]]":
    """The parts of a folder without what is hidden in it: the whole folder, or its entries one by one."""
    if path in hidden:
        return
    if not any(each.startswith(path.rstrip("/") + "/") for each in hidden):
        yield path, True
        return
    yield path, False
    for name in os.listdir(path):
        entry = os.path.join(path, name)
        if not os.path.islink(entry):
            yield from list_open_parts(entry, hidden)


def list_capabilities(policy: Policy) -> "tuple[int, ...]":
    """Root keeps its capabilities for files, which its own folders may need; other accounts keep none."""
    capabilities = FILE_CAPABILITIES if policy.changes else FILE_CAPABILITIES[:1]
    return () if os.geteuid() else capabilities


def list_refused_calls(policy: Policy) -> "dict[int, int]":
    """System calls that no command needs and that circumvent the rest, each with its error."""
    refused = dict.fromkeys(policy.machine["never"], EPERM) | {CLONE3: ENOSYS}
    refused |= dict.fromkeys(policy.machine["uncounted"], ENOSYS)
    if policy.mode == "landlock":
        refused |= dict.fromkeys(policy.machine["common"], ENOSYS)
        refused |= dict.fromkeys(policy.machine["truncate"] if policy.landlock < 3 else (), EACCES)
        refused |= dict.fromkeys(() if policy.changes else policy.machine["metadata"], EPERM)
    return refused


def list_guarded_calls(policy: Policy) -> "dict[int, Guard]":
    """System calls that are allowed with some arguments only. Without a process namespace a command could change the
    limits and the priority of other processes, and so end them: it may name only itself, which is 0."""
    families = list_socket_families(policy)
    guards: dict[int, Guard] = {policy.machine["socket"][0]: (EACCES, ((0, families),))}
    if UNIX not in families:  # a datagram socket of a pair can still be connected to another socket
        guards[policy.machine["socketpair"][0]] = (EACCES, ((1, PAIRED_SOCKETS),))
    if policy.mode == "landlock":
        for number in policy.machine["by_process"]:
            guards[number] = (EPERM, ((0, (0,)),))
        for number, kinds in zip(policy.machine["by_kind"], PROCESS_OR_GROUP, strict=True):
            guards[number] = (EPERM, ((0, kinds), (1, (0,))))
    return guards


def list_socket_families(policy: Policy) -> "tuple[int, ...]":
    """A daemon's socket is a file that neither Landlock nor a namespace closes, so without the network no command has
    sockets of that family. In a namespace the other families lead nowhere."""
    if not policy.changes:
        return ()
    if policy.network:
        return (UNIX, INET, INET6, NETLINK) if policy.mode == "namespaces" else (INET, INET6, NETLINK)
    return (INET, INET6, NETLINK) if policy.mode == "namespaces" else ()
