"""Small traces of every format, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NATIVE = [
    {"format": "hybrid-marconi-trace", "version": 1, "name": "n", "tokens_per_symbol": 1},
    {"session": "a", "t": 0.5, "symbols": [1, 2, 3, 4], "input_len": 3, "output_len": 1},
    {
        "session": "a",
        "t": 1.5,
        "parent": 0,
        "keep": 4,
        "symbols": [5, 6],
        "input_len": 5,
        "output_len": 1,
        "system_len": 2,
    },
]
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 300, "hash_ids": [0, 1, 2]},
    {"timestamp": 2000, "input_length": 1600, "output_length": 10, "hash_ids": [0, 1, 3, 4]},
    {"timestamp": 3000, "input_length": 600, "output_length": 10, "hash_ids": [0, 5]},
]
MESSAGES = [
    {
        "id": "airline-0",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Book a flight."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "search", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "HAT069"},
            {"role": "assistant", "content": "HAT069 it is."},
        ],
    },
    {
        "id": "airline-1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Cancel."},
            {"role": "assistant", "content": "Done."},
        ],
    },
]
SHAREGPT = [
    {
        "id": "s0",
        "conversations": [
            {"from": "human", "value": "Hello"},
            {"from": "gpt", "value": "Hi!"},
            {"from": "human", "value": "Bye"},
            {"from": "gpt", "value": "See you."},
        ],
    },
    {
        "id": "s1",
        "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Yes?"}],
    },
]
TRAJECTORY = {
    "environment": "main",
    "trajectory": [],
    "history": [
        {"role": "system", "content": "Fix bugs.", "agent": "main"},
        {"role": "user", "content": "A demonstration.", "agent": "main", "is_demo": True},
        {"role": "user", "content": "The issue.", "agent": "main"},
        {"role": "assistant", "content": "ls", "thought": "ls", "action": "ls", "agent": "main"},
        {"role": "user", "content": "setup.py", "agent": "main"},
        {"role": "assistant", "content": "submit", "agent": "main"},
    ],
}
SERVER_RECORD = [
    {"ns": "x", "t": 10.0, "page": 4, "hashes": ["a", "b"], "input_len": 7, "output_len": 3},
    {"ns": "x", "t": 11.0, "page": 4, "hashes": ["a", "c"], "input_len": 9, "output_len": 0},
    {"ns": "y", "t": 12.0, "page": 4, "hashes": ["a"], "input_len": 4, "output_len": 2},
]


def claude_session(name: str, *requests: dict[str, Any], tools: int = 64) -> dict[str, Any]:
    """A session with a system prompt of 64 tokens behind its tools."""
    return {
        "id": name,
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": tools,
        "system_tokens": 64,
        "requests": list(requests),
    }


def claude_request(t: float, input_len: int, output_len: int, *runs: list[int]) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": input_len, "out": output_len, "hash_runs": list(runs)}


CLAUDE_CODE = [
    claude_session(
        "c0",
        claude_request(0.0, 200, 30, [1, 3]),
        claude_request(9.0, 400, 30, [1, 6]),
        {
            "t": 4.0,
            "type": "subagent",
            "requests": [claude_request(1.0, 100, 10, [50, 1])],
        },
    ),
    claude_session("c1", claude_request(0.0, 210, 20, [1, 3])),
]
BY_FORMAT = {
    "hybrid-marconi-trace": NATIVE,
    "mooncake": MOONCAKE,
    "messages": MESSAGES,
    "sharegpt": SHAREGPT,
    "swe-agent": [TRAJECTORY],
    "claude-code": CLAUDE_CODE,
    "server-record": SERVER_RECORD,
}


def json_lines(entries: list[Any]) -> bytes:
    """Entries as JSON Lines; strings are lines as they are."""
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    return "".join(line + "\n" for line in lines).encode()


def write_lines(folder: Path, entries: list[Any], name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_bytes(json_lines(entries))
    return path
