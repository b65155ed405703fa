"""Priorities, preemption and a short queue: whoever has to go comes back exact."""

from comparison import Comparison, answer_of
from crowding import QUEUED, RUNNING
from streams import Stream
from workload import sharing

LONG = 100


def remember(comparison, *streams):
    for stream in streams:
        comparison.add(stream.prompt, stream.length, answer_of(stream.response))


def start(server, count, first=0, priority=0):
    return [
        Stream(server, sharing(250, first + i), LONG, priority=priority).running()
        for i in range(count)
    ]


def test_a_preempted_request_goes_on_where_it_was(crowded):
    crowded.flush()
    comparison, preempted = Comparison(crowded), 0
    for turn in range(2):
        low = start(crowded, RUNNING, 10 * turn)
        high = Stream(crowded, sharing(250, 10 * turn + 5), 8, priority=5).done()
        assert not any(stream.is_done for stream in low)
        preempted += sum(stream.done().info["num_retractions"] for stream in low)
        remember(comparison, high, *low)
    assert preempted >= 2
    # What the preempted ones had computed was shared, and so was the prefix.
    assert comparison.answers[3].hit == 250
    crowded.flush()
    comparison.check()


def test_what_the_full_queue_refuses_holds_nothing(crowded):
    crowded.flush()
    comparison = Comparison(crowded)
    for _ in range(2):
        low = start(crowded, RUNNING)
        more = [Stream(crowded, sharing(250, 20 + i), 4, priority=0) for i in range(6)]
        refused = [each for each in more if each.done().is_refused]
        assert len(refused) == len(more) - QUEUED
        remember(comparison, *(stream.done() for stream in low))
        remember(comparison, *(stream for stream in more if stream not in refused))
        crowded.flush()
    comparison.check()
