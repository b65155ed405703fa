"""What a dashboard asks for, and what a server's `/metrics` has."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = Path(__file__).parents[2] / "docs/grafana/hybrid-marconi.json"

_METRIC = re.compile(r"\b(sglang:\w+)(?:\{([^}]*)\})?")
_MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """An expression, the metrics in it, and the labels that each must have."""

    expression: str
    metrics: dict[str, set[str]]


def _expressions(node) -> Iterator[str]:
    """Of panels, variables and annotations alike."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "definition") and isinstance(value, str):
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from _expressions(value)


def queries() -> list[Query]:
    """Every query of the dashboard."""
    found = []
    for expression in _expressions(json.loads(DASHBOARD.read_text(encoding="utf-8"))):
        grouped = {
            label.strip() for group in _GROUPED.findall(expression) for label in group.split(",")
        }
        metrics = {
            name: grouped | set(_MATCHED.findall(matchers))
            for name, matchers in _METRIC.findall(expression)
        }
        found.append(Query(expression, metrics))
    return found


def samples(server) -> list:
    """Samples of one real scrape."""
    text = requests.get(f"{server.url}/metrics", timeout=60).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def labels(server) -> dict[str, set[str]]:
    """Labels by the name of the sample."""
    found: dict[str, set[str]] = {}
    for sample in samples(server):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def unanswered(server, but=frozenset()) -> list[str]:
    """Queries that ask for a metric or a label that the server does not have."""
    there = labels(server)
    return [
        f"{name} with {sorted(wanted)} in {query.expression}"
        for query in queries()
        for name, wanted in query.metrics.items()
        if name not in but and not (name in there and wanted <= there[name])
    ]
