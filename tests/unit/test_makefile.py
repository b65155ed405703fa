"""`make serve` hands its variables to the launcher unchanged."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """Runs `make` in a copy whose interpreter prints what it was called with.

    That is its arguments, the variable ``SOAK_MINUTES``, and whether it keeps what it compiles,
    which the environment forbids.
    """
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    program = (
        f"#!{sys.executable}\nimport json, os, sys\n"
        "minutes, keeps = os.environ.get('SOAK_MINUTES'), not sys.dont_write_bytecode\n"
        "print('CALLED', json.dumps([sys.argv, minutes, keeps]))\n"
    )
    for name in ("python", "hybrid-marconi"):
        (environment / "bin" / name).write_text(program)
        (environment / "bin" / name).chmod(0o755)
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / ".model").mkdir()
    (environment / ".installed").touch()

    def run(target, *variables):
        done = subprocess.run(
            ["make", "--no-print-directory", target, f"VENV={environment}", *variables],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **{key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        assert done.returncode == 0, done.stderr
        calls = [line for line in done.stdout.splitlines() if line.startswith("CALLED ")]
        return [json.loads(line.removeprefix("CALLED ")) for line in calls]

    return run


@pytest.fixture
def serve(make):
    """Runs `make serve`; returns the arguments of each call."""
    return lambda *variables: [argv for argv, _, _ in make("serve", *variables)]


def test_small_model_is_written_once_and_served(serve):
    written, served = serve()
    assert written[1:] == ["make-model", ".model"]
    assert served[1:5] == ["-m", "sglang.launch_server", "--model-path", ".model"]
    assert served[served.index("--port") + 1] == "30000"
    assert served[served.index("--cache") + 1] == "hybrid-marconi"
    assert "--enable-cache-report" in served
    assert "--max-mamba-cache-size" in served
    assert "--cache-config" not in served
    assert len(serve()) == 1


@pytest.mark.parametrize(
    "config", ['{"policy": "lru"}', """{"policy": "it's", "x": "a  b\\n"}""", '{"a": [1, "*"]}']
)
def test_config_keeps_its_quotes(serve, config):
    (served,) = serve("MODEL=some model", f"CONFIG={config}")
    assert served[served.index("--cache-config") + 1] == config
    assert served[served.index("--model-path") + 1] == "some model"


def test_stock_server_with_a_model_and_flags_of_the_user(serve):
    (served,) = serve("MODEL=m", "CACHE=", "PORT=1234", "ARGS=--page-size 64 --name 'a b'")
    assert served[1:] == [
        "-m",
        "sglang.launch_server",
        "--model-path",
        "m",
        "--port",
        "1234",
        "--enable-cache-report",
        "--page-size",
        "64",
        "--name",
        "a b",
    ]


def test_a_soak_lasts_as_long_as_asked(make):
    ((argv, minutes, _),) = make("soak", "MINUTES=7", "ARGS=-x")
    assert minutes == "7" and argv[1:] == ["-m", "pytest", "tests/soak", "-m", "soak", "-x"]
    ((_, minutes, _),) = make("soak")
    assert minutes == "10"


def test_what_is_compiled_is_kept(make):
    assert [keeps for _, _, keeps in make("test")] == [True]
