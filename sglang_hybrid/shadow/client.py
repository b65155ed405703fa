"""The server's end of the shadow process. No method waits, and none raises."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from sglang_hybrid.shadow.messages import (
    RESET,
    SEARCH,
    Report,
    Settings,
    control_message,
    window_message,
)
from sglang_hybrid.shadow.records import Window

logger = logging.getLogger(__name__)

MAX_BACKLOG = 8
"""Windows that may wait for the process, or be on their way to it and back."""

RESTART_AFTER = 10
"""Windows to let pass before a process that failed is started anew."""

MAX_RESTARTS = 3

_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class _Link:
    """One run of the process, with the threads that write to it and read from it."""

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.incoming: deque[Report] = deque()
        self.error: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._settings, self._command = settings, command
        # Even starting a process may take a while for a large parent.
        threading.Thread(target=self._run, name="hybrid-shadow-start", daemon=True).start()

    def _run(self) -> None:
        try:
            ours, theirs = Pipe()
            environment = {**os.environ, **_ENVIRONMENT}
            with theirs:
                self.process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt at the terminal is the server's
                    env=environment,
                )
            ours.send_bytes(self._settings.to_bytes())
        except OSError as error:
            self.error = f"could not be started: {error}"
            return
        threading.Thread(
            target=self._write, args=(ours,), name="hybrid-shadow-write", daemon=True
        ).start()
        self._read(ours)

    def _write(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while (message := self.outgoing.get()) is not None:
                connection.send_bytes(message)
            connection.close()

    def _read(self, connection: Connection) -> None:
        try:
            while True:
                self.incoming.append(Report.from_bytes(connection.recv_bytes()))
        except (EOFError, OSError):
            reason = "exited"
        except Exception as error:  # unpickling what is no report raises whatever it likes
            reason = f"sent what is no report ({type(error).__name__}: {error})"
        assert self.process is not None
        with contextlib.suppress(OSError):
            self.process.kill()
        status = self.process.wait()
        self.outgoing.put(None)
        self.error = f"{reason} (status {status})"


class ShadowClient:
    """Sends windows to the shadow process and collects its reports.

    Args:
        settings: of the shadow caches.
        command: what runs the process; its last argument will be a file descriptor.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str] = (sys.executable, "-m", "sglang_hybrid.shadow"),
    ) -> None:
        self._settings, self._command = settings, command
        self._link: _Link | None = None
        self._generation = self._number = 0
        self._outstanding = 0
        self._since_failure = 0
        self._is_stalled = False
        self.windows = self.dropped_windows = self.failures = self.stalls = 0
        self.restarts = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the process; what is sent meanwhile waits for it."""
        self._link = _Link(self._settings, self._command)
        self._outstanding = 0

    def send(self, window: Window) -> bool:
        """Hand over a window; False if it was dropped, because too many are waiting."""
        self._check()
        if self._link is None:
            self._since_failure += 1
            if self._since_failure > RESTART_AFTER and self.restarts < MAX_RESTARTS:
                self.restarts += 1
                self.start()
        if self._link is None or self._outstanding >= MAX_BACKLOG:
            self.dropped_windows += 1
            if self._link is not None and not self._is_stalled:
                self._is_stalled = True
                self.stalls += 1
                logger.warning(
                    "hybrid-marconi: the shadow process is %d windows behind; windows are dropped "
                    "and what is in force stays until it catches up.",
                    MAX_BACKLOG,
                )
            return False
        self._link.outgoing.put(window_message(window, self._generation, self._number))
        self._number += 1
        self._outstanding += 1
        return True

    def search(self) -> None:
        """Ask for one replay of all windows per arm; the report says `is_search`."""
        if self._link is not None:
            self._link.outgoing.put(control_message(SEARCH, self._generation))

    def reset(self) -> None:
        """Forget all windows; reports on their way are void."""
        self._generation += 1
        if self._link is not None:
            self._link.outgoing.put(control_message(RESET, self._generation))

    def poll(self) -> list[Report]:
        """Reports that have come in."""
        self._check()
        link, reports = self._link, []
        while link is not None and link.incoming:
            report = link.incoming.popleft()
            if not report.is_search:
                self._outstanding -= 1
                self._is_stalled = False
            if report.generation == self._generation:
                reports.append(report)
                self.windows += not report.is_search
        return reports

    def _check(self) -> None:
        """Notice that the process has gone."""
        link = self._link
        if link is None or link.error is None:
            return
        self._link = None
        self._since_failure = self._outstanding = 0
        self.failures += 1
        self.last_error = link.error
        logger.warning(
            "hybrid-marconi: the shadow process %s; what is in force stays. %s",
            link.error,
            "It is started anew later."
            if self.restarts < MAX_RESTARTS
            else "It is not started again.",
        )

    def close(self) -> None:
        """End the process."""
        if self._link is not None:
            self._link.outgoing.put(None)
            if self._link.process is not None:
                self._link.process.kill()
            self._link = None

    def status(self) -> dict[str, Any]:
        """State of the process, ready for JSON."""
        self._check()
        if self._link is not None:
            state = "running" if self.windows or self._link.process else "starting"
        else:
            state = "failed" if self.failures else "off"
        return {
            "process": state,
            "backlog": self._outstanding,
            "windows": self.windows,
            "dropped_windows": self.dropped_windows,
            "failures": self.failures,
            "stalls": self.stalls,
            "restarts": self.restarts,
            "last_error": self.last_error,
        }
