import json

import pytest
from serving_cases import ASK, SYSTEM, TOOL


@pytest.fixture
def trace(tmp_path):
    """Three recorded conversations of two, one and three turns."""
    reply = {"role": "assistant", "content": "recorded"}
    follow = {"role": "user", "content": TOOL}
    lines = []
    for name, more in (("a", 1), ("b", 0), ("c", 2)):
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": name + ASK},
            reply,
            *[follow, reply] * more,
        ]
        lines.append(json.dumps({"id": name, "messages": messages}))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path
