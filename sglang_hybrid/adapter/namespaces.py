"""Namespaces of the tree: what SGLang joins into one string, kept apart."""

from __future__ import annotations

from typing import Any

_MARK = "\0"
_ADAPTER = f"{_MARK}lora:"


def separate_adapters(_result: None, req: Any, *args: Any, **kwargs: Any) -> None:
    """Hook after `Req.__init__`, which appends the adapter's id to the caller's ``extra_key``.

    A request to the base model whose caller gives that id as its key would share the
    adapter's KV and states. What the caller gives never begins like an adapter's key here.
    """
    if req.lora_id is not None:
        req.extra_key = _ADAPTER + req.extra_key
    elif req.extra_key is not None and req.extra_key.startswith(_MARK):
        req.extra_key = _MARK + req.extra_key
