"""Becomes process 1 of a container: run by `Container` as root in new namespaces, with one JSON object as argument."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}


def main() -> None:
    """Mount the root file system read-only, give up all rights, and execute the command."""
    plan = json.loads(sys.argv[1])
    root = Path(plan["root"])
    mount("--bind", plan["root"], plan["root"])
    for source, target in plan["volumes"]:
        mount("--bind", source, f"{root}{target}")
        mount("-o", "remount,bind,ro", f"{root}{target}")
    mount("-t", "proc", "proc", f"{root}/proc")
    make_devices(root / "dev")
    mount("-o", "remount,bind,ro", plan["root"])
    loopback_up()
    os.chroot(root)
    os.chdir(plan["folder"])
    drop_rights(plan["user"])
    os.execvpe(plan["command"][0], plan["command"], plan["environ"])


def mount(*arguments: str) -> None:
    """Mount as the program of that name does."""
    subprocess.run(["mount", *arguments], check=True)


def make_devices(folder: Path) -> None:
    """Give the container the few devices that all containers have; they are read-only with the root."""
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
    os.umask(0)
    for name, (major, minor) in DEVICES.items():
        os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    for name, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        (folder / name).symlink_to(f"/proc/self/fd{target}")
    os.umask(0o022)
    mount("-o", "remount,ro", str(folder))


def loopback_up() -> None:
    """Switch the loopback interface of the network namespace on; it is the only one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack("16xh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def drop_rights(user: int) -> None:
    """Become a user without capabilities, who cannot get any."""
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    assert capability > 30, os.strerror(ctypes.get_errno())
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


if __name__ == "__main__":
    main()
