"""Cases that the state machine of `test_machine` found, shrunk."""

import pytest
from machine_checks import check_drained, check_slots
from saving_driver import saving_cache
from small_scheduler import SmallScheduler

STRATEGIES = [
    {},
    {"extra_buffer": True},
    {"extra_buffer": True, "page_size": 16},
    {"extra_buffer": True, "lazy": True},
]


def scheduler_of(config=None, chunk=64, **options):
    return SmallScheduler(saving_cache(config, **options), chunk, lambda req: 900)


def run(scheduler, steps):
    for _ in range(steps):
        scheduler.prefill()
        scheduler.decode_step()


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
def test_a_retracted_request_that_keeps_its_prompt_alone_frees_no_kv_of_the_tree(options):
    """With --strip-thinking-cache a finished request gives back its output's KV.

    Of one that was retracted, the tree has taken over that KV when prompt and output
    were prefilled again: it was freed under the tree's feet, and handed out once more.
    """
    scheduler = scheduler_of(strip_thinking_cache=True, **options)
    req = scheduler.submit(range(1, 60), sampling={"max_new_tokens": 60})
    req.reasoning_tokens = 1
    run(scheduler, 40)
    scheduler.decode_step(retract=1)
    assert scheduler.waiting == [req] and len(req.output_ids) > 30
    run(scheduler, 60)
    assert not scheduler.live and req.finished()
    check_slots(scheduler)
    check_drained(scheduler)


def test_what_a_retracted_request_keeps_may_be_less_than_what_the_tree_has():
    """The insert of the prompt alone was shorter than the KV that the tree had of it.

    SGLang's insert asserts that it is not: the scheduler died. The state at 64 tokens was
    left in the request's tracking slot, as ``prompt_end`` is "never".
    """
    config = {"branch_checkpoint": "chunk", "prompt_end": "never"}
    scheduler = scheduler_of(config, chunk=128, extra_buffer=True, strip_thinking_cache=True)
    req = scheduler.submit(range(1, 67), sampling={"max_new_tokens": 20})
    req.reasoning_tokens = 1
    run(scheduler, 10)
    scheduler.decode_step(retract=1)
    run(scheduler, 20)
    assert not scheduler.live and req.finished()
    check_slots(scheduler)
    check_drained(scheduler)


def test_states_inside_an_output_that_is_not_kept_go_back():
    """A prefill of prompt and output saved a state in the output, and the request ended.

    With --strip-thinking-cache its prompt alone was inserted, too short for that state.
    """
    config = {"prompt_end": "never", "min_gain_tokens": 1}
    scheduler = scheduler_of(config, chunk=128, extra_buffer=True, strip_thinking_cache=True)
    req = scheduler.submit(range(1, 60), sampling={"max_new_tokens": 12})
    req.reasoning_tokens = 1
    run(scheduler, 9)
    scheduler.decode_step(retract=1)
    output = list(req.output_ids)
    assert len(output) >= 8
    scheduler.waiting.remove(req)
    scheduler.submit([*range(1, 60), *output[:5], 7, 8], sampling={"max_new_tokens": 1})
    run(scheduler, 3)
    scheduler.waiting.append(req)
    req.sampling_params.max_new_tokens = len(output) + 1
    scheduler.prefill()
    assert [saved.depth for saved in req.hybrid_saved] == [64]  # where the other one parted
    run(scheduler, 4)
    assert req.finished() and not scheduler.live
    check_slots(scheduler)
    check_drained(scheduler)


def test_forks_of_one_salt_are_not_those_of_another():
    """Ghost forks were remembered by SGLang's extra key alone, which has no salt in it.

    What two requests of one salt diverged on led to a checkpoint in a prompt of another.
    """
    cache = saving_cache({"prompt_end": "never", "chunk_boundary": "never"})
    scheduler = SmallScheduler(cache, 256, lambda req: 900)
    begin = list(range(1, 65))
    for salt, first in (("one", 100), ("one", 300), ("two", 500)):
        prompt = [*begin, *range(first, first + 70)]
        scheduler.submit(prompt, cache_salt=salt, sampling={"max_new_tokens": 2})
        run(scheduler, 3)
    assert cache.counters.ghost_fork_checkpoints == 0
    scheduler.submit([*begin, *range(700, 770)], cache_salt="two", sampling={"max_new_tokens": 2})
    run(scheduler, 3)
    assert {c.kind.name for c in cache.view.checkpoints.values()} == {"BRANCH", "DECODE_END"}


def test_tenants_in_one_batch_save_the_same_place_each_for_itself():
    """Of requests of a batch that want a state at the same place of one prefix, one saves it."""
    scheduler = scheduler_of({"min_gain_tokens": 1}, chunk=1024, extra_buffer=True)
    begin = list(range(1, 65))
    for first in (100, 300):  # what parts here in the second round is a branch point
        for salt in ("one", "two"):
            prompt = [*begin, *range(first, first + 70)]
            scheduler.submit(prompt, cache_salt=salt, sampling={"max_new_tokens": 2})
        run(scheduler, 4)
    assert not scheduler.live
    assert scheduler.cache.counters.branch_checkpoints == 2
    check_slots(scheduler)


def test_one_request_at_most_is_left_unfinished_by_a_pass():
    """A chunk that ends on the grid left tokens to the request behind it, cut in its turn.

    SGLang goes on with the last request that a pass cut: the one before was taken for
    prefilled, and answered from the beginning of its prompt.
    """
    scheduler = scheduler_of({"branch_checkpoint": "chunk"}, chunk=128, extra_buffer=True)
    for first, tokens in ((1, 30), (1000, 200), (2000, 200)):
        scheduler.submit(range(first, first + tokens), sampling={"max_new_tokens": 2})
    assert [req.extend_end for req in scheduler.prefill()] == [30, 64]
    run(scheduler, 6)
    assert not scheduler.live
