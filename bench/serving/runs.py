"""Run a comparison: servers one after another, each for several workloads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests
from rich.console import Console
from rich.markup import escape

from bench.serving import measured, plan
from bench.serving.arms import Arm
from bench.serving.datasets import words
from bench.serving.measured import Measured
from bench.serving.store import DONE, FAILED, Store
from bench.serving.workloads import Load, Workload, python
from bench.tuning.client import cache_state

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "server"))
from cpu_server import CpuServer, launch

GUARD = str(Path(__file__).with_name("guard.py"))
COMMON_FLAGS = ("--enable-cache-report", "--enable-metrics")

_LOG_LINES = 15
_WARM_UP_BYTES = (200, 1200)
_WARM_UP_AT_ONCE = 4
_TREE_CORE = re.compile(r"Tree Core: (\w+)")
_ERROR = re.compile(r"Error|error:|Traceback|CRITICAL|Killed")


class RunFailed(RuntimeError):
    """A run has no result; the message says why."""


@dataclass(frozen=True)
class Options:
    """How servers are started and runs are made.

    Attributes:
        model: folder or name of the model.
        flags: of all servers.
        pool_flags: by the kind of pools.
        share: of the closed-loop throughput that is the rate of all arms.
        closed: requests or conversations at a time in the closed loop.
        rates: that need not be found, by workload.
        warm_up: requests before each run, which do not count.
        start_timeout_s, run_timeout_s: of a server and of a driver.
    """

    model: str
    flags: tuple[str, ...]
    pool_flags: Mapping[str, tuple[str, ...]]
    share: float
    closed: int
    rates: Mapping[str, float]
    warm_up: int
    start_timeout_s: float
    run_timeout_s: float

    def server_flags(self, arm: Arm, pools: str) -> list[str]:
        """Everything behind ``--model-path``, ports aside."""
        return [*COMMON_FLAGS, *self.flags, *self.pool_flags[pools], *arm.flags]


class Runner:
    """Makes the runs that a store lacks."""

    def __init__(self, options: Options, store: Store, console: Console) -> None:
        self.options, self.store, self.console = options, store, console

    def find_rates(self, arm: Arm, workloads: Sequence[Workload], seed: int) -> dict[str, str]:
        """A rate for every workload; returns why some have none.

        Raises:
            RuntimeError: the server of ``arm`` does not start.
        """
        for workload in workloads:
            given = self.options.rates.get(workload.name)
            if given is not None:
                self.store.keep_rate(workload.name, {"rate": given, "given": True})
        known = self.store.rates()
        missing = [workload for workload in workloads if workload.name not in known]
        without = {}
        for pools, of_pools in plan.by_pools(missing):
            self._say(f"closed loop of {arm.title}, {pools} pools, for the rates")
            log = self.store.log(f"server-rates-{pools}-{arm.name}")
            with self._server(arm, pools, log) as server:
                for workload in of_pools:
                    load = Load(closed=self.options.closed)
                    try:
                        seen, _ = self._drive(server, workload, arm, seed, load, "rates")
                    except RunFailed as error:
                        without[workload.name] = f"no rate could be found: {error}"
                        continue
                    per_s = workload.arrivals() / seen.seconds
                    rate = float(f"{self.options.share * per_s:.3g}")
                    found = {"rate": rate, "closed_loop_per_s": per_s, "arm": arm.name}
                    self.store.keep_rate(workload.name, {**found, "seed": seed})
                    self._say(f"  {workload.name}: {per_s:.3g}/s, rate {rate:.3g}/s")
        return without

    def run(self, block: plan.Block) -> None:
        """Every run of the block that is not done; none of them raises."""
        pending = [
            workload
            for workload in block.workloads
            if not self.store.done(workload.name, block.arm.name, block.seed)
        ]
        attempt = 0
        while pending:
            # After a failed run the next gets a fresh server.
            name = f"server-{block.arm.name}-{block.pools}-{block.seed}"
            log = self.store.log(f"{name}-{attempt}" if attempt else name)
            attempt += 1
            self._say(f"{block.arm.title}, {block.pools} pools, seed {block.seed}")
            try:
                with self._server(block.arm, block.pools, log) as server:
                    while pending:
                        self._one(server, block, pending.pop(0))
            except RunFailed:
                continue
            except (RuntimeError, OSError) as error:
                for workload in pending:
                    self._fail(block, workload, f"the server did not start: {error_end(log)}")
                self._say(f"  {escape(str(error).splitlines()[0])}")
                return

    def _one(self, server: CpuServer, block: plan.Block, workload: Workload) -> None:
        """One run, kept; raises RunFailed after having kept a failure."""
        rate = self.store.rates()[workload.name]["rate"]
        started = time.strftime("%Y-%m-%dT%H:%M:%S")
        try:
            seen, hit_rate = self._drive(
                server, workload, block.arm, block.seed, Load(rate=rate), "run"
            )
            values = seen.as_json()
            figures = measured.figures(values)
        except (RunFailed, ValueError) as error:
            self._fail(block, workload, f"{error}; the server's log: {last_error(server.log)}")
            raise RunFailed(str(error)) from error
        core = _TREE_CORE.search(server.log.read_text(errors="replace"))
        state = _quietly(lambda: cache_state(server.url)) or {}
        self.store.write(
            {
                **_named(block, workload),
                "state": DONE,
                "rate": rate,
                "started": started,
                "tree_core": core and core[1],
                "metrics_hit_rate": hit_rate,
                "without_text": values["ttft_s"].count(None),
                "tuning": state.get("tuning"),
                **values,
            }
        )
        self._say(
            f"  {workload.name}: {figures['hit_rate']:.1%} of tokens hit, TTFT P50 "
            f"{figures['ttft_p50']:.3f} s, P95 {figures['ttft_p95']:.3f} s, {seen.seconds:.0f} s"
        )

    def _drive(
        self, server: CpuServer, workload: Workload, arm: Arm, seed: int, load: Load, kind: str
    ) -> tuple[Measured, float | None]:
        """Warm up, flush, send; what was measured, and the hit rate by the metrics.

        Raises:
            RunFailed: with the reason.
        """
        data = self.store.data(workload.name, seed)
        name = f"{kind}-{workload.name}-{arm.name}-{seed}"
        out = self.store.log(name).with_suffix(".json")
        out.unlink(missing_ok=True)  # bench_serving appends
        try:
            self._warm_up(server, seed)
            server.flush()
            before = measured.read_counters(server.url)
            command = python([GUARD, *workload.command(server.url, data, seed, load, out)])
            drive(command, self.store.log(name), self.options.run_timeout_s)
            after = measured.read_counters(server.url)
        except requests.RequestException as error:
            raise RunFailed(f"the server does not answer: {error}") from error
        if not out.exists():
            raise RunFailed(f"the driver wrote no result: {error_end(self.store.log(name))}")
        record = json.loads(out.read_text())
        read = {
            "bench_serving": measured.from_bench_serving,
            "replay_chat": measured.from_replay,
        }
        try:
            seen = read[workload.driver](record)
        except ValueError as error:
            raise RunFailed(str(error)) from error
        if seen.errors:
            raise RunFailed(
                f"{len(seen.errors)} requests failed, the first with: {seen.errors[0][-500:]}"
            )
        return seen, measured.hit_rate_between(before, after)

    def _server(self, arm: Arm, pools: str, log: Path) -> AbstractContextManager[CpuServer]:
        flags = self.options.server_flags(arm, pools)
        environment = {**arm.environment}
        if "PYTHONPATH" in environment and os.environ.get("PYTHONPATH"):
            environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        return launch(
            Path(self.options.model),
            None,
            *flags,
            log=log,
            timeout_s=self.options.start_timeout_s,
            program=(GUARD, "-m", "sglang.launch_server"),
            environment=environment,
        )

    def _warm_up(self, server: CpuServer, seed: int) -> None:
        """Prompts of several lengths, each three times, so that hits are warm as well."""
        rng = np.random.default_rng(seed)
        sizes = np.linspace(*_WARM_UP_BYTES, max(1, self.options.warm_up // 3)).astype(int)
        prompts = [words(rng, size) for _ in range(3) for size in sizes]
        prompts = [prompts[number % len(sizes)] for number in range(self.options.warm_up)]

        def one(prompt: str) -> None:
            sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
            body = {"text": prompt, "sampling_params": sampling}
            requests.post(f"{server.url}/generate", json=body, timeout=300).raise_for_status()

        with ThreadPoolExecutor(_WARM_UP_AT_ONCE) as pool:
            list(pool.map(one, prompts))

    def _fail(self, block: plan.Block, workload: Workload, error: str) -> None:
        self.store.write({**_named(block, workload), "state": FAILED, "error": error})
        self._say(f"  {workload.name} [red]failed[/red]: {escape(error.splitlines()[0][:200])}")

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")


def drive(command: Sequence[str], log: Path, timeout_s: float) -> None:
    """Run a driver to its end, which comes with this process's at the latest.

    Raises:
        RunFailed: it took longer than ``timeout_s``.
    """
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the driver took longer than {timeout_s:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def error_end(log: Path) -> str:
    """The last error in a log, or the end of the log if it has none."""
    lines = _readable(log)
    return _last_error(lines) or "\n".join(lines[-_LOG_LINES:]) or "(no log)"


def last_error(log: Path) -> str:
    """The last error in a log, with what leads to it."""
    return _last_error(_readable(log)) or "(no error)"


def _last_error(lines: Sequence[str]) -> str:
    errors = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    if not errors:
        return ""
    end = errors[-1] + 1
    return "\n".join(lines[max(0, end - _LOG_LINES) : end])


def _readable(log: Path) -> list[str]:
    """Lines of a log without SGLang's long dumps; none if it does not exist."""
    if not log.exists():
        return []
    lines = [line[:400] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return [line for line in lines if "server_args=" not in line and "args=Namespace" not in line]


def _named(block: plan.Block, workload: Workload) -> dict[str, Any]:
    return {"workload": workload.name, "arm": block.arm.name, "seed": block.seed}


def _quietly(look: Any) -> Any:
    with contextlib.suppress(requests.RequestException):
        return look()
