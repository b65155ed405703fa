"""Hands the request record out over SGLang's own endpoints, part by part.

`POST /set_internal_state {"server_args": {"hybrid_marconi_record": N}}` makes the next
`/server_info` carry part N, once, as `record_part`. N = 1 starts an export unless there is
one, 0 drops it. What leaves is salted anew per export: no token ids, no hashes of the server's own.
"""

from __future__ import annotations

import base64
import itertools
import subprocess
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_hybrid.shadow.records import Window

REQUEST_KEY = "hybrid_marconi_record"
"""In the `server_args` of a request to `/set_internal_state`."""

PART_KEY = "record_part"
"""In the status of the cache in `/server_info`."""

PART_BYTES = 1 << 20
"""Compressed bytes of a part: a few milliseconds of the scheduler each."""

_MOST_PARTS = 1 << 20

_COMMAND = (sys.executable, "-m", "sglang_hybrid.shadow.export")
_WITHIN_S = 100.0


def _exported(window: Window) -> bytes:
    """``window`` as compressed, salted JSONL; made by a process that ends with it."""
    # Its warnings go where the server's do.
    done = subprocess.run(
        _COMMAND,
        input=window.to_bytes(),
        stdout=subprocess.PIPE,
        timeout=_WITHIN_S,
        check=True,
        start_new_session=True,  # an interrupt at the terminal is the server's
    )
    return done.stdout


class _Export:
    """One record being written, off the scheduler's thread."""

    def __init__(self, number: int, window: Window | None) -> None:
        self.number = number
        self.requests = 0 if window is None else len(window)
        self._data: bytes | None = None
        self._error: str | None = None
        self._thread = threading.Thread(
            target=self._run, args=(window,), name="hybrid-marconi-record", daemon=True
        )
        self._thread.start()

    def _run(self, window: Window | None) -> None:
        try:
            self._data = zlib.compress(b"") if window is None else _exported(window)
        except Exception as error:  # it is shown where the part is asked for
            self._error = f"{type(error).__name__}: {error}"

    def part(self, index: int) -> dict[str, Any]:
        """Part ``index``, from 1, for JSON; without data while there is none yet."""
        if self._error is not None:
            return {"export": self.number, "error": self._error}
        data = self._data
        if data is None:
            return {"export": self.number}
        parts = max(1, -(-len(data) // PART_BYTES))
        if not 1 <= index <= parts:
            return {"export": self.number, "error": f"part {index} of {parts} was asked for"}
        return {
            "export": self.number,
            "requests": self.requests,
            "part": index,
            "parts": parts,
            "data": base64.b64encode(data[(index - 1) * PART_BYTES : index * PART_BYTES]).decode(),
        }


class RecordExport:
    """What the endpoints say about a cache's record.

    Args:
        cache: its ``recorder``, where it has one, is asked for the window to export.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._numbers = itertools.count(1)
        self._export: _Export | None = None
        self._asked: int | None = None

    def ask(self, part: float) -> bool:
        """Mark ``part`` for the next report; False if there is no such part to be had."""
        recorder = getattr(self._cache, "recorder", None)
        # Whole numbers only: `inf` and `nan` arrive here as well.
        if recorder is None or not (0 <= part <= _MOST_PARTS and part == int(part)):
            return False
        part = int(part)
        if part == 0:
            self._export = self._asked = None
            return True
        if self._export is None:
            if part != 1:
                return False
            self._export = _Export(next(self._numbers), recorder.window())
        self._asked = part
        return True

    def take(self) -> dict[str, Any] | None:
        """The part that was asked for, once; else None."""
        if self._export is None or self._asked is None:
            return None
        asked, self._asked = self._asked, None
        return self._export.part(asked)


_ATTRIBUTE = "_hybrid_marconi_record"


def of(scheduler: Any) -> RecordExport:
    """The export of a scheduler's cache."""
    if not hasattr(scheduler, _ATTRIBUTE):
        setattr(scheduler, _ATTRIBUTE, RecordExport(scheduler.tree_cache))
    found: RecordExport = getattr(scheduler, _ATTRIBUTE)
    return found


def set_internal_state(original: Any, scheduler: Any, request: Any) -> Any:
    """Hook around `Scheduler.set_internal_state`: requests with our key are ours."""
    if REQUEST_KEY not in request.server_args:
        return original(scheduler, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    # The other ranks of a cache hold the same record and are not asked.
    is_asked = scheduler.metrics_reporter.is_stats_logging_rank
    done = not is_asked or of(scheduler).ask(request.server_args[REQUEST_KEY])
    return SetInternalStateReqOutput(updated=done)
