"""Start a real server on the CPU platform and stop it again."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

_POLL_S = 0.5


# Below those that the system hands out, and a range for each worker of pytest-xdist: a
# server binds its ports some seconds after they were found free. Runs of another checkout
# begin elsewhere in the range.
_PORTS_PER_WORKER = 2000
_first_port = 12_000 + _PORTS_PER_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_ports = itertools.cycle(
    _first_port + (os.getpid() + i) % _PORTS_PER_WORKER for i in range(_PORTS_PER_WORKER)
)


def free_port() -> int:
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable")


@dataclass
class CpuServer:
    """A running server.

    Attributes:
        url: without a trailing slash.
        log: file with everything that its processes print.
        pid: of the process that was launched.
    """

    url: str
    log: Path
    pid: int

    def generate(
        self,
        input_ids: list[int],
        max_new_tokens: int,
        sampling: Mapping[str, object] | None = None,
        **options,
    ) -> dict:
        """One greedy ``/generate`` request; returns the response.

        Args:
            sampling: further sampling parameters.
            options: further fields of the request.
        """
        body = {
            "input_ids": input_ids,
            "sampling_params": {
                "max_new_tokens": max_new_tokens,
                "temperature": 0,
                "ignore_eos": True,
                **(sampling or {}),
            },
            **options,
        }
        response = requests.post(f"{self.url}/generate", json=body, timeout=120)
        response.raise_for_status()
        return response.json()

    def flush(self) -> None:
        """Empty the cache. Refused by SGLang while the last batch is still being finished."""
        deadline = time.monotonic() + 60
        while not (response := requests.post(f"{self.url}/flush_cache", timeout=60)).ok:
            if time.monotonic() > deadline:
                response.raise_for_status()
            time.sleep(_POLL_S / 10)


@contextlib.contextmanager
def launch(
    model: Path,
    port: int | None = None,
    *extra_args: str,
    log: Path,
    timeout_s: float = 400,
    program: Sequence[str] = ("-m", "sglang.launch_server"),
    environment: Mapping[str, str] | None = None,
) -> Iterator[CpuServer]:
    """Run ``python -m sglang.launch_server`` until the block ends.

    Args:
        model: folder of the checkpoint.
        port: by default a free one.
        extra_args: further flags of the command line.
        log: file to write the output to.
        timeout_s: limit for becoming healthy.
        program: what Python runs.
        environment: variables beside those of this process.

    Raises:
        RuntimeError: if it exits or does not become healthy in time, with the end of its log;
            or if it is a process of somebody else that answers.
    """
    port = free_port() if port is None else port
    command = [
        *(sys.executable, *program),
        *("--model-path", str(model), "--port", str(port)),
        *extra_args,
    ]
    if "--dp-size" not in extra_args:  # replicas find ports of their own
        command += ["--nccl-port", str(free_port())]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
        try:
            _wait_until_healthy(process, url, log, timeout_s)
            if not _listens(process.pid, port):
                raise RuntimeError(f"{url} is answered by a process of somebody else")
            yield CpuServer(url, log, process.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listens(pid: int, port: int) -> bool:
    """Whether the process or one that it has started has the port."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections():
                if one.status == psutil.CONN_LISTEN and one.laddr.port == port:
                    return True
    return False


def _wait_until_healthy(process: subprocess.Popen, url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"{url}/health_generate", timeout=30).ok:
                return
        time.sleep(_POLL_S)
    tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:])
    state = "did not become healthy" if process.poll() is None else "exited"
    raise RuntimeError(f"server {state}; the end of {log}:\n{tail}")
