"""The server's end of the shadow process. No method waits, and none raises."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang_hybrid.shadow.link import Link
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

GIVEN_UP_AFTER = 50
"""Windows dropped in a row after which a process that does not answer is ended."""


class ShadowClient:
    """Sends windows to the shadow process and collects its reports.

    Windows that the process does not get are missing in the shadows' history, no more.

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
        self._link: Link | None = None
        self._generation = self._number = 0
        self._outstanding = 0
        self._since_failure = self._dropped_in_a_row = 0
        self._is_stalled = self._is_closed = False
        self.windows = self.dropped_windows = self.failures = self.stalls = 0
        self.restarts = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the process; what is sent meanwhile waits for it."""
        self._link = Link(self._settings, self._command)
        self._outstanding = 0
        self._is_stalled = False

    def send(self, window: Window) -> bool:
        """Hand over a window; False if it was dropped, because too many are waiting."""
        self._check()
        if self._link is None and self.failures and not self._is_closed:
            self._since_failure += 1
            if self._since_failure > RESTART_AFTER and self.restarts < MAX_RESTARTS:
                self.restarts += 1
                self.start()
        if self._link is None:
            self.dropped_windows += 1
            return False
        if self._outstanding >= MAX_BACKLOG:
            self.dropped_windows += 1
            self._note_stall()
            return False
        self._dropped_in_a_row = 0
        self._link.send(partial(window_message, window, self._generation, self._number))
        self._number += 1
        self._outstanding += 1
        return True

    def _note_stall(self) -> None:
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row > GIVEN_UP_AFTER and self._link is not None:
            self._link.close()  # noticed as a failure when it has gone
        if self._is_stalled:
            return
        self._is_stalled = True
        self.stalls += 1
        logger.warning(
            "hybrid-marconi: the shadow process is %d windows behind; windows are dropped and "
            "what is in force stays until it catches up.",
            MAX_BACKLOG,
        )

    def search(self) -> bool:
        """Ask for one replay of all windows per arm; False if there is no process to ask.

        The report says `is_search`.
        """
        self._check()
        return self._control(SEARCH)

    def reset(self) -> None:
        """Forget all windows; reports on their way are void."""
        self._generation += 1
        self._control(RESET)

    def _control(self, kind: bytes) -> bool:
        if self._link is None:
            return False
        self._link.send(partial(control_message, kind, self._generation))
        return True

    def poll(self) -> list[Report]:
        """Reports that have come in."""
        reports = []
        while self._link is not None and self._link.incoming:
            report = self._link.incoming.popleft()
            if not report.is_search:
                self._outstanding -= 1
                self._is_stalled = False
            if report.error:
                self.last_error = report.error
            elif report.generation == self._generation:
                reports.append(report)
                self.windows += not report.is_search
        self._check()
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
        self._is_closed = True
        if self._link is not None:
            self._link.close()
            self._link = None

    def status(self) -> dict[str, Any]:
        """State of the process, ready for JSON."""
        self._check()
        if self._link is not None:
            state = "starting" if self._link.process is None else "running"
        else:
            state = "failed" if self.failures and not self._is_closed else "off"
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
