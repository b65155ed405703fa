"""Windows of a made-up server: conversations behind shared system prompts, some with a salt."""

from __future__ import annotations

from random import Random

import numpy as np

from sglang_hybrid.core.pages import PAGE_TOKENS, PageChain
from sglang_hybrid.shadow.records import Window, WindowBuilder


def records(seed: int, count: int, *, tokens: int = 2000) -> Window:
    """``count`` requests of about ``tokens`` tokens at most, in one window."""
    random = Random(seed)
    draw = np.random.default_rng(seed)
    systems = [draw.integers(0, 50_000, random.randint(100, tokens // 2)) for _ in range(4)]
    open_: list[tuple[np.ndarray, int, int]] = []  # sequence, system tokens, namespace
    builder = WindowBuilder(PAGE_TOKENS)
    for _ in range(count):
        if open_ and random.random() < 0.7:
            known, system_len, namespace = open_.pop(random.randrange(len(open_)))
            if random.random() < 0.2:  # somebody tries another answer
                known = known[: random.randint(1, len(known))]
                system_len = min(system_len, len(known))
        else:
            known = random.choice(systems)
            system_len, namespace = len(known), random.choice([0, 0, 7])
        prompt = np.concatenate((known, draw.integers(0, 50_000, random.randint(1, 300))))
        output = draw.integers(0, 50_000, random.randint(0, 200))
        full = np.concatenate((prompt, output))
        pages = PageChain(namespace).extend(full, len(full))
        if random.random() < 0.05:
            pages = pages[: random.randint(0, len(pages))]
        builder.add(
            len(prompt),
            len(output),
            pages,
            system_len=system_len if random.random() < 0.8 else -1,
            hit=random.randint(0, len(prompt)),
            namespace=namespace,
        )
        if len(full) < tokens:
            open_.append((full, system_len, namespace))
            if random.random() < 0.3:
                open_.append((full, system_len, namespace))
    return builder.take()


def split(window: Window, size: int) -> list[Window]:
    """Consecutive windows of ``size`` requests; the last one may be smaller."""
    return [
        window.part(start, min(start + size, len(window))) for start in range(0, len(window), size)
    ]
