"""Which servers are compared, and how one is started."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.tuning.workloads import Pools

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "server"))
from cpu_server import CpuServer, launch

STOCK = "stock"
KNOWN: dict[str, dict[str, Any] | None] = {
    STOCK: None,
    "lru": {"policy": "lru"},
    "utility": {"policy": "utility"},
    "density": {"policy": "density"},
    "marconi": {"policy": "marconi"},
    "auto": {"policy": "auto"},
}


@dataclass(frozen=True)
class Server:
    """A server of the comparison.

    Attributes:
        name: for reports.
        config: of ``--cache-config``; None: stock SGLang.
    """

    name: str
    config: dict[str, Any] | None

    @classmethod
    def parse(cls, text: str) -> Server:
        """One of `KNOWN`, or ``NAME={"policy": ...}``.

        Raises:
            ValueError: neither of these.
        """
        name, separator, config = text.partition("=")
        if not separator and name in KNOWN:
            return cls(name, KNOWN[name])
        try:
            parsed = json.loads(config)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or not name.isidentifier():
            raise ValueError(
                f"server {text!r} is not known; allowed: {', '.join(KNOWN)}, or NAME=JSON with "
                'the keys of --cache-config, such as sharp={"policy": "utility", "alpha": 1}'
            )
        return cls(name, parsed)

    def flags(self) -> list[str]:
        if self.config is None:
            return []
        return ["--cache", "hybrid-marconi", "--cache-config", json.dumps(self.config)]


@contextlib.contextmanager
def running(
    server: Server, model: Path, pools: Pools, log: Path, *more: str
) -> Iterator[CpuServer]:
    """``server`` until the block ends; ``more`` are further flags."""
    flags = [*pools.flags(), *server.flags(), *more]
    with launch(model, None, *flags, log=log) as started:
        yield started
