"""Servers with features that other tests leave off, shared by the tests of a session."""

import pytest
from adapters import make_adapter
from cpu_server import launch
from crowding import ENVIRONMENT, OURS, QUEUED, RUNNING


@pytest.fixture(scope="session")
def crowded(model, tmp_path_factory):
    """A server for few requests at a time, with priorities and two LoRA adapters.

    SGLang ends a scheduler that is idle and lacks a slot or a token.
    """
    folder = tmp_path_factory.mktemp("crowded")
    adapters = [f"{name}={make_adapter(folder / name, i)}" for i, name in enumerate("ab")]
    flags = [
        *OURS,
        *("--mamba-radix-cache-strategy", "extra_buffer", "--max-mamba-cache-size", "32"),
        *("--max-total-tokens", "4096", "--chunked-prefill-size", "128"),
        *("--enable-priority-scheduling", "--priority-scheduling-preemption-threshold", "0"),
        *("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED)),
        *("--lora-backend", "torch_native", "--lora-paths", *adapters),
    ]
    log = folder / "server.log"
    with launch(model, None, *flags, log=log, environment=ENVIRONMENT) as server:
        yield server
        server.flush()
        text = log.read_text(errors="replace")
        assert "Traceback" not in text, text[-4000:]
