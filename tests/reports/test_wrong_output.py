"""Reports of answers that changed because a state was not that of its tokens."""

import pytest
import torch
from contents import write_state
from harness import match_length
from saving_driver import SavingDriver, saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang_hybrid.kernels.ssd_scan import mamba_chunk_scan_combined
from stock_driver import sharing, unique
from test_stress import check_states

STRATEGIES = pytest.mark.parametrize(
    "options",
    [{}, {"extra_buffer": True}, {"extra_buffer": True, "page_size": 64}],
    ids=["no_buffer", "extra", "page_64"],
)


@pytest.mark.parametrize("page", [64, 512])
def test_every_state_is_that_of_its_nodes_tokens(page):
    """sglang #34808, #35412, #39115: on pages of 512 tokens a chunk ended at 64, the next state
    was taken at 576, and the node that got it ended at 512; decode took states on a grid of its
    own. Whoever hit such a node read 64 tokens twice.
    """
    cache = saving_cache({"min_gain_tokens": 1}, slots=40, extra_buffer=True, page_size=page)
    driver = SavingDriver(cache, chunk=512 + 64 if page == 64 else 1024)
    for salt, (shared, own) in enumerate([(576, 29), (576, 29), (605, 700), (64, 512), (1024, 1)]):
        driver.serve(sharing(shared, own, salt + 1), unique(300, 50 + salt))
        check_states(cache)
    depths = {checkpoint.depth for checkpoint in cache.view.checkpoints.values()}
    assert len(depths) > 2 and all(depth % page == 0 for depth in depths)
    assert match_length(cache, sharing(576, 30, 9)) == 576 // page * page


def test_a_state_at_another_depth_is_noticed():
    """The control of the reports above: the check behind ``strict`` finds such a state."""
    cache = saving_cache()
    SavingDriver(cache).serve(unique(100, 1), [7])
    (checkpoint,) = [c for c in cache.view.checkpoints.values() if c.depth == 100]
    checkpoint.depth += 64
    with pytest.raises(AssertionError, match=r"ends at token 100, its state was taken at 164"):
        cache.check_integrity()


class MixedDriver(SavingDriver):
    """Its forwards are merged with decoding requests by a scheduler that forgets the saves."""

    forgets = True

    def run(self, batch):
        if self.forgets:
            vars(batch).pop("hybrid_saves", None)
        super().run(batch)


@pytest.mark.parametrize("page", [1, 64])
def test_a_slot_that_no_forward_wrote_is_not_handed_over(page):
    """sglang #39342: with ``--enable-mixed-chunk`` the batch lost its tracking when decoding
    requests joined; the forward wrote no state, the slot was handed over all the same, and
    later requests went on from what was in it (exact match 0.91 to 0.85).
    """
    cache = saving_cache(
        {"prompt_end": "always", "min_gain_tokens": 1}, extra_buffer=True, page_size=page
    )
    driver = MixedDriver(cache, chunk=1664)
    prompt = sharing(4800, 19, 1)  # in three chunks
    running = driver.start(prompt)
    assert not cache.view.checkpoints and cache.counters.unwritten_checkpoints == 3
    driver.abort(running)
    driver.forgets = False
    assert driver.serve(sharing(4800, 19, 2)) == 0
    assert driver.serve(sharing(4800, 19, 3)) >= 4800 - page
    check_states(cache)


class LateDriver(SavingDriver):
    """What its forwards write is there only when the scheduler has gone on, as on a GPU."""

    def __init__(self, cache, chunk):
        super().__init__(cache, chunk)
        self.queue = []

    def _write_state(self, slot, req, depth):
        pool, slot, digest = self.cache.req_to_token_pool, int(slot), self.digests(req, depth)[-1]
        self.queue.append(lambda: write_state(pool, slot, int(digest)))

    def _compute(self, req, start, end, is_checked=True):
        super()._compute(req, start, end, is_checked=False)

    def run(self, batch):
        saves = getattr(batch, "hybrid_saves", None)
        if saves is None:
            super().run(batch)
            return
        copy_ends, saves.copy_ends = saves.copy_ends, lambda: None
        super().run(batch)
        self.queue.append(copy_ends)
        saves._ends_written = True  # launched

    def start(self, prompt, extra_key=None, stop_after=None):
        req = super().start(prompt, extra_key, stop_after)
        self.catch_up()
        return req

    def catch_up(self):
        """The device has run everything that was launched."""
        queue, self.queue = self.queue, []
        for write in queue:
            write()


@pytest.mark.parametrize("page", [1, 64])
def test_a_state_may_be_handed_over_before_the_forward_has_run(page):
    """sglang #24221, #24954: with the overlap schedule the states of a chunk were copied to the
    tree before the device had written them. Here all chunks of a prefill are checkpointed
    first and written afterwards: slots change hands, nothing is read.
    """
    cache = saving_cache({"min_gain_tokens": 1}, slots=40, extra_buffer=True, page_size=page)
    driver = LateDriver(cache, chunk=256)
    for salt in (1, 2, 3):
        driver.finish(driver.start(sharing(1000, 90, salt)), [7])
        driver.catch_up()
        check_states(cache)
    assert len(cache.view.checkpoints) > 6
    assert match_length(cache, sharing(1000, 90, 4)) == 1000 // page * page


def test_without_tracking_slots_such_a_driver_would_be_noticed():
    """The control of the reports above: ``no_buffer`` copies, and is refused with overlap."""
    cache = saving_cache({"min_gain_tokens": 1, "prompt_end": "always"}, slots=40)
    driver = LateDriver(cache, chunk=256)
    driver.start(unique(1000, 1))
    with pytest.raises(AssertionError):
        check_states(cache)


@STRATEGIES
def test_a_hit_is_as_deep_as_a_state_and_no_deeper(options):
    """vllm #43090: attention layers hit 2,000 tokens, state layers none or fewer; one number
    for both made the state layers go on from a state that was not there.
    """
    cache = saving_cache({"min_gain_tokens": 1}, slots=40, **options)
    driver, page = SavingDriver(cache, chunk=512), cache.page_size
    driver.serve(unique(2000, 1), [7])
    live = sorted(checkpoint.depth for checkpoint in cache.view.checkpoints.values())
    assert live[:3] == [512, 1024, 1536]
    while True:
        deepest = max(live, default=0)
        req = driver.wait([*unique(2000, 1), 8, 9])
        assert req.hybrid_wanted or deepest == 2000 // page * page
        assert req.prefix_len == deepest
        assert len(cache.prefix_device_indices(req) if deepest else ()) == deepest
        assert req.kv.holds_mamba == (req.kv.mamba_cow_src_index is not None) == (deepest > 0)
        driver.take_in(req)
        assert req.kv.mamba_needs_clear == (deepest == 0)
        driver.forward(req, 2002)  # compares the copied state with the tokens it stands for
        driver.abort(req)
        if not live:
            break
        node = next(k for k, c in cache.view.checkpoints.items() if c.depth == deepest)
        others = [k for k in cache.view.checkpoints if k != node]
        locks = [cache.lock(other) for other in others]
        cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        for lock in locks:
            cache.unlock(lock)
        live = sorted(checkpoint.depth for checkpoint in cache.view.checkpoints.values())
        assert deepest not in live
    assert cache.full_evictable_size() >= 2000 // page * page


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_a_state_inside_a_prefill_is_kept_in_the_type_of_the_pool(state_dtype):
    """sglang #34820: the state at the last chunk of a prefill was kept in the activations'
    type, bfloat16, whatever ``--mamba-ssm-dtype`` said, so that a hit went on from another
    state than a miss. Of Mamba-2 layers; where delta rules round says docs/exact-checkpoints.md.
    """
    random = torch.Generator().manual_seed(3)

    def rand(*shape):
        return torch.randn(*shape, generator=random).to(torch.bfloat16)

    x, dt, b, c = rand(1, 200, 2, 8), rand(1, 200, 2), rand(1, 200, 1, 16), rand(1, 200, 1, 16)
    decay, inside = -torch.rand(2, generator=random), [64, 117, 192]
    options = {"dt_softplus": True, "state_dtype": state_dtype, "return_track_states": True}
    _, _, saved = mamba_chunk_scan_combined(
        *(x, dt, decay, b, c, 64),
        track_seq_idx=torch.zeros(3, dtype=torch.int64),
        track_end_locs=torch.tensor(inside),
        **options,
    )
    for state, end in zip(saved[0], inside, strict=True):
        parts = (x[:, :end], dt[:, :end], decay, b[:, :end], c[:, :end])
        _, of_a_miss, _ = mamba_chunk_scan_combined(
            *parts, 64, **{**options, "state_dtype": torch.float32}
        )
        apart = (state.float() - of_a_miss[0]).norm() / of_a_miss.norm()
        if state_dtype == torch.float32:
            assert apart < 1e-6
        else:  # the control: rounding is seen
            assert 1e-4 < apart < 2**-8
