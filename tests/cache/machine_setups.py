"""Caches and configurations that the state machine of `test_machine` runs on."""

import itertools

from hypothesis import strategies as st
from saving_driver import FAMILY

PLACES = [
    *(("no_buffer", 1, mode) for mode in ("exact", "split")),
    *itertools.product(
        ("extra_buffer", "extra_buffer_lazy"), (1, 16, 64), ("exact", "split", "chunk")
    ),
]
"""Strategies, page sizes and branch checkpoints that go together."""

UNIFIED = [(*place, "unified") for place in PLACES if place[1] != 16]
"""Those over pools in which states and tokens share memory."""

FEW_UNIFIED = [
    ("extra_buffer", 1, "exact", "unified"),
    ("extra_buffer_lazy", 1, "split", "unified"),
]
"""Of these as many as every run has time for."""

POLICIES = [("lru", 0.0), ("utility", 0.5), ("marconi", 1.0), ("density", 0.0)]


@st.composite
def setups(draw, place):
    """Arguments of a cache, its configuration and the scheduler's chunk, at a place of `PLACES`
    or `UNIFIED`."""
    strategy, page, mode, *memory = place
    is_buffered = strategy != "no_buffer"
    is_tiny = draw(st.booleans())
    per_request = {"no_buffer": 1, "extra_buffer": 3, "extra_buffer_lazy": 2}[strategy]
    slots = per_request + draw(st.integers(1, 4 + 2 * per_request)) if is_tiny else 200
    tokens = draw(st.sampled_from([512, 1024])) if is_tiny else 1 << 14
    config = {
        "branch_checkpoint": mode,
        "policy": draw(st.sampled_from([name for name, _ in POLICIES])),
        "prompt_end": draw(st.sampled_from(["auto", "always", "never"])),
        "chunk_boundary": draw(st.sampled_from(["first_victims", "never"])),
        "min_gain_tokens": draw(st.sampled_from([1, 16, 128])),
        "ghost_forks": draw(st.booleans()),
    }
    options = {
        "extra_buffer": is_buffered,
        "lazy": strategy == "extra_buffer_lazy",
        # Without it a lazy tracking buffer has no second slot, which SGLang relies on.
        "overlap": is_buffered and (strategy == "extra_buffer_lazy" or draw(st.booleans())),
        "page_size": page,
        "slots": slots,
        "tokens": tokens,
        "rows": 4,
        "family": draw(st.sampled_from([FAMILY, FAMILY, None])),
        "strip_thinking_cache": draw(st.sampled_from([False, False, True])),
    }
    if memory:
        # Rows move when they are freed, or (SGLang's default) when there is need.
        options.update(unified=True, lazy_compaction=draw(st.sampled_from([True, True, False])))
    chunks = [64, 128] if page == 64 or mode == "chunk" else [16, 48, 64]
    chunk = draw(st.sampled_from([*chunks, None] if mode != "split" else chunks))
    return config, options, chunk
