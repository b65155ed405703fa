"""The entry point: what happens when something of ours is broken."""

import argparse
import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from sglang_hybrid.adapter import flags, hooks, names, plugin, record, serving


@pytest.fixture
def broken_hooks(monkeypatch):
    def fail(_hooks):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(hooks, "register", fail)


@pytest.mark.parametrize(
    "flags",
    [
        ["--cache", "hybrid-marconi"],
        ["--cache=hybrid-marconi"],
        ["--radix-cache-backend", "hybrid-marconi"],
        ["--radix-cache-backend=hybrid-marconi"],
        ["--cache-config={}"],
    ],
)
def test_broken_plugin_is_fatal_for_a_server_that_asked_for_it(monkeypatch, broken_hooks, flags):
    monkeypatch.setattr(sys, "argv", ["launch_server", "--model-path", "m", *flags])
    with pytest.raises(SystemExit) as raised:
        plugin.register()
    assert str(raised.value).startswith("sglang-hybrid: error: the plugin could not be loaded")
    assert "RuntimeError: first line" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_broken_plugin_does_not_disturb_a_stock_server(monkeypatch, broken_hooks, caplog):
    monkeypatch.setattr(sys, "argv", ["launch_server", "--model-path", "m"])
    plugin.register()
    assert "--cache hybrid-marconi is not available" in caplog.text


def test_unsupported_sglang_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["launch_server", "--model-path", "hybrid-marconi"])
    monkeypatch.setattr(names, "installed_version", lambda: "0.5.99")
    monkeypatch.setattr(hooks, "register", lambda _hooks: pytest.fail("touched"))
    plugin.register()
    assert "sglang 0.5.99 is not supported" in caplog.text


def test_unsupported_sglang_is_tried_when_allowed(monkeypatch):
    registered = []
    monkeypatch.setattr(names, "installed_version", lambda: "0.5.99")
    monkeypatch.setenv(names.ALLOW_UNSUPPORTED_ENV, "1")
    monkeypatch.setattr(hooks, "register", registered.extend)
    plugin.register()
    assert registered == list(hooks.LAUNCH)


def test_plugin_module_imports_the_standard_library_only():
    """SGLang would log a failing import and go on without the plugin."""
    imported = set()
    for node in ast.parse(Path(plugin.__file__).read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= sys.stdlib_module_names


def test_scheduler_refuses_a_record_that_no_launcher_checked():
    ctx = SimpleNamespace(server_args=SimpleNamespace())
    with pytest.raises(RuntimeError, match="launcher did not check"):
        serving.build_cache(ctx)


def test_scheduler_refuses_to_run_without_a_hook(monkeypatch):
    ctx = SimpleNamespace(server_args=SimpleNamespace())
    record.update_notes(ctx.server_args, validated=True)
    monkeypatch.setattr(hooks, "register", lambda _hooks: None)
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: None)
    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(RuntimeError, match="is not in place"):
        serving.build_cache(ctx)


def test_state_of_the_cache_is_reported(monkeypatch):
    monkeypatch.setattr(serving, "dp_rank", lambda: 1)
    reply = SimpleNamespace(internal_state={"a": 1})
    cache = SimpleNamespace(status=lambda: {"counters": {"requests": 2}})
    serving.internal_state(reply, SimpleNamespace(tree_cache=cache), None)
    assert reply.internal_state == {
        "a": 1,
        "hybrid_marconi": {"dp_rank": 1, "counters": {"requests": 2}},
    }


def test_state_that_cannot_be_reported_does_not_end_the_scheduler(monkeypatch):
    monkeypatch.setattr(serving, "dp_rank", lambda: 1)
    reply = SimpleNamespace(internal_state={})

    def status():
        raise KeyError("broken")

    serving.internal_state(reply, SimpleNamespace(tree_cache=SimpleNamespace(status=status)), None)
    assert "KeyError" in reply.internal_state["hybrid_marconi"]["error"]


def test_help_explains_the_flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--radix-cache-backend")
    flags.add_flags(None, parser)
    text = " ".join(parser.format_help().split())
    assert "--cache NAME" in text
    assert "--cache-config JSON" in text
    assert "min_gain_tokens (default 128)" in text
    assert parser.parse_args(["--cache", "x"]).radix_cache_backend == "x"
