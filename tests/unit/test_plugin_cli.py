"""Wrong inputs through the real command line: exit status, one line, no process left."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from tiny_models import write_attention_only, write_hybrid

LAUNCH = ("-m", "sglang.launch_server")
SERVE = ("-c", "from sglang.cli.main import main; main()", "serve")


def launch(module, *flags, **env):
    """Run the launcher to its end; returns exit status and stderr, leaves no process."""
    process = subprocess.Popen(
        [sys.executable, *module, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert session_of(process.pid) == []
    return process.returncode, errors


def session_of(leader):
    """Processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def assert_one_line(status, errors, *parts):
    assert status == 1
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("sglang-hybrid: error: ")]
    for part in parts:
        assert part in line


def test_wrong_config(tmp_path):
    model = write_hybrid(tmp_path / "model")
    status, errors = launch(
        LAUNCH,
        "--model-path",
        model,
        "--cache",
        "hybrid-marconi",
        "--cache-config",
        '{"alpha": -1}',
    )
    assert_one_line(status, errors, "alpha = -1", "allowed: a number from 0 to 1e+06", "correct it")


def test_model_without_ssm_layers(tmp_path):
    model = write_attention_only(tmp_path / "model")
    status, errors = launch(LAUNCH, "--model-path", model, "--cache", "hybrid-marconi")
    assert_one_line(status, errors, "LlamaForCausalLM", "without SSM layers")


def test_sglang_serve(tmp_path):
    model = write_hybrid(tmp_path / "model")
    status, errors = launch(
        SERVE, model, "--cache", "hybrid-marconi", "--radix-eviction-policy", "lru"
    )
    assert_one_line(status, errors, "--radix-eviction-policy lru", "--cache-config")


@pytest.fixture
def another_version(tmp_path):
    """A folder that makes the installed SGLang look like another release."""
    metadata = tmp_path / "shadow" / "sglang-0.5.99.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
    return str(metadata.parent)


def test_unsupported_version(tmp_path, another_version):
    model = write_hybrid(tmp_path / "model")
    status, errors = launch(
        LAUNCH, "--model-path", model, "--cache", "hybrid-marconi", PYTHONPATH=another_version
    )
    assert_one_line(status, errors, "sglang 0.5.99 is not supported", "allowed: 0.5.23")


def test_plugin_switched_off(tmp_path):
    """Without the plugin nothing of ours is known, and the server must not come up."""
    model = write_hybrid(tmp_path / "model")
    status, errors = launch(
        LAUNCH, "--model-path", model, "--cache", "hybrid-marconi", SGLANG_PLUGINS="other"
    )
    assert status == 2
    assert "unrecognized arguments: --cache hybrid-marconi" in errors
