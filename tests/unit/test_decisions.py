"""Decisions inside the request broadcast: every rank gets them, no request is touched."""

from sglang_hybrid.adapter.decisions import Decision, DecisionReceiver

FIRST = Decision(at=7, arm=1, reason="better", text="a -> b")
SECOND = Decision(at=9, arm=0, reason="guard", text="b -> a")


class Broadcast:
    """SGLang's receiver on one of several ranks: only the first one's input counts."""

    recv_skipper = "of SGLang"

    def __init__(self, channel, is_first, requests=()):
        self.channel, self.is_first, self.requests = channel, is_first, list(requests)

    def recv_requests(self, local_reqs=None):
        if self.is_first:
            self.channel[:] = [*self.requests, *(local_reqs or ())]
        return list(self.channel)


def rank(channel, is_first, pending=(), requests=()):
    queue, taken = list(pending), []

    def take_all():
        now, queue[:] = list(queue), []
        return now

    receiver = DecisionReceiver(Broadcast(channel, is_first, requests), take_all, taken.append)
    return receiver, taken


def test_every_rank_takes_what_the_first_one_decides_and_sees_the_same_requests():
    channel = []
    first, of_first = rank(channel, True, [FIRST, SECOND], ["request", "abort"])
    other, of_other = rank(channel, False)
    assert first.recv_requests(local_reqs=["timeout"]) == ["request", "abort", "timeout"]
    assert other.recv_requests(local_reqs=[]) == ["request", "abort", "timeout"]
    assert of_first == of_other == [FIRST, SECOND]
    assert first.recv_requests() == ["request", "abort"]
    assert of_first == [FIRST, SECOND]


def test_a_pass_that_sglang_skips_loses_nothing():
    channel = []
    receiver, taken = rank(channel, True, [FIRST], ["request"])
    receiver._receiver.recv_requests, broadcast = (
        lambda local_reqs: [],
        (receiver._receiver.recv_requests),
    )
    assert receiver.recv_requests() == [] and taken == []
    receiver._receiver.recv_requests = broadcast
    assert receiver.recv_requests() == ["request"] and taken == [FIRST]


def test_everything_else_is_sglangs():
    receiver, _ = rank([], True)
    assert receiver.recv_skipper == "of SGLang"
