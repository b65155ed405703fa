"""One request after another: matching, admission, space, insertion, by hand."""

import pytest

from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.policy_spec import PolicySpec

from .scenarios import ENDS, LRU, MARCONI, run


def test_a_shared_prefix_hits_from_its_third_occurrence(replay):
    out = run(replay, "abcdefgh1|x", "abcdefgh2|y", "abcdefgh3|z", admission=MARCONI)
    assert out.matched == [0, 8, 8]
    assert out.hits == [0, 0, 8]  # the second one leaves a state where it branched off
    assert out.states == [8, 10, 10, 10]
    assert out.kv_tokens == 8 + 3 * 2
    assert out.used_bytes == 14 + 4 * 10
    assert (out.states_made, out.states_used) == (4, 1)
    assert (out.kv_tokens_inserted, out.kv_tokens_used) == (14, 8)


def test_a_conversation_hits_its_decode_end(replay):
    out = run(replay, "abc|de", "abcdef|g")
    assert (out.hits, out.states) == ([0, 5], [5, 7])


def test_a_state_at_the_end_of_the_prompt_is_out_of_reach(replay):
    # One token at least has to run; branch_full leaves a state just before it.
    texts = ["abc|de", "abcde|x", "abcde|y"]
    assert run(replay, *texts, admission=MARCONI).hits == [0, 0, 0]
    full = Admission(branch=1, branch_full=True, decode_end=1)
    out = run(replay, *texts, admission=full)
    assert (out.matched, out.hits) == ([0, 5, 5], [0, 0, 4])
    assert out.states == [4, 5, 6, 6]


def test_a_branch_point_must_gain_enough(replay):
    texts = ["abc1|x", "abc2|y", "abc3|z"]
    for gain, hits in (3, [0, 0, 3]), (4, [0, 0, 0]):
        admission = Admission(branch=1, decode_end=1, min_gain_tokens=gain)
        assert run(replay, *texts, admission=admission).hits == hits


def test_branch_points_on_a_grid(replay):
    admission = Admission(branch=4, decode_end=1)
    out = run(replay, "abcdef1|x", "abcdef2|y", "abcdef3|z", admission=admission)
    assert out.hits == [0, 0, 4]  # 6, rounded down


def test_decode_ends_on_a_grid_lie_in_the_output_or_nowhere(replay):
    grid = Admission(decode_end=4)
    out = run(replay, "abc|defg", admission=grid)  # 7 tokens, state at 4, tip of 3 freed
    assert (out.states, out.kv_tokens) == ([4], 4)
    assert (out.kv_tokens_inserted, out.kv_tokens_evicted) == (7, 3)
    out = run(replay, "abcde|fg", admission=grid)  # 4 lies in the prompt: no state, no KV
    assert (out.states, out.kv_tokens, out.kv_tokens_evicted) == ([], 0, 7)


def test_truncated_sequences_enter_up_to_their_last_state(replay):
    out = run(replay, "abc|defg", admission=Admission(decode_end=4, truncate=True))
    assert (out.states, out.kv_tokens, out.kv_tokens_inserted) == ([4], 4, 4)
    out = run(replay, "abcde|fg", admission=Admission(decode_end=4, truncate=True))
    assert (out.states, out.kv_tokens, out.kv_tokens_inserted) == ([], 0, 0)


def test_prompt_ends(replay):
    out = run(replay, "abcde|fg", "abcdeX|y", admission=Admission(prompt_end=1))
    assert (out.hits, out.states) == ([0, 5], [5, 6])
    assert run(replay, "abcde|fg", admission=Admission(prompt_end=4)).states == [4]


def test_blocks(replay):
    out = run(replay, "abcde|fgh", "abcdef|g", admission=Admission(block_tokens=2))
    assert out.hits == [0, 4]  # 6 is the end of the second prompt
    assert out.states == [2, 4, 6, 8]


def test_end_of_the_system_message(replay):
    system = Admission(decode_end=1, system_end=True)
    texts = ["abcdX|y", "abcdZ|y"]
    out = run(replay, *texts, admission=system, system_len=4)
    assert (out.hits, out.states) == ([0, 4], [4, 6, 6])
    assert run(replay, *texts, admission=system).hits == [0, 0]  # the trace does not tell
    far = Admission(decode_end=1, system_end=True, min_gain_tokens=5)
    assert run(replay, *texts, admission=far, system_len=4).hits == [0, 0]


def test_ghost_forks_need_no_resident_tokens(replay):
    ghost = Admission(decode_end=1, ghost_forks=1)
    texts = ["abcdefgh1|x", "abcdefgh2|y", "abcdefgh3|z", "abcdefgh4|w"]
    # The first two make the fork at 8, the third takes a state there.
    assert run(replay, *texts, admission=ghost).hits == [0, 0, 0, 8]
    own = Admission(decode_end=1, ghost_forks=1, ghost_self=True)
    assert run(replay, *texts, admission=own).hits == [0, 0, 8, 8]
    # 30 bytes: each sequence (10 tokens, a state) pushes out the one before; the fourth
    # needs 10 + 2 * 10 bytes, the fifth then finds the state at 8.
    out = run(replay, *texts[:2], "qrstuvwx|yz", *texts[2:], admission=ghost, budget=30)
    assert out.matched == [0, 8, 0, 0, 8]
    assert out.hits == [0, 0, 0, 0, 8]
    assert out.victims == [(1, 10, True), (2, 10, True), (3, 10, True), (4, 10, True)]


def test_ghost_forks_must_gain_enough(replay):
    texts = ["abcdefgh1|x", "abcdefgh2|y", "abcdefgh3|z", "abcdefgh4|w"]
    for gain, hit in (8, 8), (9, 0):
        ghost = Admission(decode_end=1, ghost_forks=1, min_gain_tokens=gain)
        assert run(replay, *texts, admission=ghost).hits == [0, 0, 0, hit]


@pytest.mark.parametrize("count, states", [(1, [4]), (2, [2, 4])])
def test_the_deepest_ghost_forks_come_first(replay, count, states):
    # Seen before the last request: x and c after `ab`, x and y after `abcd`. No fork lay
    # inside an earlier prompt.
    texts = ["abx|1", "ab|cdx", "a|bcdy", "abcdz|1"]
    out = run(replay, *texts, admission=Admission(decode_end=1, ghost_forks=count))
    assert out.states == sorted([4, 5, 5, 6, *states])


@pytest.mark.parametrize(
    "admission, states",
    [
        (Admission(chunk_tokens=5), [5, 10]),  # none for the last chunk [10, 13)
        (Admission(chunk_tokens=5, prompt_end=1), [5, 10, 13]),
        (Admission(chunk_tokens=5, prompt_end=2), [4, 9, 12]),  # 0 + 4, 5 + 4, 10 + 2
        (Admission(chunk_tokens=5, prompt_end=4), [4, 9]),  # 0 + 4, 5 + 4; 10 + 0 is no new one
    ],
)
def test_ends_of_prefill_chunks(replay, admission, states):
    out = run(replay, "abcdefghijklm|n", admission=admission)
    assert out.states == states
    assert out.kv_tokens == states[-1]


@pytest.mark.parametrize("instead", [False, True])
def test_a_branch_point_replaces_the_state_of_its_chunk(replay, instead):
    admission = Admission(branch=1, chunk_tokens=5, chunk_or_branch=instead)
    # The second prompt leaves at 7, resumes at 5; its chunks are [5, 10) and [10, 13).
    out = run(replay, "abcdefghijklm|", "abcdefgHIJKLM|", admission=admission)
    assert (out.matched, out.hits) == ([0, 7], [0, 5])
    assert out.states == ([5, 7, 10] if instead else [5, 7, 10, 10])


def test_a_branch_point_at_the_end_of_a_chunk_belongs_to_it(replay):
    # r1 resumes at 2, leaves at 7: its chunks are [2, 7), which would end at 6, and [7, 10).
    admission = Admission(
        branch=1, decode_end=1, prompt_end=2, chunk_tokens=5, chunk_or_branch=True
    )
    out = run(replay, "abc|defghijklm", "abcdefgXYZ|", admission=admission)
    assert out.hits == [0, 2]
    assert out.states == [2, 7, 9, 10, 13]


def test_a_request_that_does_not_fit_is_rejected(replay):
    # 8 + 10 bytes do not fit 15, 3 + 10 do.
    out = run(replay, "abcdef|gh", "ab|c", "abcX|y", budget=15)
    assert out.rejected == [True, False, True]  # the third would need 2 + 10 beside 13
    assert out.hits == [0, 0, 3]
    assert (out.states, out.used_bytes, out.victims) == ([3], 13, [])


def test_a_wanted_state_that_exists_is_renewed(replay):
    # r2 wants the state at 3 again, so r3 (13 + 12 + 12 bytes) pushes out r1, not r0.
    out = run(replay, "ab|c", "x|y", "abc|", "p|q", "abcd|", budget=36)
    assert out.victims[0] == (3, 2, True)
    assert out.hits == [0, 0, 0, 0, 3]
    assert out.states_made == 4


@pytest.mark.parametrize("refresh, victim", [("consumed", (4, 2, False)), ("path", (4, 2, True))])
def test_a_hit_refreshes_its_state_or_its_path(replay, refresh, victim):
    # `abcdef` holds states at 2 (used at 1), 4 (used at 3) and 6; `xy` was made at 2.
    # Bytes: 6 + 30 + 2 + 10 = 48, of 50; the last request asks for 12.
    policy = PolicySpec("lru", refresh=refresh)
    texts = ["a|b", "abc|d", "x|y", "abcde|f", "p|q"]
    out = run(replay, *texts, policy=policy, budget=50)
    assert out.hits == [0, 2, 0, 4, 0]
    assert out.victims[0] == victim


@pytest.mark.parametrize("refresh, victim", [("consumed", (3, 3, False)), ("path", (3, 2, True))])
def test_a_state_at_the_end_of_the_prompt_lies_on_its_path(replay, refresh, victim):
    # r2 matches `abc` whole, out of reach; 36 bytes are used, 12 asked for.
    policy = PolicySpec("lru", refresh=refresh)
    out = run(replay, "ab|c", "x|y", "abc|z", "p|q", policy=policy, budget=38)
    assert (out.hits, out.victims) == ([0] * 4, [victim])


def test_the_cap_on_a_path_drops_its_shallowest_state(replay):
    cap = Admission(decode_end=1, max_states_per_path=2)
    out = run(replay, "a|b", "abc|d", "abcde|f", admission=cap)
    assert out.victims == [(2, 2, False)]
    assert (out.states, out.kv_tokens) == ([4, 6], 6)
    # A state where two children leave stays, the next one goes.
    out = run(replay, "a|b", "abX|Y", "abc|d", "abcde|f", admission=cap)
    assert out.victims == [(3, 4, False)]
    assert out.states == [2, 4, 6]
    # States below the newest one do not count.
    one = Admission(decode_end=1, prompt_end=1, max_states_per_path=1)
    out = run(replay, "abcdefg|h", "abcd|efgh", admission=one)
    assert (out.victims, out.states) == ([(0, 7, False)], [4, 8])


def test_sequences_of_several_tokens_per_symbol(replay):
    from sglang_hybrid.sim.trace import TraceBuilder

    from .scenarios import COSTS

    builder = TraceBuilder("blocks", tokens_per_symbol=4)
    builder.add([1, 2], 5, 1)  # 6 tokens: the second symbol is partial
    builder.add([1, 2, 3], 9, 1)
    builder.add([1, 9], 8, 0)
    out = replay(builder.build(), COSTS, LRU, ENDS, None)
    assert (out.matched, out.hits) == ([0, 6, 4], [0, 6, 0])
    assert out.states == [6, 8, 10]
    assert out.kv_tokens == 10 + 4


def test_ttft_of_a_serial_replay_is_the_prefill(replay):
    out = run(replay, "abc|de", "abcdef|g", prefill_seconds=lambda n, hit: 2.0 * (n - hit))
    assert out.ttft == [6.0, 2.0]
