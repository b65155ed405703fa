"""docs/traces.md: its examples are traces, and it names every option."""

import inspect
import re
from pathlib import Path

import pytest

from sglang_hybrid.sim.traces import load_trace
from sglang_hybrid.sim.traces.arrivals import ARRIVALS, GAPS
from sglang_hybrid.sim.traces.conversations import RENDERINGS
from sglang_hybrid.sim.traces.formats import FORMATS
from sglang_hybrid.sim.traces.generators import GENERATORS, PREFIX
from sglang_hybrid.sim.traces.native import FORMAT

PAGE = (Path(__file__).parents[2] / "docs/traces.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^\| `([\w-]+)` \|.*`(\{.*\})` \|$", PAGE, re.MULTILINE))
EXAMPLES[FORMAT] = re.search(r"```\n(\{.*?)```", PAGE, re.DOTALL).group(1)


@pytest.mark.parametrize("name", FORMATS)
def test_the_example_of_a_format_can_be_read(tmp_path, name):
    path = tmp_path / "example"
    path.write_text(EXAMPLES[name], encoding="utf-8")
    found = load_trace(path, strict=True)
    assert found.assumptions == load_trace(path, format=name).assumptions
    assert len(found) == EXAMPLES[name].count('"symbols"') or len(found) == 1


def test_every_option_is_explained():
    options = set(inspect.signature(load_trace).parameters) - {"path", "format", "report"}
    named = re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Options")[2], re.MULTILINE)
    assert set(named) == options
    assert [m for m in (*ARRIVALS, *GAPS, *RENDERINGS) if f"`{m}`" not in PAGE] == []


def test_the_generators_are_listed_with_all_parameters_and_their_defaults():
    specs = re.findall(rf"^\| `({PREFIX}.*?)` \|", PAGE, re.MULTILINE)
    for spec, (name, generator) in zip(specs, GENERATORS.items(), strict=True):
        parameters = inspect.signature(generator).parameters.values()
        query = "&".join(f"{p.name}={p.default}" for p in parameters)
        assert spec == f"{PREFIX}{name}?{query}"
