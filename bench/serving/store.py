"""The folder of a comparison: settings, one file per run, and what was found for the rates.

settings.json                        what all runs share, and what each arm and workload is
rates.json                           arrivals per second of each workload, and why
runs/WORKLOAD/ARM-SEED.json          a finished run, or one that failed
data/, logs/                         what was sent, and what servers and drivers printed
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DONE, FAILED = "done", "failed"


class Store:
    """Results of one comparison.

    Args:
        folder: made if it does not exist.
        settings: ``{"common": {...}, "arms": {name: {...}}, "workloads": {name: {...}}}``. Arms
            and workloads may be added to a folder later; those it has must be the same.

    Raises:
        ValueError: the folder was made with other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
        self.folder = folder
        found = _read(folder / "settings.json") or {}
        settings = json.loads(json.dumps(settings))  # as it is read back
        differences = _differences(found, settings)
        if differences:
            shown = "\n  ".join(differences)
            raise ValueError(
                f"{folder} was made with other settings:\n  {shown}\n"
                "choose another --out, or give the settings of the folder"
            )
        merged = {part: {**found.get(part, {}), **values} for part, values in settings.items()}
        for name in ("runs", "data", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        _write(folder / "settings.json", merged)

    def done(self, workload: str, arm: str, seed: int) -> bool:
        """Whether this run has finished; one that failed has not."""
        return (_read(self._run(workload, arm, seed)) or {}).get("state") == DONE

    def write(self, result: Mapping[str, Any]) -> None:
        """Keep a result, which names its workload, arm, seed and state."""
        _write(self._run(result["workload"], result["arm"], result["seed"]), result)

    def results(self) -> list[dict[str, Any]]:
        """All that were kept, finished or failed."""
        paths = sorted((self.folder / "runs").glob("*/*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def rates(self) -> dict[str, dict[str, Any]]:
        """What was found for the rate of each workload."""
        return _read(self.folder / "rates.json") or {}

    def keep_rate(self, workload: str, found: Mapping[str, Any]) -> None:
        _write(self.folder / "rates.json", {**self.rates(), workload: found})

    def data(self, workload: str, seed: int) -> Path:
        """Where the file of a workload and seed is written."""
        return self.folder / "data" / f"{workload}-{seed}.json"

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _run(self, workload: str, arm: str, seed: int) -> Path:
        return self.folder / "runs" / workload / f"{arm}-{seed}.json"


def _differences(found: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    lines = []
    for part, values in given.items():
        there = found.get(part, {})
        for name, value in values.items():
            # Of arms and workloads the folder may lack some, of what all runs share nothing.
            if name not in there and (part != "common" or not found):
                continue
            if there.get(name) != value:
                lines.append(f"{part}.{name}: {_text(there.get(name))}, now {_text(value)}")
    return lines


def _text(value: Any) -> str:
    return json.dumps(value)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: an interrupted command must leave no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'"{key}":{json.dumps(item, separators=(",", ":"))}' for key, item in value.items()]
    part = path.with_suffix(".part")
    part.write_text("{" + ",\n".join(lines) + "}\n")
    os.replace(part, path)
