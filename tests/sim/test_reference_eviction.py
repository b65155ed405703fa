"""What goes, and in what order, by hand. A leaf of n own tokens frees n + 10 bytes."""

import math

import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.sim.admission import Admission
from sglang_hybrid.sim.policy_spec import PolicySpec

from .scenarios import MARCONI, letters, run

PROMPT_ENDS = Admission(decode_end=1, prompt_end=1, first_victims=True)


def test_a_leaf_frees_its_kv_up_to_a_fork(replay):
    # `abcdef` and `abXYZ` fork at 2, where no state is. 16 + 13 bytes, `qr` asks for 12.
    out = run(replay, "abcd|ef", "abXY|Z", "q|r", budget=30)
    assert out.victims == [(2, 6, True)]
    assert (out.kv_tokens, out.kv_tokens_evicted, out.states) == (7, 4, [2, 5])
    # The fork is none any more: the other leaf now frees all 5 tokens.
    out = run(replay, "abcd|ef", "abXY|Z", "q|r", "s|t", budget=30)
    assert out.victims == [(2, 6, True), (3, 5, True)]
    assert (out.kv_tokens, out.kv_tokens_evicted, out.states) == (4, 9, [2, 2])


@pytest.mark.parametrize("width", [0.0, 0.25])
def test_an_interior_state_frees_no_kv(replay, width):
    # States at 2 and 4 of `abcd`, 24 bytes; `xy` asks for 12 of 27. At equal `last` the
    # smaller depth goes first.
    policy = PolicySpec("lru", bucket_width=width)
    prompt_too = Admission(decode_end=1, prompt_end=1)
    out = run(replay, "ab|cd", "xy|", admission=prompt_too, budget=27, policy=policy)
    assert out.victims == [(1, 2, False)]
    assert (out.kv_tokens, out.states) == (6, [2, 4])
    # 3 bytes less: freeing the state is not enough, the leaf goes with its 4 tokens.
    out = run(replay, "ab|cd", "xy|", admission=prompt_too, budget=24, policy=policy)
    assert out.victims == [(1, 2, False), (1, 4, True)]
    assert (out.kv_tokens, out.states) == (2, [2])


def test_a_leaf_is_worth_what_it_frees_up_to_the_fork(replay):
    # By 1/freed: two leaves at 21, forked at 20, free 1 + 10 bytes each; the other 8 + 10.
    policy = PolicySpec("gdsf", cost="one")
    texts = [letters("A", 20) + "1|", letters("A", 20) + "2|", letters("a", 8) + "|", "p|q"]
    out = run(replay, *texts, policy=policy, budget=31 + 11 + 18)
    assert out.victims == [(3, 8, True)]


def test_leaves_only(replay):
    policy = PolicySpec("lru", candidates="leaf")
    both = Admission(decode_end=1, prompt_end=1)
    out = run(replay, "ab|cd", "xy|", policy=policy, admission=both, budget=27)
    assert out.victims == [(1, 4, True)]
    assert (out.kv_tokens, out.states) == (4, [2, 2])  # freed up to the state at 2


@pytest.mark.parametrize(
    "candidates, victim", [("single_child", (4, 4, True)), ("any", (4, 2, False))]
)
def test_states_where_children_leave(replay, candidates, victim):
    # Last uses: 2 for the state at 2 (X and c follow) and for `abcd`; 3 for the two of
    # `abXYwv`. 8 + 40 bytes are used, `pq` asks for 12 of 59.
    texts = ["a|b", "abX|Y", "abc|d", "abXYw|v", "p|q"]
    out = run(replay, *texts, policy=PolicySpec("lru", candidates=candidates), budget=59)
    assert out.hits == [0, 2, 2, 4, 0]
    assert out.victims == [victim]


def test_first_victims_go_first_and_then_new_ones_must_beat(replay):
    # `abcd|ef`: 6 + 10 bytes, and 10 for the prompt's end if there is room.
    assert run(replay, "abcd|ef", admission=PROMPT_ENDS, budget=26).states == [4, 6]
    assert run(replay, "abcd|ef", admission=PROMPT_ENDS, budget=25).states == [6]
    texts = ["abcd|ef", "xyzt|uv"]
    # Of 32 bytes 26 are used; the second asks for 16: the first victim goes, 32 are used.
    # Its own prompt end would push out the leaf at 6: in LRU order a new state always does,
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=32)
    assert out.victims == [(1, 4, False), (1, 6, True)]
    assert (out.states, out.kv_tokens) == ([4, 6], 6)
    # under other policies never,
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=32, policy=PolicySpec("gdsf"))
    assert out.victims == [(1, 4, False)]
    assert out.states == [6, 6]
    # and by utility where it is worth more: 0.5 ln(4/14) against 0.5 ln(6/16) - ln 2.
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=32, policy=PolicySpec("utility"))
    assert out.victims == [(1, 4, False), (1, 6, True)]
    # Of a 20-token leaf it is 4 ln(20/30) - ln 2 = -2.3 against 4 ln(4/14) = -5.0.
    long = [letters("A", 12) + "|" + letters("a", 8), "0123|45"]
    policy = PolicySpec("utility", alpha=4.0)
    out = run(replay, *long, admission=PROMPT_ENDS, budget=46, policy=policy)
    assert (out.victims, out.states) == ([(1, 12, False)], [6, 20])


def test_a_used_kind_of_first_victims_is_one_no_longer(replay):
    # r1 hits the prompt end of r0, so that those of r1 and r2 are ordinary: in r3 the
    # oldest state (depth 6 of r0) goes, and not the prompt end of r2.
    texts = ["abcd|ef", "abcdX|Y", "ghij|kl", "r|s"]
    # Bytes: 6 + 20, + 2 + 20, + 6 + 20 = 74; r3 asks for 12 and would like 10 more.
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=74)
    assert out.hits == [0, 4, 0, 0]
    # r3: (last 0, depth 6) frees 12 bytes; for its prompt end (1, 4): it has one child now.
    assert out.victims == [(3, 6, True), (3, 4, False)]


def test_first_victims_that_are_wanted_become_ordinary(replay):
    # r1 decodes nothing and ends where r0's prompt did: that state is a decode end now.
    texts = ["abcd|ef", "abcd|", "xy|z"]
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=26 + 12)
    # r2 asks for 13; no first victims are left; the oldest is r0's leaf, 12 bytes.
    assert out.victims[0] == (2, 6, True)


def test_a_first_victim_that_is_consumed_is_one_no_longer(replay):
    # r1 consumes the prompt end at 4 of `abcdef` and makes a state at 5: 36 bytes. r2 asks
    # for 12 of 37: the leaf at 6 (11 bytes, last 0) goes. For r2's own prompt end (not
    # asked for) the next oldest, 4, goes.
    out = run(replay, "abcd|ef", "abcde|", "x|y", admission=PROMPT_ENDS, budget=37)
    assert out.hits == [0, 4, 0]
    assert out.victims == [(2, 6, True), (2, 4, False)]


def test_a_first_victim_takes_the_kind_that_is_wanted(replay):
    # 4 of `abcdef` is a decode end from r1 on, so that r2's hit proves nothing of prompt
    # ends: that of r3 is a first victim. 62 bytes are used, r4 asks for 12 of 65, and would
    # have 10 more, for which the oldest goes.
    texts = ["abcd|ef", "abcd|", "abcde|", "mnop|qr", "x|y"]
    out = run(replay, *texts, admission=PROMPT_ENDS, budget=65)
    assert out.hits == [0, 0, 4, 0, 0]
    assert out.victims == [(4, 4, False), (4, 6, True)]


def test_ties_go_to_the_less_recently_used(replay):
    # Equal losses 1 / 13; 26 bytes used of 30.
    policy = PolicySpec("gdsf", cost="one")
    out = run(replay, "ab|c", "de|f", "gh|i", "defX|", policy=policy, budget=30)
    assert (out.victims[0], out.hits) == ((2, 3, True), [0, 0, 0, 3])


def test_gdsf_ages_by_the_loss_of_its_last_victim(replay):
    policy = PolicySpec("gdsf", cost="one")
    # 14 + 13 bytes; the 9-token leaf asks for 19 of 32: 1/14 goes. It starts at
    # 1/14 + 1/19 = 0.124, above the 1/13 = 0.077 of `efg`, which goes next.
    out = run(replay, "abc|d", "ef|g", "hijk|lmnop", "r|s", policy=policy, budget=32)
    assert out.victims == [(2, 4, True), (3, 3, True)]


def test_gdsf_counts_hits_and_flops(replay):
    # F(3)/13 = 0.23 < F(6)/16; but with the hit of r2 (state at 3 interior: saved 3,
    # freed 10) it is 2 * 3 / 10 = 0.6, and the leaf at 6 (0.375) goes.
    texts = ["ab|c", "pqrst|u", "abcd|", "x|y"]
    out = run(replay, *texts, policy=PolicySpec("gdsf"), budget=13 + 16 + 11 + 2)
    # The leaf `d`, 1/11 = 0.09, is the lowest of all.
    assert out.victims == [(3, 4, True)]
    out = run(replay, *texts, "z|w", policy=PolicySpec("gdsf"), budget=13 + 16 + 11 + 2)
    # Now 0.46 (2 * 3 / 13, a leaf again) against 0.375, and 1/11 + 2/12 = 0.26 of `xy`.
    assert out.victims == [(3, 4, True), (4, 2, True)]


def test_seglen_weighs_length_and_recency(replay):
    texts = [letters("a", 8) + "|", "xy|z", "p|q"]  # 18 + 13 bytes, 12 more
    for weight, depth in (0.85, 3), (0.0, 8):
        out = run(replay, *texts, policy=PolicySpec("seglen", weight=weight), budget=31)
        assert out.victims == [(2, depth, True)]


def test_tlru_spares_long_recomputations(replay):
    policy = PolicySpec("tlru", threshold=4)
    texts = ["abcdefgh|", "xy|z", "p|q"]
    assert run(replay, *texts, policy=policy, budget=31).victims == [(2, 3, True)]
    lru = PolicySpec("tlru", threshold=8)
    assert run(replay, *texts, policy=lru, budget=31).victims == [(2, 8, True)]
    # A longer sequence seen through it counts, though it was rejected (3 used, 40 bytes).
    texts = ["ab|c", "abc" + letters("A", 20) + "|", "xy|z", "p|q"]
    out = run(replay, *texts, policy=policy, budget=30)
    assert out.rejected == [False, True, False, False]
    assert out.victims == [(3, 3, True)]
    assert out.states == [2, 3]


@pytest.mark.parametrize("width, depth", [(0.0, 3), (2.0, 30)])
def test_only_the_oldest_of_a_bucket_is_compared(replay, width, depth):
    # ln(30/40) - ln 2 = -0.98, ln(3/13) - ln 1 = -1.47: the second is worth less; both
    # weights, -0.29 and -1.47, lie in the bucket [-2, 0).
    policy = PolicySpec("utility", alpha=1.0, bucket_width=width)
    out = run(replay, letters("A", 30) + "|", "xyz|", "p|q", policy=policy, budget=53)
    assert out.victims == [(2, depth, True)]


def test_superseded_ends_are_worth_a_tenth(replay):
    # At r3: 20 (hit once by r1) ln(20/10) + 0.35 - ln 2 = 0.35, less 2.30 as superseded;
    # 40 ln(20/30) - ln 2 = -1.10; `xyz` ln(3/13) = -1.47.
    policy = PolicySpec("utility", alpha=1.0, bucket_width=0.0)
    texts = [letters("A", 20) + "|", letters("A", 20) + letters("a", 20) + "|", "xy|z", "p|q"]
    out = run(replay, *texts, policy=policy, budget=75)  # 73 are used, 12 asked for
    assert out.victims == [(3, 20, False)]
    # A branch point is never superseded: here `xyz` goes, and what else is needed.
    texts = [letters("A", 20) + end for end in ("1|", "2|")] + [texts[1], *texts[2:]]
    out = run(replay, *texts, policy=policy, admission=MARCONI, budget=42 + 20 + 30 + 13)
    assert out.hits == [0, 0, 20, 0, 0]
    assert (4, 20, False) not in out.victims


def test_pools_of_slots_and_tokens(replay):
    # A running request works on a slot of its own. What loses its state keeps its KV.
    out = run(replay, "ab|c", "de|f", "gh|i", pools=(2, 100))
    assert (out.victims, out.states, out.kv_tokens) == ([(2, 3, True)], [3, 3], 9)
    out = run(replay, "ab|c", "de|f", "gh|ij", pools=(10, 8))
    assert (out.victims, out.states, out.kv_tokens) == ([(2, 3, True)], [3, 4], 7)
    out = run(replay, "abcd|e", "ab|c", pools=(10, 4))
    assert out.rejected == [True, False]
    # Slots first: an interior state, which gives no tokens; then leaves.
    both = Admission(decode_end=1, prompt_end=1)
    out = run(replay, "ab|cd", "xy|z", admission=both, pools=(3, 6))
    assert out.victims == [(1, 2, False), (1, 4, True)]
    # A hit takes a second slot: for the state itself while the request gets its copy.
    out = run(replay, "ab|c", "abcd|e", pools=(1, 100))
    assert (out.hits, out.rejected, out.states) == ([0, 3], [False, True], [3])
    assert run(replay, "ab|c", "abcd|e", pools=(2, 100)).states == [3, 5]


def test_kv_without_a_state_is_evidence_until_its_pool_needs_the_room(replay):
    texts = ["ab|c", "de|f", "gh|i", "jk|l"]
    # The states of r0 and r1 went for slots; of their KV the older goes for r3's output.
    out = run(replay, *texts, pools=(2, 11))
    assert out.victims == [(2, 3, True), (3, 3, True)]
    assert (out.kv_tokens, out.kv_tokens_evicted) == (9, 3)
    # It tells where a later prompt leaves it, whose state the one after that hits.
    branches = Admission(branch=1, decode_end=1)
    shared = letters("A", 9)
    texts = [shared + "x|y", "de|f", "gh|i", shared + "z|w", shared + "v|u"]
    out = run(replay, *texts, admission=branches, pools=(3, 100))
    assert out.matched == [0, 0, 0, 9, 9] and out.hits == [0, 0, 0, 0, 9]
    out = run(replay, *texts, admission=branches, pools=(3, 16))
    assert out.matched == [0, 0, 0, 0, 9] and out.hits == [0, 0, 0, 0, 0]


def test_evidence_is_no_child(replay):
    # Of three that share 9 tokens the last has a branch state above it, with one live child
    # once the others' own states went: it is no fork, and goes by its age like any other.
    admission = Admission(branch=1, decode_end=1)
    shared = letters("A", 9)
    texts = [shared + end for end in ("x|y", "z|w", "v|u")] + ["ab|c", "de|f", "gh|i"]
    out = run(replay, *texts, admission=admission, pools=(5, 100))
    assert out.victims == [(4, 11, True), (5, 11, True)]
    out = run(replay, *texts, "jk|l", admission=admission, pools=(5, 100))
    assert out.victims[2:] == [(6, 9, False)]


def test_a_request_may_push_out_the_states_it_made(replay):
    # Three chunk ends and a prompt end, with two slots beside the one it works on: first
    # victims go in the order of what they save.
    admission = Admission(chunk_tokens=4, prompt_end=1, decode_end=1, first_victims=True)
    out = run(replay, letters("A", 16) + "|b", admission=admission, pools=(3, 100))
    assert len(out.victims) == 2 and out.states[-1] == 17 and len(out.states) == 3


@pytest.mark.parametrize("kv_lru, depth", [(False, 5), (True, 3)])
def test_kv_of_pools_by_the_last_passing(replay, kv_lru, depth):
    # By 1/freed `defgh` (15 bytes) goes before `abc` (13), which is older.
    policy = PolicySpec("gdsf", cost="one", kv_lru=kv_lru)
    out = run(replay, "ab|c", "defg|h", "i|j", policy=policy, pools=(10, 9))
    assert out.victims == [(2, depth, True)]


def test_costs_with_attention_count_the_square(replay):
    # F(L) = L + L^2: F(4) - F(2) = 14 over 12 bytes beats F(3) / 13 = 12/13.
    costs = ModelCosts(1.0, 10.0, 1.0, 1.0)
    policy = PolicySpec("utility", alpha=1.0, bucket_width=0.0)
    # r1 continues r0 (state at 2 is consumed, interior); ages are 2 and 1 at r3. Of 48
    # bytes 37 are used, and 12 asked for; without the first one, nothing more has to go.
    out = run(replay, "a|b", "abc|d", "xy|z", "p|q", policy=policy, costs=costs, budget=48)
    weights = {
        "2": math.log(6 / 10) + 0.5 * math.log(2) + math.log(0.1) - math.log(2),
        "abcd": math.log(14 / 12) - math.log(2),
        "xyz": math.log(12 / 13) - math.log(1),
    }
    assert min(weights, key=weights.get) == "2"
    assert out.victims == [(3, 2, False)]
    # At clock 4 `abcd` saves F(4) = 20 over 14 bytes, not 14 over 12 (-0.94) any more.
    out = run(replay, "a|b", "abc|d", "xy|z", "p|q", "r|s", policy=policy, costs=costs, budget=48)
    later = [math.log(20 / 14) - math.log(3), math.log(12 / 13) - math.log(2)]
    assert later[1] < later[0] < math.log(6 / 12)  # `pq`, of age 1
    assert out.victims == [(3, 2, False), (4, 3, True)]
