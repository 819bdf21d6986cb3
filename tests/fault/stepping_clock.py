"""A wall clock that a test steps, for the servers that it starts: a small library in front of libc, compiled here."""

from __future__ import annotations

import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift_us;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("STEPPING_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift_us = mapped;
    close(file);
}

static int real_clock(clockid_t id, struct timespec *at) {
    static int (*libc)(clockid_t, struct timespec *);
    if (!libc) libc = dlsym(RTLD_NEXT, "clock_gettime");
    return libc(id, at);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = real_clock(id, at);
    if (failed || !shift_us || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + *shift_us * 1000;
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class SteppingClock:
    """Makes the library in `directory`; a server that gets `env` follows `step`. No compiler: the test is skipped."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler (cc), to make the clock of a server step")
        source, library = directory / "clock.c", directory / "clock.so"
        self._shift = directory / "clock.shift"
        source.write_text(_SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"cc cannot make a shared library here: {made.stderr.strip()[-300:]}")
        self._us = 0
        self._shift.write_bytes(struct.pack("q", 0))
        self.env = {"LD_PRELOAD": str(library), "STEPPING_CLOCK": str(self._shift)}

    def step(self, seconds: float) -> None:
        """Step the clock of the servers, forward or back, while they run."""
        self._us += round(seconds * 1e6)
        with self._shift.open("r+b") as shift:
            shift.write(struct.pack("q", self._us))
