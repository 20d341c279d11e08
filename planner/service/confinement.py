"""What is done to a process that works on what others have sent: by what starts it, and by itself before it begins."""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_NICENESS = 10  # halfway down: what answers requests comes first
_LARGEST_FILE_BYTES = 64 * 2**20  # Python's caches of bytecode are all that is written
OUT_OF_MEMORY_STATUS = 3  # what a process ends with that was refused memory, where it can
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "USER", "TMPDIR", "LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS")
_GRACE_S = 5  # of CPU time, from the signal that says why to the one that cannot be caught


def bare_environment() -> dict[str, str]:
    """The environment that such a process is started with: ours has the database's password."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def die_with(parent: int) -> None:
    """Asks the kernel to end this process with that one, which cannot when it is killed. Only Linux can be asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)


def confine(*, memory_bytes: int, cpu_s: float | None = None) -> None:
    """Limits this process, and all that it starts.

    Args:
        memory_bytes: Of address space: asking for more fails.
        cpu_s: Of all its threads together: SIGXCPU then ends it. None for no limit.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cpu_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 1 + _GRACE_S))
    os.nice(_NICENESS)
