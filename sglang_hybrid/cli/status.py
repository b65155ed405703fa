"""The status of a cache in `/server_info`, checked before anything is computed from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_LARGEST, _DEEPEST = 1e100, 3
_MOST_ENTRIES, _LONGEST_NAME, _SHOWN_CHARS = 10_000, 200, 60


class StatusError(ValueError):
    """A status that this version cannot read; the message is one line."""


def check_status(status: Any) -> None:
    """Raise unless ``status`` has the form that `top` draws.

    Raises:
        StatusError: names the key, its value and what is allowed.
    """
    if not isinstance(status, dict):
        raise _error("the status", status, "an object")
    _check_numbers("counters", status.get("counters"))
    _check_each("short_hits", _or_empty(status.get("short_hits")), ("requests", "tokens"))
    _check_each("times", _or_empty(status.get("times")), ())
    _check_numbers("live", _or_empty(status.get("live")))
    _check_number("state_bytes", status.get("state_bytes", 0))
    _check_entries("parts", _or_empty(status.get("parts")), _check_part)
    config, tuning = _or_empty(status.get("config")), _or_empty(status.get("tuning"))
    _check_object("config", config)
    _check_object("tuning", tuning)
    for key in ("switches", "scores"):
        _check_numbers(f"tuning.{key}", _or_empty(tuning.get(key)))
    for key in ("alpha", "agreement", "predicted_flops", "realised_flops"):
        if tuning.get(key) is not None:
            _check_number(f"tuning.{key}", tuning[key])
    for key in ("windows", "dropped_windows", "backlog", "failures", "stalls"):
        _check_number(f"tuning.{key}", tuning.get(key, 0))
    _check_values("config", config)
    _check_values("tuning", tuning)
    for what, text in (
        *((f"tuning.{key}", tuning.get(key)) for key in ("mode", "arm", "process")),
        ("config.policy", config.get("policy")),
    ):
        if text is not None and not _is_name(text):
            raise _error(what, text, f"up to {_LONGEST_NAME} printable characters")


def shown(value: Any, most: int = _SHOWN_CHARS) -> str:
    """``value``, which a server has sent, on one line that a terminal shows as it is."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (RecursionError, ValueError):  # nested deeply, or an integer of many digits
        text = f"a {type(value).__name__}"
    if len(text) > most:
        text = f"{text[: most - 3]}..."
    return text if text.isprintable() else ascii(text)[1:-1]


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()


def _check_object(what: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise _error(what, value, "an object")
    if len(value) > _MOST_ENTRIES or not all(map(_is_name, value)):
        names = f"up to {_MOST_ENTRIES} printable names of up to {_LONGEST_NAME} characters"
        raise _error(what, value, names)


def _check_values(what: str, value: Any, depth: int = 0) -> None:
    """What is only passed on, as JSON: numbers that JSON has, and no deep nesting."""
    if isinstance(value, dict | list) and depth < _DEEPEST:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            _check_values(f"{what}.{shown(key)}", part, depth + 1)
    elif isinstance(value, dict | list):
        raise _error(what, value, "no deeper nesting")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(what, value)


def _check_number(what: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and abs(value) <= _LARGEST):
        raise _error(what, value, "a finite number")


def _check_numbers(what: str, value: Any) -> None:
    _check_entries(what, value, _check_number)


def _check_each(what: str, value: Any, keys: tuple[str, ...]) -> None:
    def check(name: str, found: Any) -> None:
        _check_numbers(name, found)
        missing = [key for key in keys if key not in found]
        if missing:
            raise _error(name, found, f"an object with {', '.join(missing)}")

    _check_entries(what, value, check)


def _check_part(what: str, value: Any) -> None:
    _check_object(what, value)
    _check_number(f"{what}.failures", value.get("failures"))
    if not isinstance(value.get("is_on"), bool):
        raise _error(f"{what}.is_on", value.get("is_on"), "true, false")
    if not isinstance(value.get("error"), str):
        raise _error(f"{what}.error", value.get("error"), "a text")


def _check_entries(what: str, value: Any, check: Callable[[str, Any], None]) -> None:
    _check_object(what, value)
    entries: Mapping[str, Any] = value
    for name, found in entries.items():
        check(f"{what}.{name}", found)


def _error(what: str, value: Any, allowed: str) -> StatusError:
    return StatusError(
        f"{what} of hybrid_marconi in /server_info is {shown(value)}; allowed: {allowed}; is the "
        "server of another version?"
    )
