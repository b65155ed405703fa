"""A running server, as the commands that only look at the cache see it."""

from __future__ import annotations

import json
from typing import Any

import requests

from sglang_hybrid.cli.expectations import STATE_KEY
from sglang_hybrid.cli.status import shown

_MOST_BYTES = 1 << 26
"""Of one answer. A part of a record has 1.4 MB for every DP rank."""


class ServerError(RuntimeError):
    """The server cannot be asked; the message is one line."""


class Server:
    """The endpoints of SGLang that tell about the cache.

    Args:
        url: without a path.
        api_key, admin_key: the server's keys; the admin key is for `set_state`, which
            takes the other where there is none.
        timeout_s: for one answer.

    Raises:
        ServerError: from every method, if the server cannot be reached, refuses, or does
            not run this cache.
    """

    def __init__(
        self, url: str, api_key: str | None, timeout_s: float, admin_key: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._key, self._admin_key = api_key, admin_key or api_key
        self._session = requests.Session()

    def caches(self) -> list[dict[str, Any]]:
        """Status of the cache of every DP rank, in the order of the ranks."""
        reply = self._call("GET", "/server_info", self._key)
        try:
            states = reply["internal_states"]
            found = [state[STATE_KEY] for state in states if STATE_KEY in state]
            broken = next((status["error"] for status in found if "error" in status), None)
            if not all(isinstance(status, dict) for status in found):
                raise TypeError
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError(
                f"{self.url}/server_info is not SGLang's ({type(error).__name__}); check --url"
            ) from None
        if not found:
            raise ServerError(
                f"{self.url} does not run --cache hybrid-marconi (no {STATE_KEY} in "
                "internal_states of /server_info); start the server with that flag"
            )
        if broken:
            raise ServerError(
                f"the server could not report its cache: {shown(broken, 200)}; see its log"
            )
        # SGLang lists them as they arrive, which may differ from one time to the next.
        return sorted(found, key=_dp_rank)

    def set_state(self, **values: float) -> list[bool]:
        """Set scheduler values, see `/set_internal_state`; whether each DP rank took them."""
        body = {"server_args": values}
        reply = self._call("POST", "/set_internal_state", self._admin_key, json=body)
        if not isinstance(reply, list):
            raise ServerError(f"{self.url}/set_internal_state is not SGLang's; check --url")
        return [bool(each) for each in reply]

    def _call(self, method: str, path: str, key: str | None, **kwargs: Any) -> Any:
        """The JSON value that the server answers."""
        if key:
            kwargs["headers"] = {"Authorization": f"Bearer {key}"}
        try:
            with self._session.request(
                method, self.url + path, timeout=self._timeout_s, stream=True, **kwargs
            ) as reply:
                body = self._body(reply, path)
        except requests.RequestException as error:
            raise ServerError(
                f"{self.url} cannot be reached ({type(error).__name__}); check --url"
            ) from None
        if reply.status_code in (401, 403):
            raise ServerError(
                f"{self.url}{path} answers {reply.status_code}; give the server's key with "
                "--api-key, and what only its admin may do with --admin-api-key"
            )
        if not reply.ok:
            text = shown(body[:200].decode(errors="replace"), 200)
            raise ServerError(f"{self.url}{path} answers {reply.status_code}: {text}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ServerError(
                f"{self.url}{path} is not SGLang's ({type(error).__name__}); check --url"
            ) from None

    def _body(self, reply: requests.Response, path: str) -> bytes:
        body = bytearray()
        for piece in reply.iter_content(1 << 16):
            body += piece
            if len(body) > _MOST_BYTES:
                raise ServerError(
                    f"{self.url}{path} answers with more than {_MOST_BYTES} bytes; check --url"
                )
        return bytes(body)


def _dp_rank(status: dict[str, Any]) -> int:
    rank = status.get("dp_rank")
    return rank if isinstance(rank, int) else 0
