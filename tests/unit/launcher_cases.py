"""Runs many launcher command lines in one process, up to the point where weights would load.

Importing SGLang takes ten seconds, so the tests hand all their cases over at once: a JSON
list on stdin, one JSON list of outcomes on stdout. A case is an object with `argv`, or
`engine` (keywords of `sgl.Engine`), and optionally `env` and `sabotage`.
"""

import json
import os
import pickle
import sys
import traceback
import warnings
from unittest import mock

warnings.filterwarnings("ignore")


def main() -> None:
    cases = json.load(sys.stdin)
    if any("engine" in case for case in cases):
        import sglang.srt.entrypoints.engine  # noqa: F401  as in a program that uses the engine

    from sglang.srt.plugins import load_plugins

    load_plugins()
    outcomes = [run(case) for case in cases]
    # SGLang logs to stdout.
    print("\nOUTCOMES " + json.dumps(outcomes))


def run(case: dict) -> dict:
    with mock.patch.dict(os.environ, case.get("env", {})), sabotage(case.get("sabotage")):
        try:
            return {"kind": "started", **start(case)}
        except (SystemExit, Exception) as error:
            return {
                "kind": type(error).__name__,
                "message": str(error),
                "code": getattr(error, "code", None),
                "traceback": traceback.format_exc(),
            }


def start(case: dict) -> dict:
    """What the launcher does before it starts processes, and what these would receive."""
    if "engine" in case:
        from sglang.srt.entrypoints.engine import Engine

        server_args = Engine.server_args_class(**case["engine"])
    else:
        from sglang.srt.server_args import prepare_server_args

        server_args = prepare_server_args(case["argv"])
    server_args.resolve_once()
    server_args.check_server_args()
    return facts(pickle.loads(pickle.dumps(server_args)))


def facts(server_args) -> dict:
    resolved = server_args.resolved_dict()
    outcome = {"resolved": {key: repr(value) for key, value in resolved.items()}}
    if notes := getattr(server_args, "_hybrid_marconi", None):
        from sglang_hybrid.adapter.record import config_of

        outcome["validated"] = notes.validated
        outcome["config"] = config_of(server_args).effective()
    return outcome


def sabotage(kind: str | None):
    """Something that is wrong with the installation."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_hybrid.adapter import names

    if kind == "version":
        return mock.patch.object(names, "installed_version", lambda: "0.5.99")
    if kind == "hook":
        target = "sglang.srt.server_args.ServerArgs.check_server_args"
        return mock.patch.object(HookRegistry, "_patched", HookRegistry._patched - {target})
    if kind == "name":
        moved = names.Name("sglang.srt.managers.scheduler:Scheduler.no_such_method", ("self",))
        return mock.patch.object(names, "NAMES", (*names.NAMES, moved))
    return mock.patch.dict({})


if __name__ == "__main__":
    main()
