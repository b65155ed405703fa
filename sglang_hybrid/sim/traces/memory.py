"""What a trace may take in memory while it is read.

A small file can stand for more than any machine holds: compressed, or with lengths that no
hashes bear out. Readers say what they are about to make before they make it.
"""

from __future__ import annotations

DEFAULT_BYTES = 8 * 10**9

REQUEST_BYTES = 400
"""Of a request or of the report of a malformed entry, in lists of Python objects."""

TOKEN_BYTES = 16
"""Of a symbol that is only stored: once in the reader, once in the trace."""

CHAINED_BYTES = 64
"""Of a symbol of a chain of blocks, with what finds it again and the steps between."""

_DOCUMENTS = 8
"""A JSON document takes up to so many times its length when it is parsed."""


class TraceError(ValueError):
    """A trace that cannot be read."""


class Memory:
    """Estimate of what a trace takes.

    Args:
        limit: bytes.

    Raises:
        TraceError: from every method, where the limit is passed.
    """

    def __init__(self, limit: float = DEFAULT_BYTES) -> None:
        if not 1 <= limit < 2**63:
            raise ValueError(f"max_memory {limit} is not allowed; allowed: bytes, from 1")
        self.limit = int(limit)
        self.kept = 0

    @property
    def document_bytes(self) -> int:
        """The longest JSON document: a line, or a whole file that is not JSON Lines."""
        return self.limit // _DOCUMENTS

    def keep(self, size: int, place: str) -> None:
        """So many bytes more are held until the trace is made."""
        self.need(size, place)
        self.kept += size

    def need(self, size: int, place: str) -> None:
        """So many bytes more are held for a moment."""
        if self.kept + size > self.limit:
            raise self._error(place, f"the trace needs more than {self.limit} bytes of memory")

    def refuse_document(self, place: str) -> TraceError:
        """The error for a document that is longer than `document_bytes`."""
        return self._error(place, f"a JSON document of more than {self.document_bytes} bytes")

    def _error(self, place: str, what: str) -> TraceError:
        return TraceError(
            f"{place}: {what}; allowed: what fits max_memory (--trace-memory), {self.limit} "
            "bytes; raise it if the file is meant to be this large"
        )
