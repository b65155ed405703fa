"""Requests that are known to run while others are sent."""

import json
import threading

import requests
from comparison import WITH_LOGPROBS


class Stream:
    """A greedy ``/generate`` request, served while the caller goes on.

    Args:
        server: a `CpuServer`.
        fields: further fields of the request.

    Attributes:
        prompt, length: what was asked for.
        response: the last part that came: all of the answer, or an error.
    """

    def __init__(self, server, prompt, length, **fields):
        self.prompt, self.length = prompt, length
        self.response = None
        params = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
        self._body = {"input_ids": prompt, "sampling_params": params, "stream": True}
        self._body |= {**WITH_LOGPROBS, **fields}
        self._url = f"{server.url}/generate"
        self._has_token, self._failure = threading.Event(), None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            with requests.post(self._url, json=self._body, stream=True, timeout=120) as answer:
                for line in answer.iter_lines():
                    text = line.decode().removeprefix("data: ")
                    if text and text != "[DONE]":
                        self.response = json.loads(text)
                        self._has_token.set()
        except Exception as error:
            self._failure = error
        finally:
            self._has_token.set()

    def running(self):
        """Wait until its first token is there; returns itself."""
        assert self._has_token.wait(120)
        return self

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def done(self):
        """Wait until it has ended; returns itself."""
        self._thread.join(180)
        assert self.is_done
        if self._failure is not None:
            raise self._failure
        return self

    @property
    def info(self) -> dict:
        return self.response["meta_info"]

    @property
    def is_refused(self) -> bool:
        """Whether it was turned away with 503, which a stream reports inside its answer."""
        reason = self.info["finish_reason"]
        return reason["type"] == "abort" and reason["status_code"] == 503
