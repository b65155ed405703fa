"""Sends a job to a server and says what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import requests
from soak_jobs import Job

from sglang_hybrid.model.tokenizer import BYTES, TURN_END_ID, TURN_START_ID

DEADLINE_S = 240
"""Within which every request is answered, refused or aborted, on a machine that is busy."""


class Hung(Exception):
    """A request was not answered in time."""


@dataclass(frozen=True)
class Given:
    """What one request was answered.

    Attributes:
        tokens: what was generated; of chat without the token that ended it.
        logprobs: of these, where asked for.
        input_logprobs: of the prompt from ``logprob_start_len`` on, where asked for.
        is_whole: whether it ended by itself; else it is a beginning.
        hit: tokens that came from the cache; None where the reply does not tell.
        retractions: how often it was retracted.
    """

    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    is_whole: bool = True
    hit: int | None = None
    retractions: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        prompt: its tokens.
        given: its answers; none where it was refused, beginnings where it was aborted.
        refusal: the server's message, where it refused.
        messages: of chat, the conversation with the answer.
        others: further prompts, ``max_new_tokens`` and answers: of a fan, or of what only
            kept the server busy.
    """

    prompt: list[int]
    given: list[Given]
    refusal: str | None = None
    messages: tuple[dict, ...] = ()
    others: tuple[tuple[list[int], int, Given], ...] = ()

    @property
    def sequence(self) -> tuple[list[int], list[int]]:
        """Prompt and answer, as later jobs build on them."""
        whole = [given for given in self.given if given.is_whole]
        return self.prompt, whole[0].tokens if whole else []


def rid_of(job: Job, run: str, part: int = 0) -> str:
    """The request's name; none is the beginning of another."""
    return f"{run}-{job.number:06d}-{part}"


def body_of(job: Job, prompt: Sequence[int], run: str, prioritised: bool) -> dict:
    """Fields of ``/generate``."""
    sampling = {"max_new_tokens": job.length, "temperature": 0, "ignore_eos": True, **job.sampling}
    body = {"input_ids": list(prompt), "sampling_params": sampling, **job.space}
    if job.kind == "batch":
        body["input_ids"] = [list(prompt)] * job.copies
        body["rid"] = [rid_of(job, run, part) for part in range(job.copies)]
    else:
        body["rid"] = rid_of(job, run)
        if job.copies > 1:
            sampling["n"] = job.copies
            del body["rid"]
    if job.logprobs:
        body["return_logprob"] = True
        start = start_of(job, prompt)
        if start is not None:
            body["logprob_start_len"] = start
    if job.stream:
        body["stream"] = True
    if prioritised:
        body["priority"] = job.priority
    return body


def given_of(reply: Mapping) -> Given:
    """Of a reply of ``/generate``, or the last part of a stream."""
    info = reply["meta_info"]
    reason = info["finish_reason"]
    return Given(
        list(reply.get("output_ids") or ()),
        [entry[0] for entry in info.get("output_token_logprobs") or ()],
        [entry[0] for entry in info.get("input_token_logprobs") or ()],
        reason is not None and reason["type"] != "abort",
        info.get("cached_tokens"),
        info.get("num_retractions", 0),
    )


def start_of(job: Job, prompt: Sequence[int]) -> int | None:
    """The job's ``logprob_start_len``."""
    if job.logprob_start is None:
        return None
    return round(job.logprob_start * (len(prompt) - 1))


# ---- requests that are waited for ----


def post(url: str, body: Mapping) -> requests.Response:
    try:
        return requests.post(url, json=body, timeout=DEADLINE_S)
    except requests.Timeout as error:
        raise Hung(f"no answer within {DEADLINE_S} s") from error


def events_of(lines: Iterator[bytes]) -> Iterator[dict]:
    """The parts of a stream."""
    deadline = time.monotonic() + DEADLINE_S
    for line in lines:
        if time.monotonic() > deadline:
            raise Hung(f"the stream does not end within {DEADLINE_S} s")
        if line.startswith(b"data:") and b"[DONE]" not in line:
            event = json.loads(line[5:])
            if "error" in event:
                raise AssertionError(event["error"])
            yield event


def generate(url: str, body: Mapping) -> tuple[list[Given], str | None]:
    """Answers of ``/generate``, or the message with which it refused."""
    if body.get("stream"):
        try:
            with requests.post(
                f"{url}/generate", json=body, stream=True, timeout=DEADLINE_S
            ) as reply:
                if reply.status_code == 400:
                    return [], reply.json()["error"]["message"]
                reply.raise_for_status()
                *_, last = events_of(reply.iter_lines())
                return [given_of(last)], None
        except requests.Timeout as error:
            raise Hung(f"nothing more of a stream within {DEADLINE_S} s") from error
    reply = post(f"{url}/generate", body)
    if reply.status_code == 400:
        return [], reply.json()["error"]["message"]
    reply.raise_for_status()
    parsed = reply.json()
    return [given_of(each) for each in (parsed if isinstance(parsed, list) else [parsed])], None


def fan(url: str, job: Job, run: str, prioritised: bool) -> Outcome:
    """Prompts at once of which each hits a state of its own, and reveals a branch point.

    For each such a state is made first, one after another. Of six, five fit into a chunk of 128
    tokens: when the last is to be admitted, four states are locked and four slots are taken for
    branch points, as the step has not ended. With three slots for each and one more, it waits.
    """
    members = range(job.copies)
    waves = [[_of_fan(job.own, i, made)] for i in members for made in range(2)]
    waves.append([_of_fan(job.own, i, 2) for i in members])
    others = []
    for number, prompts in enumerate(waves):
        sampling = {"max_new_tokens": job.length, "temperature": 0, "ignore_eos": True}
        body = {
            "input_ids": prompts,
            "sampling_params": sampling,
            "rid": [f"{rid_of(job, run, number)}-{i}" for i in range(len(prompts))],
            **job.space,
        }
        if prioritised:
            body["priority"] = job.priority
        given, refusal = generate(url, body)
        assert refusal is None and len(given) == len(prompts), refusal
        others += [(prompt, job.length, each) for prompt, each in zip(prompts, given, strict=True)]
    return Outcome(list(job.own), [], others=tuple(others))


def _of_fan(own: Sequence[int], member: int, made: int) -> list[int]:
    """A prompt that leaves the one ``made`` before a few tokens behind its hit."""
    prompt = [33 + member, *own[:90]]
    for each in range(made):
        prompt += [60 + each, *own[90:96]]
    return [*prompt, 70 + made, *own[96:108]]


def generate_reply(url: str, body: Mapping) -> dict:
    """The reply of ``/generate`` to a request that must be answered."""
    reply = post(f"{url}/generate", body)
    reply.raise_for_status()
    return reply.json()


def rendered(messages: Sequence[Mapping]) -> list[int]:
    """The prompt that the model's chat template makes of a conversation."""
    ids = []
    for message in messages:
        ids += [TURN_START_ID, *message["role"].encode(), 10, *message["content"].encode()]
        ids.append(TURN_END_ID)
    return [*ids, TURN_START_ID, *b"assistant\n"]


def chat(url: str, job: Job, before: Sequence[dict], run: str, prioritised: bool) -> Outcome:
    """One turn of a conversation."""
    messages = list(before) or [{"role": "system", "content": job.system}]
    messages.append({"role": "user", "content": bytes(job.own).decode()})
    body = {
        "model": "soak",
        "messages": messages,
        "temperature": 0,
        "max_tokens": job.length,
        "rid": rid_of(job, run),
        **job.space,
    }
    if prioritised:
        body["priority"] = job.priority
    url = f"{url}/v1/chat/completions"
    if job.stream:
        with requests.post(
            url, json={**body, "stream": True}, stream=True, timeout=DEADLINE_S
        ) as reply:
            reply.raise_for_status()
            parts = [
                event["choices"][0]["delta"].get("content") or ""
                for event in events_of(reply.iter_lines())
                if event["choices"]
            ]
        text, hit = "".join(parts), None
    else:
        reply = post(url, body)
        reply.raise_for_status()
        parsed = reply.json()
        text = parsed["choices"][0]["message"]["content"] or ""
        hit = parsed["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert parsed["usage"]["prompt_tokens"] == len(rendered(messages)), "another prompt"
    messages.append({"role": "assistant", "content": text})
    given = Given([byte for byte in text.encode() if byte < BYTES], hit=hit)
    return Outcome(rendered(messages[:-1]), [given], messages=tuple(messages))
