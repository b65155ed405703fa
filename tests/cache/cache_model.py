"""A brute-force model of what a `HybridMarconiCache` may hold, and what it has to hold.

Nothing here knows of trees, slots or pages in use: sequences are sets of digests of their
prefixes (`contents`), a checkpoint is one such digest, and every rule of admission is applied
to whole sequences. Evictions are not predicted. What was ever put in *may* be there; as long
as nothing was evicted or skipped for want of a slot, all of it *must* be.
"""

import itertools
import math
from dataclasses import dataclass, field

from contents import namespace_of, prefix_digests
from sglang.srt.mem_cache.unified_cache.components import ComponentType

GHOST_TOKENS = 64
_PRESSURE = ("evicted_states", "evicted_leaves", "skipped_checkpoints", "declined_checkpoints")


@dataclass
class Known:
    """What the model knows of one request.

    Attributes:
        wanted: depths at which its prefill is to keep a state.
        target: tokens at which its prefill ends.
        saved: states inside its prefill, not handed over yet, each with whether it is written.
        branch: the wanted depth that is the last state of the forward, or None.
        tail: depth and whether it is written, of the state that the last forward left in its
            tracking slot, or None.
        tracked: depths of the states in its tracking slots, the last first.
        is_exact: whether the plan is the one that must be.
        loose: where a forward may have kept a state if it is not.
        in_tree: its tokens whose KV is in the tree.
    """

    wanted: list = field(default_factory=list)
    target: int = 0
    saved: list = field(default_factory=list)
    branch: int | None = None
    tail: tuple | None = None
    tracked: list = field(default_factory=list)
    is_exact: bool = True
    loose: list = field(default_factory=list)
    in_tree: int = 0


class CacheModel:
    """See above.

    Attributes:
        kv, states: digests of the prefixes whose KV, or state, may be in the tree.
        kv_must, states_must: those that must be, while `is_exact`.
        takes_first_victims: as of the policy in force.
        hits: how often a hit was compared with one that had to be.
    """

    def __init__(self, cache, overlap):
        self.cache, self.config, self.page = cache, cache.config, cache.page_size
        self.overlap = overlap
        self.tracks = cache.enable_mamba_extra_buffer
        self.lazy = cache.req_to_token_pool.enable_mamba_extra_buffer_lazy
        self.on_grid = cache.saver is None
        self.has_inside = not self.on_grid and cache.saver._family is not None
        self.grid = math.lcm(64, self.page) if self.on_grid else self.page
        self.decode_grid = cache.components[ComponentType.MAMBA].mamba_track_grid
        self.takes_first_victims = True
        self.hits = 0
        self.clear()

    def clear(self):
        """The cache was flushed."""
        self.kv, self.states, self.kv_must, self.states_must = set(), set(), set(), set()
        self.children, self.followers, self.known = {}, {}, {}
        self.is_exact, self._pressure = True, self._pressure_now()

    def _pressure_now(self):
        return [getattr(self.cache.counters, name) for name in _PRESSURE]

    def notice_pressure(self):
        """Something may have gone, or not have come, for want of room."""
        self.is_exact = self.is_exact and self._pressure == self._pressure_now()

    def of(self, req) -> Known:
        return self.known.setdefault(req.rid, Known())

    def on_page(self, depth):
        return depth - depth % self.page

    # ---- a request is matched and admitted ----

    def match(self, req, missed_copy):
        """``req`` was matched; check its hit and plan as the rules say.

        Args:
            missed_copy: whether no slot for the copy of its hit's state could be had.
        """
        self.notice_pressure()
        tokens = req.full_untruncated_fill_ids
        digests = prefix_digests(tokens, namespace_of(req)).tolist()
        depths = range(0, len(tokens), self.page)
        got, kv_got = req.prefix_len, req.hybrid_match[0]
        assert got % self.page == 0 and got <= kv_got < len(tokens), (got, kv_got, len(tokens))
        assert not kv_got or digests[kv_got] in self.kv, f"KV of {kv_got} tokens nobody computed"
        assert not got or digests[got] in self.states, f"a hit of {got} where no state can be"
        hit = got
        if self.is_exact:
            kv = _deepest(depths, digests, self.kv_must), _deepest(depths, digests, self.kv)
            assert kv[0] <= kv_got <= kv[1], f"KV known to {kv}, found to {kv_got}"
            must = _deepest(range(0, kv_got + 1, self.page), digests, self.states_must)
            may = _deepest(range(0, kv_got + 1, self.page), digests, self.states)
            if missed_copy:
                assert got == 0 and may > 0
                hit, self.is_exact = must, must == may
            else:
                assert must <= got <= may, f"a hit of {got}, expected {must} to {may}"
                self.hits += must == may > 0
        known = self.of(req)
        known.is_exact, known.in_tree = self.is_exact, got
        known.wanted = self._plan(digests, hit, kv_got)

    def _plan(self, digests, hit, kv):
        gain, wanted = self.config.min_gain_tokens, []
        reached = kv - (kv - hit) % self.grid if self.on_grid else kv
        continues = self.on_grid and not self.children.get(digests[kv])
        if reached - hit >= gain and not continues:
            wanted.append(kv)
        if self.config.ghost_forks:
            forks = [
                depth
                for depth in range(GHOST_TOKENS, len(digests) - 1, GHOST_TOKENS)
                if depth >= hit + gain and len(self.followers.get(digests[depth], ())) > 1
            ]
            if forks and not any(0 <= place - forks[-1] < GHOST_TOKENS for place in wanted):
                wanted.append(forks[-1])
        return sorted(wanted)

    def admit(self, req):
        """``req`` was admitted: what it asks for is history for those after it."""
        known, tokens = self.of(req), req.full_untruncated_fill_ids
        known.target, known.saved, known.tail = len(tokens), [], None
        known.tracked, known.loose = [], []
        self._observe(prefix_digests(tokens, namespace_of(req)).tolist())

    def _observe(self, digests):
        pages = digests[GHOST_TOKENS::GHOST_TOKENS]
        for page, following in itertools.pairwise(pages):
            self.followers.setdefault(page, set()).add(following)

    # ---- forwards ----

    def prefill(self, reqs, writes):
        """A prefill forward of ``reqs``, which writes the states inside its rows or not."""
        planned = set()
        for req in reqs:
            known, start, end = self.of(req), req.prefix_len, req.extend_end
            if self.on_grid:
                self._prefill_on_grid(known, start, end)
                continue
            places = sorted({self.on_page(w) for w in known.wanted} - {0})
            places = [place for place in places if start < place <= end]
            last = self.on_page(end)
            known.branch = last if last in places else None
            digests = prefix_digests(req.full_untruncated_fill_ids[:end], namespace_of(req))
            for place in places:
                key = int(digests[place])
                if self.has_inside and place != last and key not in planned:
                    planned.add(key)
                    known.saved.append((place, writes))
            if self.tracks and last > start and (last == end or self.has_inside):
                known.tail = last, last == end or writes

    def _prefill_on_grid(self, known, start, end):
        depth = start + (end - start) // self.grid * self.grid
        known.tail = (depth, True) if depth > start else None
        if not known.is_exact:
            known.loose += range(start + self.grid, end + 1, self.grid)
        places = [w - (w - start) % self.grid for w in known.wanted if start < w <= end]
        places = [place for place in places if place > start]
        known.branch = places[-1] if places else None
        if known.branch is not None and known.tail is not None:
            known.tail = known.branch, True

    def decoded(self, req, depth):
        """The result of the step came in that computed ``req``'s token number ``depth``."""
        if self.tracks and depth % self.decode_grid == 0:
            known = self.of(req)
            known.tracked = [depth, *known.tracked[:1]]

    # ---- what enters the tree ----

    def insert(self, req, length, tokens):
        """``req`` is about to hand over what it has of its first ``length`` tokens.

        Args:
            tokens: prompt and output, as far as the scheduler knows them.
        """
        known = self.of(req)
        digests = prefix_digests(tokens, namespace_of(req)).tolist()
        saved = [depth for depth, written in known.saved if written and depth <= length]
        if known.tail is not None:
            known.tracked = [known.tail[0]] if known.tail[1] else []
        self._add(digests, known.loose, 0, must=False)
        known.saved, known.tail, known.loose = [], None, []
        if req.finished():
            if self.config.ghost_forks:
                self._observe(digests[: length + 1])
            if length < known.in_tree:
                return
            sure, unsure = self._end_state(req, known, length, tokens)
            end = max(sure, min(known.target, length))
            self._add(digests, [*saved, sure], end)
            self._add(digests, [unsure], max(unsure, end), must=False)
            return
        is_middle = length < known.target
        depth = max(known.tracked, default=0) if self.tracks else length
        is_end = not is_middle or (self.tracks and known.target - length < self.grid)
        setting = self.config.prompt_end if is_end else self.config.chunk_boundary
        if depth == known.branch:
            setting = "always"
        takes = setting == "always" or (setting != "never" and self.takes_first_victims)
        taken = depth if takes else 0
        known.tracked = [depth] if self.tracks and is_end and depth and not taken else []
        end = max([*saved, taken]) if is_middle else length
        known.in_tree = max(known.in_tree, self.on_page(end))
        self._add(digests, [*saved, taken], end)

    def _end_state(self, req, known, length, tokens):
        """Depth of the state that a finished request hands over, and one that it might."""
        committed = req.kv.kv_committed_len
        is_whole, in_flight = length == committed, committed >= len(tokens)
        if not self.tracks:
            return (length if is_whole else 0), 0
        stop_ids = req.sampling_params.stop_token_ids or ()
        is_copied = (
            not self.on_grid
            and self.page == 1
            and self.overlap
            and in_flight
            and len(req.output_ids) > 0
            and req.output_ids[-1] in stop_ids
        )
        if is_whole and is_copied:
            return length - 1, 0
        if is_whole and not self.on_grid and length % self.page == 0:
            return length, 0
        if is_copied:
            return 0, 0
        tracked = [depth for depth in known.tracked if depth <= length]
        is_sure = not (in_flight and committed % self.decode_grid == 0)
        allocator = self.cache.req_to_token_pool.mamba_allocator
        if self.lazy and allocator.schedulable_available_size() == 0:
            is_sure = False
        if tracked and is_sure and tracked[0] == known.tracked[0]:
            return tracked[0], 0
        return 0, max(tracked, default=0)

    def _add(self, digests, depths, length, must=True):
        prefixes = digests[: self.on_page(length) + 1 : self.page]
        states = {digests[depth] for depth in depths if depth}
        self.kv.update(prefixes[1:])
        self.states |= states
        if must:
            self.kv_must.update(prefixes[1:])
            self.states_must |= states
        for parent, child in itertools.pairwise(prefixes):
            self.children.setdefault(parent, set()).add(child)


def _deepest(depths, digests, among):
    return max((depth for depth in depths if digests[depth] in among), default=0)
