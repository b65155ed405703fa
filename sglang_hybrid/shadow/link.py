"""One run of the shadow process, and the threads that wait for it in the server's place."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO

from sglang_hybrid.shadow.messages import Report, Settings

_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_LONGEST_REPORT = 2**26
"""Bytes; what announces more is no report."""

_ENDING_SECONDS = 1.0
"""For a process that has closed its end to end by itself."""

_SHOWN_ERROR = 400
"""Bytes of the process's last words that are repeated."""


class Link:
    """Starts the process and exchanges messages with it. No method waits.

    Attributes:
        incoming: reports that have come in.
        error: why the process has gone; None while it runs or starts.
        process: None until it is started.
    """

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        self.incoming: deque[Report] = deque()
        self.error: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._outgoing: queue.SimpleQueue[Callable[[], bytes] | None] = queue.SimpleQueue()
        self._settings, self._command = settings, command
        self._is_closed = False
        # Even starting a process may take a while for a large parent.
        self._spawn("start", self._run)

    def send(self, message: Callable[[], bytes]) -> None:
        """Queue a message, which is made when its turn comes."""
        self._outgoing.put(message)

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._kill()

    def _kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.process.kill()  # a process that is stopped hears nothing else

    def _spawn(
        self, name: str, target: Callable[..., None], *args: object
    ) -> threading.Thread | None:
        thread = threading.Thread(
            target=target, args=args, name=f"hybrid-shadow-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self.error = f"could not be started: {error}"
            self._kill()
            return None
        return thread

    def _run(self) -> None:
        try:
            with tempfile.TemporaryFile() as stderr:
                self._start_and_read(stderr)
        except OSError as error:
            self._kill()
            self.error = f"could not be started: {error}"

    def _start_and_read(self, stderr: IO[bytes]) -> None:
        ours, theirs = Pipe()
        with ours:
            with theirs:
                process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    start_new_session=True,  # an interrupt at the terminal is the server's
                    env={**os.environ, **_ENVIRONMENT},
                )
            self.process = process
            if self._is_closed:  # meanwhile, when there was nothing to kill yet
                process.kill()
            writer = self._spawn("write", self._write, ours)
            reason = self._read(ours)
            self._outgoing.put(None)
            try:
                status = process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            if writer is not None:
                writer.join()  # before its connection is closed
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _SHOWN_ERROR))
        words = stderr.read().decode(errors="replace").strip().splitlines()
        last = f": {words[-1]}" if words else ""
        self.error = f"{reason} (status {status}){last}"

    def _write(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            connection.send_bytes(self._settings.to_bytes())
            while (message := self._outgoing.get()) is not None:
                connection.send_bytes(message())

    def _read(self, connection: Connection) -> str:
        """Take in reports until there can be no more; returns why."""
        try:
            while True:
                self.incoming.append(Report.from_bytes(connection.recv_bytes(_LONGEST_REPORT)))
        except (EOFError, ConnectionError):
            return "exited"
        except Exception as error:  # unpickling what is no report raises whatever it likes
            return f"sent what is no report ({type(error).__name__}: {error})"
