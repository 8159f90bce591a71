"""The system calls that confine a process, by their numbers: mounts, Landlock, capabilities, a filter of calls.

This room hides how Linux wants to be asked. Every function does one thing to the process that calls it, and says in an
`UnavailableError` what the system refused. What to ask for is the matter of `sandbox_launcher`.
"""

import ctypes
import os
import sys
from errno import ENOSYS, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
"""DAC_OVERRIDE, which reading may need too; CHOWN, FOWNER and FSETID."""

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
IPC and mq_open, which reach everybody's without a namespace. `by_process`: prlimit64, sched_setparam,
sched_setscheduler, sched_setaffinity and sched_setattr, which begin with a process; `by_kind`: setpriority and
ioprio_set, which begin with what the next argument names."""
PROCESS_OR_GROUP = ((0, 1), (1, 2))
"""The kinds of `by_kind` that mean a process or a group; the one that is left out means all of an account."""
PAIRED_SOCKETS = tuple(kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x80000, 0x80800))
"""SOCK_STREAM and SOCK_SEQPACKET: once they are paired they cannot be connected to anything else."""
CLONE3 = 435


class UnavailableError(Exception):
    """This machine does not offer what the policy asks for; the command was not started."""


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(what: str, result: int) -> int:
    if result < 0:
        raise UnavailableError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    source_or_none, kind_or_none = os.fsencode(source) or None, kind.encode() or None
    done = libc().mount(source_or_none, os.fsencode(target), kind_or_none, ctypes.c_ulong(flags), options.encode())
    checked(f"mount {target}", done)


def set_mount_flags(target: str, flags: int, *, deep: bool = True) -> None:
    """The flags of a mount and of all below it. MS_RDONLY, MS_NOSUID and MS_NODEV have the same values here."""
    values = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    checked(
        f"protect {target}",
        libc().syscall(
            SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(target), AT_RECURSIVE if deep else 0, values, ctypes.sizeof(values)
        ),
    )


def start_loopback() -> None:
    """Programs that talk to themselves need it; it leads nowhere else."""
    library = libc()
    handle = checked("socket", library.socket(INET, 2, 0))
    up = b"lo".ljust(16, b"\0") + (1).to_bytes(2, sys.byteorder) + bytes(22)
    checked("loopback", library.ioctl(handle, 0x8914, up))
    os.close(handle)


def landlock_version() -> int:
    return max(0, libc().syscall(SYS_LANDLOCK, None, 0, 1))


def add_rule(rules: int, path: str, rights: int) -> None:
    """What may be done with a file, or with a folder and everything below it."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there, or closed to us anyway
        return
    rights &= -1 if os.path.isdir(path) else FILE_RIGHTS
    rule = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
    checked(f"landlock {path}", libc().syscall(SYS_LANDLOCK + 1, rules, 1, rule, 0))
    os.close(handle)


def make_rules(files: int, network: int, scopes: int, size: int) -> int:
    values = (ctypes.c_uint64 * 3)(files, network, scopes)
    return checked("landlock", libc().syscall(SYS_LANDLOCK, values, ctypes.c_size_t(size), 0))


def restrict(rules: int) -> None:
    checked("landlock", libc().syscall(SYS_LANDLOCK + 2, rules, 0))
    os.close(rules)


def drop_capabilities(kept: "Sequence[int]") -> None:
    """All but these, for good: what is run later gets none of them back."""
    library = libc()
    for number in range(64):
        if number not in kept and library.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            break  # the last one that this system knows; or we have no powers at all
    bits = sum(1 << number for number in kept)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(bits, bits)
    checked("capset", library.capset(header, sets))


def filter_calls(
    machine: "Mapping[str, Sequence[int]]", refused: "Mapping[int, int]", guarded: "Mapping[int, Guard]"
) -> None:
    """Refuse system calls with an error each, some only with other arguments than these, and namespaces of users."""
    steps = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, machine["arch"][0]), (RETURN, 0, 0, ERRNO | ENOSYS), (LOAD, 0, 0, 0)]
    steps += [(JUMP_ABOVE, 0, 1, X32), (RETURN, 0, 0, ERRNO | ENOSYS)]
    for number, error in refused.items():
        steps += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | error)]
    for number in machine["clone"]:
        steps += [(JUMP_EQUAL, 0, 4, number), (LOAD, 0, 0, 16), (JUMP_BITS, 0, 1, NEW_USERS)]
        steps += [(RETURN, 0, 0, ERRNO | EPERM), (RETURN, 0, 0, ALLOW)]
    for number, (error, arguments) in guarded.items():
        checks: list[tuple[int, int, int, int]] = []
        for place, allowed in arguments:  # the lower half of the argument, all that these calls look at
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
    checked("seccomp", libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, values, 0, 0))


# Namespaces


def enter_namespaces(flags: int) -> None:
    """Root keeps all ids, so that files of others stay what they are; that takes a helper outside. Others keep one."""
    if os.geteuid():
        me, group = os.geteuid(), os.getegid()
        checked("unshare", libc().unshare(flags))
        write_file("/proc/self/setgroups", "deny")
        write_file("/proc/self/uid_map", f"{me} {me} 1")
        write_file("/proc/self/gid_map", f"{group} {group} 1")
        return
    maps = {name: same_ids(f"/proc/self/{name}") for name in ("uid_map", "gid_map")}
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
        checked("unshare", libc().unshare(flags))
        os.write(tell, b".")
    finally:
        os.close(tell)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise UnavailableError("the ids could not be mapped")


def same_ids(path: str) -> str:
    with open(path) as file:
        extents = [line.split() for line in file]
    return "\n".join(f"{first} {first} {count}" for first, _, count in extents)


def write_file(path: str, text: str) -> None:
    """At one go, as the system wants it for these files."""
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def bind(path: str, flags: int) -> None:
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
        bind(f"/dev/{name}", MS_NOSUID)
    for name, target in {**DEVICE_LINKS, "shm": private}.items():
        os.symlink(target, f"/dev/{name}")


def hide(path: str) -> None:
    """Nothing but an empty, closed thing is where this was; where it is not to be seen anyway, nothing is done."""
    if os.path.islink(path) or not os.path.exists(path):
        return
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=000")
    else:
        mount(f"{OLD_ROOT}/dev/null", path, "", MS_BIND)
        set_mount_flags(path, MS_RDONLY)
