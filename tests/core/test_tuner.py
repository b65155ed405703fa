"""Which arm comes into force, and when."""

import pytest

from sglang_hybrid.core.decider import Decider
from sglang_hybrid.core.tuner import Bootstrap

LRU, UTILITY, DENSITY = range(3)
NAMES = ["lru", "utility", "density"]


def decider(in_force=UTILITY, **options):
    return Decider(NAMES, in_force, LRU, **options)


def chosen(choice):
    return choice and (choice.arm, choice.reason)


def test_an_arm_that_saves_more_comes_into_force():
    tuner = decider()
    choice = tuner.update([5, 10, 20])
    assert chosen(choice) == (DENSITY, "better")
    assert (choice.previous, tuner.in_force) == (UTILITY, DENSITY)
    assert choice.text == "utility -> density: saves more lately, 20 against 10"


def test_the_margin_must_be_exceeded():
    assert decider().update([0, 100, 102]) is None
    assert chosen(decider().update([0, 100, 102.1])) == (DENSITY, "better")
    assert chosen(decider(margin=0).update([0, 100, 100.5])) == (DENSITY, "better")


def test_nothing_happens_while_nobody_saves():
    tuner = decider()
    assert [tuner.update([0, 0, 0]) for _ in range(5)] == [None] * 5


def test_savings_fade():
    tuner = decider(decay=0.5)
    tuner.update([0, 100, 0])
    assert tuner.update([0, 0, 40]) is None  # 50 against 40
    assert chosen(tuner.update([0, 0, 40])) == (DENSITY, "better")  # 25 against 60
    assert tuner.scores == (0, 25, 60)


def test_equal_arms_leave_the_one_in_force():
    assert decider(DENSITY).update([7, 7, 7]) is None


def test_of_equal_better_arms_lru_wins_then_the_lowest_index():
    assert decider(UTILITY).update([9, 1, 9]).arm == LRU
    assert Decider(["a", "b", "lru", "c"], 3, 2).update([9, 9, 5, 1]).arm == 0


def test_an_arm_below_lru_for_two_windows_falls_back_to_lru():
    tuner = decider()
    tuner.update([0, 1000, 0])
    assert tuner.update([10, 5, 0]) is None
    choice = tuner.update([10, 5, 0])
    assert chosen(choice) == (LRU, "guard")
    assert choice.text == (
        "utility -> lru: saved less in 2 windows running, 5 against 10 in the last"
    )


def test_without_an_arm_to_fall_back_to_there_is_no_guard():
    tuner = Decider(NAMES, UTILITY, None)
    tuner.update([0, 1000, 0])
    assert [tuner.update([10, 5, 0]) for _ in range(5)] == [None] * 5


def test_windows_below_lru_must_be_consecutive():
    tuner = decider()
    tuner.update([0, 1000, 0])
    windows = [[10, 5, 0], [10, 10, 0], [10, 5, 0], [10, 9.9, 0], [10, 5, 0], [10, 5, 0]]
    assert [chosen(tuner.update(saved)) for saved in windows] == [None] * 5 + [(LRU, "guard")]


def test_the_guard_is_silent_while_lru_saves_nothing():
    tuner = decider()
    tuner.update([0, 10, 0])
    assert [tuner.update([0, 0, 0]) for _ in range(4)] == [None] * 4


def test_what_an_arm_saved_before_the_guard_does_not_bring_it_back():
    tuner = decider()
    tuner.update([0, 1000, 0])
    for _ in range(2):
        tuner.update([10, 5, 0])
    assert tuner.in_force == LRU
    assert tuner.update([10, 5, 0]) is None
    assert chosen(tuner.update([10, 30, 0])) == (UTILITY, "better")  # it may earn its place


def test_what_another_arm_saved_before_the_guard_does_not_put_it_in_force():
    """If it is below LRU now, too; one that is not may be better at once."""
    tuner = decider()
    tuner.update([0, 1000, 990])
    choices = [chosen(tuner.update([10, 5, 5])) for _ in range(5)]
    assert choices == [None, (LRU, "guard"), None, None, None]
    tuner = decider()
    tuner.update([0, 1000, 990])
    choices = [chosen(tuner.update([10, 5, 10])) for _ in range(3)]
    assert choices == [None, (LRU, "guard"), (DENSITY, "better")]


def test_an_arm_put_in_force_from_outside_is_judged_from_then_on():
    tuner = decider()
    tuner.update([0, 1000, 1000])
    tuner.update([10, 5, 5])
    tuner.in_force = DENSITY
    assert tuner.update([10, 5, 5]) is None  # its first window below LRU
    assert chosen(tuner.update([10, 5, 5])) == (LRU, "guard")


def test_reset_forgets_savings_and_keeps_the_arm():
    tuner = decider()
    tuner.update([0, 1000, 0])
    tuner.update([10, 5, 0])
    tuner.reset()
    assert (tuner.scores, tuner.in_force) == ((0, 0, 0), UTILITY)
    assert tuner.update([10, 10, 0]) is None


def test_same_calls_same_choices():
    windows = [[(i * 7919 * (arm + 1)) % 101 for arm in range(3)] for i in range(200)]
    one, other = decider(), decider()
    choices = [one.update(saved) for saved in windows]
    assert choices == [other.update(saved) for saved in windows]
    assert sum(choice is not None for choice in choices) > 5


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([1, 2], "2 arms; 3 are needed"),
        ([1, float("nan"), 2], "'utility' saved nan"),
        ([1, 2, -1], "'density' saved -1"),
    ],
)
def test_wrong_savings_are_refused_and_change_nothing(saved, message):
    tuner = decider()
    with pytest.raises(ValueError, match=message):
        tuner.update(saved)
    assert tuner.scores == (0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((NAMES, 3, 0), {}, "in_force = 3 .* 0 to 2"),
        ((NAMES, 0, -1), {}, "lru = -1 .* 0 to 2"),
        (([], 0, 0), {}, "one or more different names"),
        ((["a", "a"], 0, 0), {}, "one or more different names"),
        ((NAMES, 0, 0), {"margin": -0.1}, "margin = -0.1"),
        ((NAMES, 0, 0), {"decay": 1.5}, "decay = 1.5 .* 0 to 1"),
        ((NAMES, 0, 0), {"guard_windows": 0}, "guard_windows = 0"),
    ],
)
def test_wrong_parameters_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Decider(*arguments, **options)


def test_bootstrap_searches_once_when_its_window_is_full():
    tuner = Bootstrap(["0", "1", "2"], factor=5)
    calls = [(50, None), (110, 100), (499, 100), (500, 100), (600, 100)]
    assert [tuner.observe(*call) for call in calls] == [False, False, False, True, False]
    choice = tuner.update([3, 5, 5])
    assert chosen(choice) == (1, "tuned")  # of equals the smaller alpha
    assert choice.text == "0 -> 1: saves most in the bootstrap window, 5 against 3"
    assert tuner.is_done
    assert not tuner.observe(10_000, 100)


def test_bootstrap_with_an_eviction_at_the_first_request_still_searches():
    tuner = Bootstrap(["0", "1"])
    assert not tuner.observe(0, 0)
    assert tuner.observe(1, 0)


def test_bootstrap_that_finds_alpha_0_stays_with_it():
    tuner = Bootstrap(["0", "1"])
    assert tuner.observe(500, 100)
    assert tuner.update([5, 5]) is None
    assert tuner.is_done


def test_bootstrap_searches_anew_if_the_cache_was_emptied_meanwhile():
    tuner = Bootstrap(["0", "1"])
    assert tuner.observe(500, 100)
    tuner.reset()
    with pytest.raises(ValueError, match="not due"):
        tuner.update([1, 2])
    assert tuner.observe(500, 100)


@pytest.mark.parametrize("factor", [4, 16])
def test_bootstrap_windows_are_those_of_the_paper(factor):
    with pytest.raises(ValueError, match=f"factor = {factor} .* 5 to 15"):
        Bootstrap(["0"], factor=factor)
