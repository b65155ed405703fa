"""The table of features: what it calls refused is refused, what it calls tested has a test."""

import argparse
import ast
import re
from pathlib import Path

import pytest
from launching import CACHE, run_cases
from tiny_models import write_hybrid

from sglang_hybrid.adapter import names
from sglang_hybrid.adapter.rules import flag_of
from sglang_hybrid.adapter.support import ROWS, Status, fields_of, unreviewed
from sglang_hybrid.adapter.support.reviewed import INDEPENDENT
from sglang_hybrid.adapter.validation import RULES

TESTS = Path(__file__).parents[1]
EXAMPLES = [row for row in ROWS if row.example]


@pytest.fixture(scope="module")
def fields():
    from sglang.srt.server_args import ServerArgs

    return ServerArgs.__struct_fields__


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    model = write_hybrid(tmp_path_factory.mktemp("models") / "hybrid")
    cases = [{"argv": ["--model-path", model, *CACHE, *row.example]} for row in EXAMPLES]
    return dict(zip((row.feature for row in EXAMPLES), run_cases(cases), strict=True))


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row.feature)
def test_examples_are_refused_or_start_as_the_table_says(outcomes, row):
    outcome = outcomes[row.feature]
    if row.status is Status.REFUSED:
        assert outcome["kind"] == "SystemExit"
        start = f"sglang-hybrid: error: {row.example[0]}"
        assert outcome["message"].startswith(start), outcome["message"]
        assert f"cannot be used with --cache hybrid-marconi: {row.why}; " in outcome["message"]
    else:
        assert outcome["kind"] == "started", outcome["message"]


def test_every_refusal_has_a_row():
    # The launcher's tests have the rules of the tree core and of combinations of flags.
    without_row = {"mamba_radix_cache_strategy", "model_path", "enable_deterministic_inference"}
    without_row |= {"enable_hierarchical_cache"}
    listed = fields_of(row for row in ROWS if row.status is Status.REFUSED)
    rules = {rule.fields[0] for rule in RULES if rule.fields}
    assert rules - listed == without_row


def test_what_is_tested_names_a_test_that_exists():
    for row in ROWS:
        assert row.tests or row.status is not Status.TESTED, row.feature
        for test in row.tests:
            file, _, name = test.partition("::")
            tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in found, test


def test_every_row_gives_a_reason():
    assert len({row.feature for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert len(row.why) > 10 and re.fullmatch(r"[^|\n]+[^.|\n]", row.why), row.feature


def test_the_tables_name_fields_that_exist_once(fields):
    independent = [field for group in INDEPENDENT.values() for field in group]
    assert len(independent) == len(set(independent))
    assert set(independent) & fields_of() == set()
    assert (set(independent) | fields_of()) - set(fields) == set()


def test_flags_of_rows_exist():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    known = {flag for action in parser._actions for flag in action.option_strings}
    without_flag = {"_radix_eviction_policy_explicitly_set", "uses_mamba_radix_cache"}
    without_flag |= {"enable_cp_tp_group_sharing", "ep_join_mode", "ep_join_rank_offset"}
    assert {flag_of(field) for field in fields_of() - without_flag} - known == set()


def test_every_field_of_this_sglang_was_reviewed(fields):
    left = unreviewed(fields)
    assert left == [], (
        f"SGLang {names.installed_version()} has fields that nobody has looked at: {left}; read "
        "what they do, then give each a row in sglang_hybrid/adapter/support (or a rule in "
        "validation.py), or a place in reviewed.py"
    )


def test_a_new_field_is_noticed(fields):
    assert unreviewed([*fields, "enable_something_new"]) == ["enable_something_new"]
