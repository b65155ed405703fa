"""The state machine of `test_machine`: rules over a small scheduler, a model beside it."""

import sys

from cache_model import CacheModel
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine_checks import check_all, check_drained
from machine_setups import PLACES, POLICIES, setups
from saving_driver import saving_cache
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from small_scheduler import SmallScheduler

from sglang_hybrid.core.policy_names import make_policy

STOP = 999
NAMESPACES = [
    {},
    {"extra_key": "a"},
    {"cache_salt": "s"},
    {"extra_key": "a", "cache_salt": "s"},
    {"lora_id": "adapter"},
    {"extra_key": "a", "lora_id": "adapter"},
]
MOST_TOKENS = 420

letters = st.integers(0, 2)


def requests():
    """What `CacheMachine._submit` takes."""
    return st.fixed_dictionaries(
        {
            "source": st.integers(0, 5),
            "cut": st.sampled_from([0, 0, 1, 7, 40, 150]),
            "new": st.sampled_from([0, 1, 3, 17, 40, 64, 100, 150]),
            "letter": letters,
            "namespace": st.sampled_from([0, 0, 0, 0, *range(len(NAMESPACES))]),
            "answer": st.sampled_from([1, 2, 5, 30, 90]),
            "stops": st.booleans(),
            "thinks": st.booleans(),
        }
    )


class CacheMachine(RuleBasedStateMachine):
    """See `test_machine`.

    Attributes:
        place: of `PLACES`; hypothesis by itself would repeat a few of them.
    """

    place = PLACES[0]

    @initialize(data=st.data())
    def build(self, data):
        config, options, self.chunk = data.draw(setups(self.place))
        self.cache = cache = saving_cache(config, **options)
        self.strips = options["strip_thinking_cache"]
        self.letter, self.stops = 0, False
        self.scheduler = SmallScheduler(cache, self.chunk, self._sample)
        self.model = CacheModel(cache, self.scheduler.overlap)
        self.history = []
        self._tell_the_model()

    def _sample(self, req):
        return STOP if self.stops else 900 + self.letter

    def _tell_the_model(self):
        """The model hears of what the scheduler does, as it does it."""
        scheduler, model, cache = self.scheduler, self.model, self.cache
        match, prepare = scheduler.match, scheduler.prepare
        admitted, insert = cache.on_admitted, cache.checkpoint

        def matched(req):
            before = cache.counters.missed_copies
            match(req)
            model.match(req, cache.counters.missed_copies > before)

        def admit(req):
            model.admit(req)
            admitted(req)

        def prepared(reqs):
            model.prefill(reqs, scheduler.writes)
            return prepare(reqs)

        def inserted(req, *, up_to):
            model.insert(req, up_to, [*req.origin_input_ids, *req.output_ids])
            insert(req, up_to=up_to)

        scheduler.match, scheduler.prepare = matched, prepared
        scheduler.results.on_decoded = model.decoded
        cache.on_admitted, cache.checkpoint = admit, inserted

    # ---- clients ----

    @rule(request=requests())
    def submit(self, request):
        self._submit(request)

    @rule(request=requests(), other=requests())
    def submit_two(self, request, other):
        """Two that one pass may admit together."""
        self._submit(request)
        self._submit({**other, "source": 0, "namespace": request["namespace"]})

    @rule(request=requests(), letter=letters, writes=st.sampled_from([True, True, False]))
    def serve(self, request, letter, writes):
        self._serve(request, letter, writes)

    @rule(
        request=requests(),
        letter=letters,
        turns=st.integers(2, 3),
        last=st.sampled_from(["serves", "serves", "does not write", "fails", "is aborted"]),
    )
    def serve_similar(self, request, letter, turns, last):
        """Some that begin alike, one after another: each can use what the others left."""
        prompt = self._prompt(request)[: MOST_TOKENS - 80]
        for turn in range(turns):
            similar = {**request, "prompt": [*prompt, *range(500 + 100 * turn, 570 + 100 * turn)]}
            if turn < turns - 1 or last in ("serves", "does not write"):
                self._serve(similar, letter, turn < turns - 1 or last == "serves")
                continue
            self._submit(similar)
            self.scheduler.prefill(runs=last != "fails")
            if self.scheduler.chunked is not None:
                self.scheduler.abort_chunked()

    def _serve(self, request, letter, writes=True):
        """A request, and steps until it or nothing more is done."""
        req = self._submit(request)
        for _ in range(12):
            self._step(letter, writes=writes)
            if req in self.scheduler.waiting or req is self.scheduler.chunked:
                self.scheduler.prefill()
        for step in range(request["answer"] + 1):
            if not req.finished():
                self._step(letter, stops=request["stops"] and step == request["answer"] // 2)
                self.scheduler.decode_step()

    def _prompt(self, request):
        """The beginning of an earlier sequence and something new."""
        beginning, new = [], request["new"]
        if self.history:
            beginning = self.history[-1 - request["source"] % len(self.history)]
            beginning = beginning[: max(0, len(beginning) - request["cut"])]
        first = 100 * request["letter"] + 1
        return [*beginning, *range(first, first + new)][:MOST_TOKENS] or [first]

    def _submit(self, request):
        prompt = request.get("prompt") or self._prompt(request)
        sampling = {"max_new_tokens": request["answer"]}
        if request["stops"]:
            sampling["stop_token_ids"] = [STOP]
        options = NAMESPACES[request["namespace"] % len(NAMESPACES)]
        req = self.scheduler.submit(prompt, sampling=sampling, **options)
        req.reasoning_tokens = int(self.strips and request["thinks"])
        self.history = [*self.history[-20:], prompt]
        return req

    @precondition(lambda self: self.scheduler.waiting)
    @rule(which=st.integers(0, 7), keeps_slot=st.booleans())
    def match_and_queue_again(self, which, keeps_slot):
        waiting = self.scheduler.waiting
        self.scheduler.match_only(waiting[which % len(waiting)], keeps_slot)

    @precondition(lambda self: self.scheduler.waiting)
    @rule(which=st.integers(0, 7), is_matched=st.booleans())
    def abort_waiting(self, which, is_matched):
        req = self.scheduler.waiting[which % len(self.scheduler.waiting)]
        if is_matched:
            self.scheduler.match_only(req, keeps_slot=True)
        self.scheduler.abort_waiting(req)

    @precondition(lambda self: self.scheduler.chunked is not None)
    @rule()
    def abort_between_chunks(self):
        self.scheduler.abort_chunked()

    @precondition(lambda self: self.scheduler.running)
    @rule(which=st.integers(0, 3))
    def abort_running(self, which):
        running = self.scheduler.running
        self.scheduler.abort_running(running[which % len(running)])

    # ---- the scheduler ----

    @rule(letter=letters, writes=st.sampled_from([True, True, False]))
    def prefill(self, letter, writes):
        self._step(letter, writes=writes)
        self.scheduler.prefill()

    @rule()
    def prefill_that_fails(self):
        """Admitted and prepared, but never computed."""
        self.scheduler.prefill(runs=False)

    @precondition(lambda self: self.scheduler.running or self.scheduler.pending)
    @rule(letter=letters, steps=st.sampled_from([1, 1, 2, 3, 17, 64]), stops=st.booleans())
    def decode(self, letter, steps, stops):
        """So many steps; ``stops``: the last samples a stop token."""
        for step in range(steps):
            self._step(letter, stops=stops and step == steps - 1)
            if not self.scheduler.decode_step() and self.scheduler.pending is None:
                break

    @precondition(lambda self: self.scheduler.running)
    @rule(letter=letters, count=st.integers(1, 2), resumes=st.booleans())
    def retract(self, letter, count, resumes):
        """Some go back to the queue; those that resume are prefilled with what they had."""
        self._step(letter)
        self.scheduler.decode_step(retract=count)
        for _ in range(6 * resumes):
            self.scheduler.prefill()
            self.scheduler.decode_step()

    def _step(self, letter, stops=False, writes=True):
        self.letter, self.stops, self.scheduler.writes = letter, stops, writes
        for req in self.scheduler.running:
            sequence = list(self.scheduler.tokens_of(req))
            if len(sequence) % 7 == 0 and len(sequence) < MOST_TOKENS:
                self.history = [*self.history[-20:], sequence]

    @rule(tokens=st.sampled_from([0, 0, 1, 40, 300]), states=st.sampled_from([0, 1, 1, 3]))
    def evict(self, tokens, states):
        self.cache.evict(EvictParams(num_tokens=tokens, mamba_num=states))

    @rule(policy=st.sampled_from(POLICIES), takes_first_victims=st.booleans())
    def switch_policy(self, policy, takes_first_victims):
        self.cache.put_in_force(make_policy(*policy), takes_first_victims, None)
        self.model.takes_first_victims = takes_first_victims

    @precondition(lambda self: not self.scheduler.live and self.scheduler.pending is None)
    @rule()
    def flush(self):
        self.scheduler.flush()
        self.model.clear()

    # ---- what must hold ----

    @invariant()
    def check(self):
        if hasattr(self, "model"):
            check_all(self.scheduler, self.model)

    def teardown(self):
        # Hypothesis tears down with a step's failure on its way, which says more.
        if not hasattr(self, "model") or sys.exc_info()[0] is not None:
            return
        scheduler = self.scheduler
        for req in list(scheduler.waiting):
            scheduler.abort_waiting(req)
        if scheduler.chunked is not None:
            scheduler.abort_chunked()
        for _ in range(3):
            for req in scheduler.running:
                scheduler.abort_running(req)
            scheduler.decode_step()
        check_all(scheduler, self.model)
        assert not scheduler.live and scheduler.pending is None
        check_drained(scheduler)
