"""The servers of a soak, and what can be read off one while it runs."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests
from cpu_server import CpuServer, launch
from prometheus_client.parser import text_string_to_metric_families
from workload import counters

TOKENS = 2048
"""KV of a server: a few prompts fill it."""

_START_S = 1200
"""Within which a server comes up, on a machine that is busy."""

IDLE_S = 60
"""Within which a server without requests has to be idle."""


@dataclass(frozen=True)
class Setup:
    """One server under load.

    Attributes:
        strategy: value of ``--mamba-radix-cache-strategy``.
        slots: state slots of the pool, few more than running requests hold.
        chunk: chunked prefill size, in tokens.
        page: page size, in tokens.
        args: further flags.
        config: keys of ``--cache-config`` beside those that all have.
        retracts: whether SGLang retracts running requests every few steps.
    """

    name: str
    strategy: str
    slots: int
    chunk: int = 128
    page: int = 1
    args: tuple[str, ...] = ()
    config: dict = field(default_factory=dict)
    retracts: bool = False

    def flags(self) -> list[str]:
        config = {"min_gain_tokens": 1, "strict": True, "tuner_window": 20, **self.config}
        flags = ["--cache", "hybrid-marconi", "--cache-config", json.dumps(config)]
        flags += ["--mamba-radix-cache-strategy", self.strategy]
        flags += ["--max-mamba-cache-size", str(self.slots), "--max-total-tokens", str(TOKENS)]
        flags += ["--chunked-prefill-size", str(self.chunk), "--page-size", str(self.page)]
        # Of the log: the stage at which each request was aborted.
        flags += ["--log-level", "debug", "--log-level-http", "warning"]
        flags += ["--enable-metrics", "--decode-log-interval", "1", "--enable-cache-report"]
        return [*flags, *self.args]

    @property
    def environment(self) -> dict[str, str]:
        # As many requests at once as the slots bear: SGLang then counts one less for each.
        environment = {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}
        environment["SGLANG_REQUEST_STATE_WAIT_TIMEOUT"] = "1"
        if self.retracts:
            environment |= {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}
        return environment

    @property
    def waits(self) -> bool:
        """Whether a request can come in while those before it still hold slots for states.

        That is with the overlap schedule, and where `soak_client.fan` finds states a few
        tokens apart.
        """
        exact = self.config.get("branch_checkpoint", "exact") == "exact"
        return exact and self.page == 1 and "--disable-overlap-schedule" not in self.args

    @property
    def prioritised(self) -> bool:
        return "--enable-priority-scheduling" in self.args


FOUR = ("--max-running-requests", "4")
NO_OVERLAP = ("--disable-overlap-schedule",)
PRIORITY = (
    *("--enable-priority-scheduling", "--default-priority-value", "0"),
    *("--priority-scheduling-preemption-threshold", "0"),
)

SETUPS = [
    Setup("extra_buffer", "extra_buffer", 24, args=PRIORITY),
    Setup(
        "page_16_no_overlap_retracts",
        "extra_buffer",
        12,
        page=16,
        args=(*NO_OVERLAP, *FOUR),
        retracts=True,
    ),
]
"""Those of `make test`."""

MORE_SETUPS = [
    Setup("no_buffer", "no_buffer", 13, chunk=64, args=(*NO_OVERLAP, *PRIORITY)),
    Setup("lazy", "extra_buffer_lazy", 18, config={"policy": "density"}),
    Setup("lazy_page_64_mixed", "extra_buffer_lazy", 12, page=64, args=("--enable-mixed-chunk",)),
    Setup("no_buffer_retracts", "no_buffer", 12, args=NO_OVERLAP, retracts=True),
    Setup(
        "split_mixed", "extra_buffer", 17, args=("--enable-mixed-chunk",),
        config={"branch_checkpoint": "split", "policy": "marconi", "tuner": "bootstrap"},
    ),
    Setup("chunk", "extra_buffer", 17, chunk=256, config={"branch_checkpoint": "chunk"}),
    Setup(
        "extra_buffer_retracts", "extra_buffer", 24, config={"prompt_end": "always"}, retracts=True
    ),
]  # fmt: skip
"""Besides, those of `make soak`."""


@dataclass
class Soaked:
    """A server under load.

    Attributes:
        refused: tokens of the shortest prompt that it refuses.
    """

    server: CpuServer
    setup: Setup
    refused: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt that leaves room for `ROOM` tokens.

        With pages above 1 SGLang, with any cache, sets a page aside for the answer, cuts it
        to what is left, and accepts even longer prompts that it can never admit: those
        behind them wait for ever.
        """
        if self.setup.page == 1:
            return self.refused - 1
        return TOKENS - 2 * self.setup.page

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def log(self) -> Path:
        return self.server.log

    def counters(self) -> dict:
        """Of the cache, and of SGLang the retractions."""
        found = re.findall(r"#retracted_reqs: (\d+)", self.log.read_text(errors="replace"))
        return {**counters(self.server), "retractions": sum(map(int, found))}

    def rss_bytes(self) -> int:
        """Resident memory of the scheduler's process."""
        for process in psutil.Process(self.server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "scheduler" in process.cmdline()[0]:
                    return process.memory_info().rss
        raise AssertionError("the scheduler has ended")

    def pools(self) -> dict[str, float]:
        """Free, cached and used of both pools, as of SGLang's last report."""
        text = requests.get(f"{self.url}/metrics", timeout=60).text
        return {
            sample.name.removeprefix("sglang:"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if re.fullmatch(
                r"sglang:((kv|mamba)_(available|evictable|used)_tokens|num_(running|queue)_reqs)",
                sample.name,
            )
        }

    def check_nothing_is_lost(self, flush: bool) -> None:
        """All that is not cached is free, the server serves, and its log is clean.

        Args:
            flush: whether to empty the cache, after which only one request is in it.
        """
        self._check_pools(TOKENS)
        if flush:
            self.server.flush()
            self._check_pools(self.setup.page + 16)
        assert requests.get(f"{self.url}/health_generate", timeout=60).ok
        self.check_log()

    def check_log(self) -> None:
        text = self.log.read_text(errors="replace")
        assert "Traceback" not in text, text[text.index("Traceback") :][:4000]

    def _check_pools(self, most_cached: int) -> None:
        # SGLang reports when it becomes idle after a decode step.
        self.server.generate([40, 41, 42], 4)
        deadline = time.monotonic() + IDLE_S
        while True:
            pools = self.pools()
            is_idle = not any(
                pools[name]
                for name in (
                    *("kv_used_tokens", "mamba_used_tokens"),
                    *("num_running_reqs", "num_queue_reqs"),
                )
            )
            if is_idle and pools["kv_evictable_tokens"] <= most_cached:
                break
            assert time.monotonic() < deadline, f"not idle: {pools}"
            time.sleep(0.1)
        free = pools["mamba_available_tokens"] + pools["mamba_evictable_tokens"]
        assert free == self.setup.slots, pools
        assert pools["kv_available_tokens"] + pools["kv_evictable_tokens"] == TOKENS, pools


@contextlib.contextmanager
def running(setup: Setup, model: Path, folder: Path) -> Iterator[Soaked]:
    """Run the server of ``setup`` until the block ends."""
    log = folder / f"{setup.name}.log"
    with launch(
        model,
        None,
        *setup.flags(),
        log=log,
        timeout_s=_START_S,
        environment=setup.environment,
    ) as server:
        info = requests.get(f"{server.url}/server_info", timeout=60).json()
        yield Soaked(server, setup, info["max_req_input_len"])


@contextlib.contextmanager
def reference_server(model: Path, folder: Path) -> Iterator[CpuServer]:
    """Run a server without a cache, with room for all requests at once."""
    flags = ["--disable-radix-cache", "--max-total-tokens", "16384", "--max-running-requests", "8"]
    flags += ["--log-level-http", "warning"]
    with launch(model, None, *flags, log=folder / "reference.log", timeout_s=_START_S) as server:
        yield server
