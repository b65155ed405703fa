"""Run Python with the given arguments so that it ends when its parent does, however that ends.

    python bench/serving/guard.py -m sglang.launch_server ...

A benchmark that is killed outright cannot end its server; the kernel then does (Linux only).
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = os.getppid()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
