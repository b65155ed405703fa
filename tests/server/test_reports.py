"""A public report on the shared servers: prefills beside requests that decode."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from comparison import Comparison, answer_of
from workload import sharing, tokens


def test_a_prefill_in_mixed_chunks_leaves_right_states(served):
    """sglang #39342: with ``--enable-mixed-chunk`` a prefill that shared its forwards with
    decoding requests left a slot that no forward had written. As there: requests decode, a
    long prompt is prefilled in chunks beside them, then its prefix comes again, with another
    end and with the same.
    """
    server, setup = served
    if "--enable-mixed-chunk" not in setup.args:
        pytest.skip("prefills on their own here")
    server.flush()
    comparison, options = Comparison(server), {"return_logprob": True, "top_logprobs_num": 2}
    long = sharing(600, 1, 19)
    jobs = [(tokens(40, i), 60) for i in range(3)] + [(long, 4)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda job: answer_of(server.generate(*job, **options)), jobs)
        for job, answer in zip(jobs, answers, strict=True):
            comparison.add(*job, answer)
    for again in (sharing(600, 2, 19), long):
        assert comparison.ask(again, 4).hit >= 512
    comparison.check()
