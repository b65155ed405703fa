"""Admission: at which tokens of a sequence the state is checkpointed.

The rules are stated in docs/simulator.md, "Admission"; an `Admission` holds their
parameters, and `parse_admission` reads `NAME[:KEY=VALUE...]`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Admission:
    """Parameters of admission. Grids are in tokens: 0 is off, 1 exact, g rounds down to g.

    Attributes:
        name: as given by the user.
        branch: state where the resident prefix of the prompt ends (Marconi, section 4.1).
        branch_full: a prompt that is resident whole gets one at its length - 1.
        decode_end: state at the last token (grid: only beyond the prompt).
        prompt_end: state at the end of the prompt.
        ghost_forks: so many of the deepest forks ever seen on the prompt get a state.
        ghost_self: the point where this very request leaves the history counts as one.
        system_end: state at the end of the system message, where the trace tells it.
        min_gain_tokens: branch, ghost and system positions lie this far beyond the hit.
        chunk_tokens: size of prefill chunks; each chunk's end gets a state.
        chunk_or_branch: a branch position replaces its chunk's state (SGLang keeps one).
        block_tokens: state at every multiple (vLLM+ of the paper).
        truncate: KV enters the tree only up to the last state (SGLang).
        first_victims: prompt ends and chunk ends are kept only where they cost nothing.
        max_states_per_path: cap on states of one path (SGLang's --mamba-max-states-per-path).
    """

    name: str = "custom"
    branch: int = 0
    branch_full: bool = False
    decode_end: int = 0
    prompt_end: int = 0
    ghost_forks: int = 0
    ghost_self: bool = False
    system_end: bool = False
    min_gain_tokens: int = 1
    chunk_tokens: int = 0
    chunk_or_branch: bool = False
    block_tokens: int = 0
    truncate: bool = False
    first_victims: bool = False
    max_states_per_path: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "min_gain_tokens" else 0
            if field.type == "int" and not least <= value < 2**31:
                raise ValueError(
                    f"admission {self.name!r}: {field.name} = {value} is not allowed; allowed: "
                    f"an integer from {least} to {2**31 - 1}"
                )
        if self.block_tokens and self.first_victims:
            raise ValueError(
                f"admission {self.name!r}: block_tokens = {self.block_tokens} is not allowed with "
                "first_victims; allowed: one of the two"
            )
        if not (self.branch or self.decode_end or self.prompt_end or self.block_tokens) and (
            not self.chunk_tokens
        ):
            raise ValueError(
                f"admission {self.name!r} never takes a state; set one of branch, decode_end, "
                "prompt_end, block_tokens, chunk_tokens"
            )


PRESETS: Mapping[str, tuple[Admission, str]] = {
    "marconi": (
        Admission(branch=1, decode_end=1),
        "the paper's: exact branch points and the last decoded token",
    ),
    "marconi-grid": (
        Admission(branch=64, branch_full=True, decode_end=256),
        "the same on the grids that SGLang's extra_buffer can reach",
    ),
    "min-gain": (
        Admission(branch=1, branch_full=True, decode_end=1, min_gain_tokens=128),
        "marconi, with branch points at least 128 tokens beyond the hit",
    ),
    "ghost": (
        Admission(branch=1, decode_end=1, ghost_forks=1, min_gain_tokens=128),
        "min-gain, and the deepest fork ever seen even when its KV has gone",
    ),
    "system": (
        Admission(branch=1, decode_end=1, system_end=True, min_gain_tokens=128),
        "min-gain, and the end of the system message at first sight",
    ),
    "prompt": (
        Admission(branch=1, branch_full=True, decode_end=1, prompt_end=1),
        "marconi, and the end of the prompt",
    ),
    "served": (
        Admission(
            branch=1,
            branch_full=True,
            decode_end=1,
            prompt_end=1,
            min_gain_tokens=128,
            chunk_tokens=8192,
            first_victims=True,
        ),
        "min-gain, and prompt and chunk ends as first victims",
    ),
    "shipped": (
        Admission(
            branch=1,
            branch_full=True,
            decode_end=1,
            prompt_end=1,
            ghost_forks=1,
            min_gain_tokens=128,
            chunk_tokens=8192,
            first_victims=True,
        ),
        "served, and the deepest fork ever seen: what --cache hybrid-marconi does",
    ),
    "stock": (
        Admission(
            branch=64,
            branch_full=True,
            prompt_end=64,
            decode_end=256,
            chunk_tokens=8192,
            chunk_or_branch=True,
            truncate=True,
        ),
        "SGLang 0.5.23 with extra_buffer: one state per prefill chunk, on a grid",
    ),
    "stock-cap": (
        Admission(
            branch=64,
            branch_full=True,
            prompt_end=64,
            decode_end=256,
            chunk_tokens=8192,
            chunk_or_branch=True,
            truncate=True,
            max_states_per_path=4,
        ),
        "stock with --mamba-max-states-per-path 4",
    ),
    "block": (
        Admission(block_tokens=32),
        "every block of 32 tokens (vLLM+ of the paper)",
    ),
}


def parse_admission(text: str) -> Admission:
    """`NAME[:KEY=VALUE...]`: a preset with some of its parameters changed.

    Raises:
        ValueError: names the value, what is allowed, and the closest name.
    """
    name, *options = text.split(":")
    if name == "custom":
        base = None
    elif name in PRESETS:
        base = PRESETS[name][0]
    else:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown admission {name!r}; allowed: {', '.join(PRESETS)}{hint}")
    types = {f.name: f.type for f in fields(Admission) if f.name != "name"}
    changes: dict[str, int | bool] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if key not in types or not separator:
            raise ValueError(
                f"admission {text!r}: {option!r} is not KEY=VALUE with a known key; allowed keys: "
                f"{', '.join(types)}"
            )
        changes[key] = _value(text, key, value, is_bool=types[key] == "bool")
    if base is None:
        return Admission(name=text, **changes)  # type: ignore[arg-type]
    return replace(base, name=text, **changes)  # type: ignore[arg-type]


def _value(text: str, key: str, value: str, is_bool: bool) -> int | bool:
    if is_bool:
        if value.lower() in ("true", "1", "yes", "on"):
            return True
        if value.lower() in ("false", "0", "no", "off"):
            return False
        raise ValueError(
            f"admission {text!r}: {key} = {value!r} is not allowed; allowed: true, false"
        )
    try:
        return int(value)
    except ValueError:
        raise ValueError(
            f"admission {text!r}: {key} = {value!r} is not allowed; allowed: an integer"
        ) from None
