"""The workloads by name, and the pools that all servers get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.tuning import sessions, synthetic
from bench.tuning.streams import Stream

SYNTHETIC = {"tenants": synthetic.tenants, "topics": synthetic.topics, "drift": synthetic.drift}
RECORDED = {"chat": sessions.chat, "agent": sessions.agent}
REQUESTS: Mapping[str, int] = {
    "tenants": 700,
    "topics": 700,
    "drift": 1200,
    "chat": 400,
    "agent": 400,
}
"""Requests of each workload, where the command line does not say another number."""


@dataclass(frozen=True)
class Pools:
    """Memory and limits of a server.

    Attributes:
        state_slots: ``--max-mamba-cache-size``.
        kv_tokens: ``--max-total-tokens``.
        running: ``--max-running-requests``.
        strategy: ``--mamba-radix-cache-strategy``.
    """

    state_slots: int = 20
    kv_tokens: int = 20480
    running: int = 4
    strategy: str = "no_buffer"

    def flags(self) -> list[str]:
        flags = ["--max-mamba-cache-size", str(self.state_slots)]
        flags += ["--max-total-tokens", str(self.kv_tokens)]
        flags += ["--max-running-requests", str(self.running)]
        flags += ["--mamba-radix-cache-strategy", self.strategy]
        if self.strategy == "no_buffer":
            flags += ["--disable-overlap-schedule"]
        return flags


def make_stream(name: str, traces: Path | None, requests: int | None, seed: int) -> Stream:
    """The stream of workload ``name``.

    Raises:
        ValueError: a workload that is not known, or one that needs ``traces``.
        OSError: a trace cannot be read.
    """
    count = requests or REQUESTS.get(name, 0)
    if name in SYNTHETIC:
        return SYNTHETIC[name](count, seed)
    if name not in RECORDED:
        raise ValueError(f"workload {name!r} is not known; allowed: {', '.join(REQUESTS)}")
    if traces is None:
        raise ValueError(f"workload {name!r} is cut from recorded conversations; give --traces")
    return RECORDED[name](traces, count, seed)
