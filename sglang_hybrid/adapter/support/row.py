"""A row of the table of features, and the three ways to write one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sglang_hybrid.adapter.validation import RULES


class Status(StrEnum):
    TESTED = "tested"
    ACCEPTED = "accepted, not run here"
    REFUSED = "refused"


@dataclass(frozen=True)
class Row:
    """One feature.

    Attributes:
        feature: in words.
        fields: fields of `ServerArgs` that choose or shape it.
        why: what holds and why; of a refusal the rule's reason.
        tests: `file::test` under `tests`. Of what is accepted they cover what it rests on.
        example: flags that choose it.
    """

    feature: str
    fields: tuple[str, ...]
    status: Status
    why: str
    tests: tuple[str, ...] = ()
    example: tuple[str, ...] = ()


def tested(feature: str, fields: str, why: str, tests: str, example: str = "") -> Row:
    """A feature that a test here serves; lists are separated by spaces."""
    return _row(feature, fields, Status.TESTED, why, tests, example)


def accepted(feature: str, fields: str, why: str, tests: str = "", example: str = "") -> Row:
    """A feature that cannot be run here and that the cache does not see."""
    return _row(feature, fields, Status.ACCEPTED, why, tests, example)


def refused(
    feature: str, example: str = "", fields: str = "", *, field: str = "", tests: str = ""
) -> Row:
    """A feature that a rule refuses.

    Args:
        example: flags that are refused; the rule reads the first one.
        fields: those that only shape what is refused.
        field: what the rule reads, where flags alone cannot show it.
    """
    field = field or example.split()[0].removeprefix("--").replace("-", "_")
    why = next(rule.why for rule in RULES if field in rule.fields)
    return _row(feature, f"{field} {fields}", Status.REFUSED, why, tests, example)


def _row(feature: str, fields: str, status: Status, why: str, tests: str, example: str) -> Row:
    words = (tuple(text.split()) for text in (fields, tests, example))
    names, listed, flags = words
    return Row(feature, names, status, why, listed, flags)
