"""Run Python with the given arguments, and end all of it when the parent ends, however that does.

    python bench/serving/guard.py -m sglang.launch_server ...

A benchmark that is killed outright cannot end its servers; this process, the leader of their
group, is told by the kernel and does (Linux only).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _end_group)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel was told
        return 1
    return subprocess.call([sys.executable, *sys.argv[1:]])


def _end_group(*_: object) -> None:
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
