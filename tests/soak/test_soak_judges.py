"""What a soak lets pass and what it does not."""

from collections import Counter

import pytest
from soak_client import Given, rendered
from soak_jobs import ALONE, STAGES, Traffic
from soak_reference import Expected, compare
from soak_report import MIB, Visit, table
from soak_run import Round
from soak_servers import SETUPS

from sglang_hybrid.model.tokenizer import TURN_END_ID

EXPECTED = Expected([5, 6, 7], [-0.5, -0.1, -0.7], [0.3, 2.0, 0.004], [None, -3.0])

PRESSURE = {
    "evicted_states": 9,
    "skipped_checkpoints": 0,
    "declined_checkpoints": 2,
    "slot_waits": 1,
    "retractions": 4,
    "hit_tokens": 30,
    "prompt_tokens": 100,
}


def answer(tokens, **fields) -> Given:
    return Given(tokens, **fields)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (answer([5, 6, 7], logprobs=[-0.5, -0.1, -0.7], input_logprobs=[None, -3.0]), None),
        (answer([5, 6, 9]), None),  # a tie
        (answer([5, 9, 7]), "differs at token 1"),
        (answer([5, 6]), None),  # ended where the margin is noise
        (answer([5]), "differs at token 1"),
        (answer([5, 6, 7, 8]), "differs at token 3"),
        (answer([5, 6, 7], logprobs=[-0.5, -0.102, -0.7]), "log-probability is off by 0.002"),
        (answer([5, 6, 7], input_logprobs=[None, -3.1]), "log-probability is off by 0.1"),
        (answer([5, 6, 7], input_logprobs=[None]), "1 log-probabilities of the prompt"),
    ],
)
def test_what_differs_beyond_the_noise_is_wrong(given, wrong):
    verdict = compare(given, EXPECTED)
    assert (verdict.wrong is None) if wrong is None else (wrong in verdict.wrong)
    assert (verdict.tie is not None) == (wrong is None and given.tokens != EXPECTED.tokens)


def test_text_is_compared_without_the_token_that_ended_it():
    ended = Expected([5, 6, TURN_END_ID], [-0.1] * 3, [2.0, 2.0, 2.0], [])
    assert compare(answer([5, 6]), ended, is_text=True).wrong is None
    assert compare(answer([5]), ended, is_text=True).wrong is not None
    assert compare(answer([5, 6, 7]), ended, is_text=True).wrong is not None


def round_of(**fields) -> Round:
    values = {
        "seed": 1,
        "requests": 100,
        "finished": 90,
        "refused": 1,
        "tokens": 9000,
        "aborts": Counter(STAGES),
        "counters": PRESSURE,
        "rss_bytes": 700 * MIB,
    }
    return Round(**{**values, **fields})


def test_a_soak_without_pressure_has_shown_nothing():
    setup = next(setup for setup in SETUPS if setup.waits)
    Visit("a", [round_of()]).check_pressure(setup)
    for name in ("evicted_states", "declined_checkpoints", "slot_waits"):
        with pytest.raises(AssertionError, match="none of these happened"):
            Visit("a", [round_of(counters={**PRESSURE, name: 0})]).check_pressure(setup)
    for stage in STAGES:
        with pytest.raises(AssertionError, match=f"aborts while {stage}"):
            aborts = Counter(other for other in STAGES if other != stage)
            Visit("a", [round_of(aborts=aborts)]).check_pressure(setup)
    retracting = next(setup for setup in SETUPS if setup.retracts)
    with pytest.raises(AssertionError, match="retractions"):
        Visit("a", [round_of(counters={**PRESSURE, "retractions": 0})]).check_pressure(retracting)


def test_differences_within_the_noise_are_bounded():
    Visit("a", [round_of(ties=[0.001])]).check_answers()
    with pytest.raises(AssertionError, match="2 of 90 answers"):
        Visit("a", [round_of(ties=[0.001, 0.002])]).check_answers()
    with pytest.raises(AssertionError, match="off by"):
        Visit("a", [round_of(wrong=["off by one"])]).check_answers()


def test_growth_is_the_slope_after_a_warm_up():
    grown = [0, 60, 80, 80, 81, 82, 83, 84, 85, 86]  # 1 MiB in 100 requests, once it is warm
    rounds = [round_of(rss_bytes=(700 + each) * MIB) for each in grown]
    assert Visit("a", rounds).growth() == pytest.approx(10)
    assert Visit("a", rounds[:4]).growth() is None
    assert "| 10.00 |" in table([Visit("a", rounds)])


def test_a_seed_gives_the_same_traffic():
    first, again, other = (Traffic(seed, 2041, 2042).jobs(80) for seed in (3, 3, 4))
    assert first == again and first != other
    kinds = Counter(job.kind for job in Traffic(0, 2041, 2042).jobs(2000))
    assert kinds.keys() == {"generate", "long", "too_long", "chat", "batch", "fan"}
    aborts = [job.abort for job in first[:ALONE] if job.abort is not None]
    assert {(abort.stage, abort.closes) for abort in aborts} == {
        (stage, closes) for stage in STAGES for closes in (True, False)
    }


def test_the_prompt_of_a_conversation_is_what_the_template_makes(model):
    from transformers import AutoTokenizer

    messages = [
        {"role": "system", "content": "Be kind. "},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": " x\n"},
        {"role": "user", "content": "and?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert rendered(messages) == list(ids)
