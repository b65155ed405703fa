"""Eight requests at a time, some of which are given up: nothing is lost, nothing is wrong."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import requests
from comparison import Comparison, answer_of
from workload import sharing

SHARED = (61, 67, 129, 251, 333)


def body(prompt, length, **fields) -> dict:
    sampling = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, **fields}


def leave_early(server, prompt) -> None:
    """Send a request and close the connection at once: none of its answer is read."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    fields = json.dumps(body(prompt, 60, stream=True))
    connection.request("POST", "/generate", fields, {"Content-Type": "application/json"})
    connection.close()


def leave_in_answer(server, prompt) -> bool:
    """Close the connection when the first token has arrived; whether more would have come."""
    fields = body(prompt, 60, stream=True)
    with requests.post(f"{server.url}/generate", json=fields, stream=True, timeout=120) as reply:
        first = next(line for line in reply.iter_lines() if line.startswith(b"data:"))
        return b'"finish_reason":null' in first.replace(b" ", b"")


def test_eight_at_once_and_some_are_given_up(served):
    server, _ = served
    server.flush()
    rng = random.Random(3)
    prompts = [sharing(rng.choice(SHARED), i, rng.randrange(1, 90)) for i in range(40)]

    def one(job):
        number, prompt = job
        if number % 8 == 3:
            return leave_early(server, [*prompt, *sharing(700, number)])
        if number % 8 == 6:
            return leave_in_answer(server, prompt)
        return server.generate(prompt, number % 24 + 1, return_logprob=True, top_logprobs_num=2)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, enumerate(prompts)))

    assert any(results[6::8])
    server.flush()  # refused while anything is held
    comparison = Comparison(server)
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        if isinstance(result, dict):
            comparison.add(prompt, number % 24 + 1, answer_of(result))
    assert len(comparison.answers) == 30
    print("HITS", sum(answer.hit > 0 for answer in comparison.answers))
    assert sum(answer.hit > 0 for answer in comparison.answers) > 10
    comparison.check()
