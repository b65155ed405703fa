"""How a decision of one rank reaches all of them: inside SGLang's own request broadcast.

The ranks of one replica share a tree whose decisions must be the same everywhere. The
rank that reads requests from the socket broadcasts them to the others in every pass of
the event loop; a decision goes with them and is taken out before they are dispatched, so
that every rank has it before the same request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decision:
    """From operation ``at`` on, other rules are in force.

    Attributes:
        at: operation count (requests admitted since the last flush).
        arm: index of the arm.
        reason: why, as a word for metrics.
        text: why, as a line for people.
        table: densities that the arm's shadow has learned, as bytes; None for arms
            that need none.
    """

    at: int
    arm: int
    reason: str
    text: str
    table: bytes | None = None


class DecisionReceiver:
    """SGLang's request receiver, which also carries decisions.

    Args:
        receiver: SGLang's `SchedulerRequestReceiver`.
        pending: new decisions; asked in every pass, answered by the rank that decides.
        take: called with each decision, on every rank.
    """

    def __init__(
        self,
        receiver: Any,
        pending: Callable[[], list[Decision]],
        take: Callable[[Decision], None],
    ) -> None:
        self._receiver = receiver
        self._pending = pending
        self._take = take
        self._waiting: list[Decision] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._receiver, name)

    def recv_requests(self, local_reqs: list[Any] | None = None) -> list[Any]:
        """As SGLang's, without the decisions."""
        self._waiting += self._pending()
        if self._waiting:
            local_reqs = [*(local_reqs or ()), *self._waiting]
        received = self._receiver.recv_requests(local_reqs=local_reqs)
        decisions = [each for each in received if isinstance(each, Decision)]
        if not decisions:
            return received  # the usual case; or SGLang has skipped this pass
        self._waiting = []
        for decision in decisions:
            self._take(decision)
        return [each for each in received if not isinstance(each, Decision)]
