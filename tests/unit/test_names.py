"""The table of SGLang's names holds, and a name that moved is reported."""

import functools

import pytest

from sglang_hybrid.adapter import names
from sglang_hybrid.adapter.names import Name


def test_table_holds_on_the_installed_sglang():
    assert names.installed_version() == names.SUPPORTED_VERSION
    assert names.problems() == []


def test_table_has_no_duplicates():
    paths = [name.path for name in names.all_names()]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (Name("json:loads", ("text",)), "(s, cls, object_hook"),
        (Name("json:no_such_function", ()), "missing"),
        (Name("no_such_module:function", None), "missing"),
        (Name("json:decoder", ("self",)), "a module without a signature"),
    ],
)
def test_planted_mismatch_is_reported(name, found):
    (problem,) = names.problems([Name("json:load", None), name])
    assert "\n" not in problem
    assert f"sglang {names.installed_version()}: {name.path} is {found}" in problem
    assert "install sglang==0.5.23" in problem


def test_signature_may_be_that_of_a_hooked_function():
    """A hook wraps the original; the check has to look through it."""

    @functools.wraps(names.problems_of)
    def wrapper(*args, **kwargs):
        raise AssertionError("not called")

    names.wrapped_for_test = wrapper
    try:
        name = Name("sglang_hybrid.adapter.names:wrapped_for_test", ("findings",))
        assert names.problems([name]) == []
    finally:
        del names.wrapped_for_test


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "none"])
def test_other_versions_are_refused(monkeypatch, version):
    monkeypatch.setattr(names, "installed_version", lambda: version)
    problem = names.version_problem()
    assert f"sglang {version} is not supported" in problem
    assert "install sglang==0.5.23" in problem
