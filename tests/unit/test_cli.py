"""The command `hybrid-marconi`."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import sglang_hybrid
from sglang_hybrid.adapter import names
from sglang_hybrid.adapter.support import reviewed
from sglang_hybrid.cli import doctor, main


def test_help_needs_neither_sglang_nor_torch():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['sglang', 'torch', 'pydantic', 'rich']))\n"
        "from sglang_hybrid.cli.main import main; main(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for command in main.COMMANDS:
        assert command in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(["--version"])
    assert raised.value.code == 0
    assert sglang_hybrid.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["bogus"], ["--bogus"]])
def test_unknown_command(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        main.main(arguments)
    assert raised.value.code == 2
    assert "usage: hybrid-marconi" in capsys.readouterr().err


def test_command_of_which_a_module_is_missing(monkeypatch, capsys):
    for module, text in (
        ("sglang_hybrid.cli.bogus", "sglang_hybrid.cli.bogus is not part of this installation"),
        ("no_such_package", "pip install 'sglang-hybrid[sglang]'"),
    ):
        monkeypatch.setitem(main.COMMANDS, "verify", main.Command(module, "help"))
        assert main.main(["verify"]) == 2
        assert text in capsys.readouterr().err


def test_exit_status_is_that_of_the_command(monkeypatch):
    module = SimpleNamespace(
        add_arguments=lambda parser: parser.add_argument("--status", type=int),
        run=lambda args: args.status,
    )
    monkeypatch.setitem(sys.modules, "a_command", module)
    monkeypatch.setitem(main.COMMANDS, "verify", main.Command("a_command", "help"))
    assert main.main(["verify", "--status", "7"]) == 7


def test_doctor_is_clean_here():
    done = subprocess.run(
        [sys.executable, "-m", "sglang_hybrid.cli.main", "doctor"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("discovered and active", "0.5.23", "_evict_device_next_node", "no problems found"):
        assert part in done.stdout


def test_doctor_reports_a_mismatch(monkeypatch, capsys):
    moved = names.Name("json:loads", ("self", "text"))
    monkeypatch.setattr(names, "all_names", lambda: (names.Name("json:load", None), moved))
    monkeypatch.setattr(doctor, "_installation", lambda console: [])
    assert doctor.run(None) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "expected (self, text)" in output
    assert "install sglang==0.5.23" in output
    assert "no problems found" not in output


def test_doctor_names_flags_that_nobody_has_looked_at(monkeypatch, capsys):
    pytest.importorskip("sglang.srt.server_args")
    monkeypatch.setitem(reviewed.INDEPENDENT, "collectives", ())
    assert main.main(["doctor"]) == 0  # it only warns
    assert "go together with the cache: boundary_reduction, disable_a" in capsys.readouterr().out
