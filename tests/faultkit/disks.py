"""A slow disk, and a loss of power, for servers that a test starts: a small library in front of libc, compiled here."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile long long *delay_us;
static int written = -1;

__attribute__((constructor)) static void open_files(void) {
    const char *path = getenv("DISK_DELAY");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) delay_us = mapped;
    close(file);
    written = open(getenv("DISK_WRITTEN"), O_WRONLY | O_APPEND | O_CREAT, 0600);
}

static int flush(int file, const char *name) {
    int (*libc)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    char link[64], path[4096], line[4200];
    struct stat found = {0};
    fstat(file, &found);  /* what is written from now on may not be on the disk */
    if (delay_us && *delay_us) usleep(*delay_us);
    int failed = libc(file);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = failed ? -1 : readlink(link, path, sizeof path - 1);
    if (length > 0 && written >= 0) {
        path[length] = 0;
        int size = snprintf(line, sizeof line, "%lld %s\n", (long long)found.st_size, path);
        if (write(written, line, size) != size) abort();
    }
    return failed;
}

int fdatasync(int file) { return flush(file, "fdatasync"); }
int fsync(int file) { return flush(file, "fsync"); }
"""


class WatchedDisk:
    """Makes the library in `directory`; a server that gets `env` uses it. No compiler: the test is skipped."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc), to make the disk of a server slow")
        source, library = directory / "disk.c", directory / "disk.so"
        self._delay, self._written = directory / "disk.delay", directory / "disk.written"
        source.write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"cc cannot make a shared library here: {made.stderr.strip()[-300:]}")
        self.slow_down(0)
        self.env = {
            "LD_PRELOAD": str(library),
            "DISK_DELAY": str(self._delay),
            "DISK_WRITTEN": str(self._written),
        }

    def slow_down(self, seconds: float) -> None:
        """Let each flush to the disk take this much longer, while the server runs."""
        with self._delay.open("r+b" if self._delay.exists() else "wb") as delay:
            delay.write(struct.pack("q", round(seconds * 1e6)))

    def lose_power(self, server: RedisServer) -> int:
        """Kill the server, take from its append-only file all bytes that were not flushed, and return their number."""
        server.kill()
        flushed: dict[str, int] = {}
        for line in self._written.read_text().splitlines():
            size, _, path = line.partition(" ")
            flushed[path] = max(int(size), flushed.get(path, 0))
        lost = 0
        for file in server.directory.glob("appendonlydir/*.incr.aof"):
            kept = flushed.get(str(file), 0)
            lost += file.stat().st_size - kept
            os.truncate(file, kept)
        return lost
