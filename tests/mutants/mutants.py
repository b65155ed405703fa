"""Deliberate bugs, and the tests that have to catch each."""

from dataclasses import dataclass

ADAPTER, CORE = "sglang_hybrid/adapter", "sglang_hybrid/core"
_SERVED = "tests/server/test_serving.py"


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: what is wrong, in a few words.
        file: from the repository's root.
        old, new: ``old``, which is there once, becomes ``new``.
        tests: what has to fail, as arguments of pytest.
        and_also: further pairs of ``old`` and ``new``, where one fault alone is made up for.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    and_also: tuple[tuple[str, str], ...] = ()

    def applied_to(self, source: str) -> str:
        """``source`` with the bug.

        Raises:
            ValueError: the code has changed and the mutant has to follow.
        """
        for old, new in ((self.old, self.new), *self.and_also):
            if (count := source.count(old)) != 1:
                raise ValueError(f"{self.name}: {self.file} has {count} times {old!r}, not once")
            source = source.replace(old, new)
        return source


MUTANTS = (
    Mutant(
        "a slot is freed twice",
        f"{ADAPTER}/request_checkpoints.py",
        "        for slot in slots:\n            self._free_mamba_value(slot)\n",
        "        for slot in [*slots, *slots]:\n            self._free_mamba_value(slot)\n",
        ("tests/cache/test_saving.py",),
    ),
    Mutant(
        "a slot is lost when a request is aborted",
        f"{ADAPTER}/request_checkpoints.py",
        "            slots += [saved.slot for saved in saved_of(req)]\n",
        "",
        ("tests/cache/test_saving.py",),
    ),
    Mutant(
        "a hit refreshes the ancestors of its state",
        f"{ADAPTER}/tree_view.py",
        "        self.used_kinds.add(checkpoint.kind)\n        self._touch(node)\n",
        "        self.used_kinds.add(checkpoint.kind)\n        self._touch(node)\n"
        "        while (node := node.parent).parent is not None:\n"
        "            if node.id in self.checkpoints:\n"
        "                self.checkpoints[node.id].last_use = self.clock\n"
        "                self._touch(node)\n",
        ("tests/cache/test_eviction.py",),
    ),
    Mutant(
        "a branch is saved one token late",
        f"{CORE}/places.py",
        "        place = on_page(depth, page_size)\n",
        "        place = on_page(depth + 1, page_size)\n",
        ("tests/core/test_track_plan.py", "tests/cache/test_saving.py"),
    ),
    Mutant(
        "a state inside a row is the one a token early",
        f"{CORE}/track_plan.py",
        "            self.ends.append(",
        "            self.ends.append(-1 + ",
        ("tests/core/test_track_plan.py",),
    ),
    Mutant(
        "a decision holds at once on the rank that decides",
        f"{ADAPTER}/tuning.py",
        "        self._due.append(decision)\n",
        "        if self._client is None:\n"
        "            self._due.append(decision)\n"
        "        else:\n"
        "            self._apply(decision, self._cache.view.clock)\n",
        ("tests/cache/test_tuning.py",),
    ),
    Mutant(
        "a decision holds where it was heard",
        f"{ADAPTER}/tuning.py",
        "        while self._due and self._due[0].at <= clock:\n",
        "        while self._due:\n",
        ("tests/cache/test_ranks.py",),
    ),
    Mutant(
        "the matched state is not pinned while a slot is found for its copy",
        f"{ADAPTER}/mamba.py",
        "            lock = self.cache.lock(result.best_match_node)\n"
        "            slot = self._take_slot(evict=True)\n"
        "            self.cache.unlock(lock)\n",
        "            slot = self._take_slot(evict=True)\n",
        ("tests/cache/test_stress.py", "tests/cache/test_short_hits.py"),
    ),
    Mutant(
        "a locked state is a victim",
        f"{ADAPTER}/victim_order.py",
        "        if node.component_data[MAMBA].lock_ref > 0:\n            return None, None\n",
        "",
        ("tests/cache/test_eviction.py",),
    ),
    Mutant(
        "a state that no forward wrote is handed over",
        f"{ADAPTER}/request_checkpoints.py",
        "            elif saved.forward.inside_written:\n",
        "            elif True:\n",
        ("tests/cache/test_saving.py",),
    ),
    Mutant(
        "the state at a prompt's end is handed over unwritten",
        f"{ADAPTER}/request_checkpoints.py",
        "        if tail is not None and not tail.is_written:\n",
        "        if False:\n",
        ("tests/cache/test_saving.py", "tests/cache/test_failures.py"),
    ),
    Mutant(
        "a state beyond the last token of its sequence is handed over",
        f"{ADAPTER}/request_checkpoints.py",
        "            if not is_whole:\n                return 0\n",
        "",
        ("tests/cache/test_admission.py",),
    ),
    Mutant(
        "savings are measured from the root, not from the nearest live checkpoint",
        f"{CORE}/live_tree.py",
        "        if above.live is not None:\n            saved_flops -= above.live.prefill_flops\n",
        "",
        ("tests/cache/test_eviction.py", "tests/cache/test_agreement_with_replay.py"),
    ),
    Mutant(
        "a first victim that was hit stays one",
        f"{ADAPTER}/tree_view.py",
        "        checkpoint.is_first_victim = False\n        self.used_kinds",
        "        self.used_kinds",
        ("tests/cache/test_eviction.py",),
    ),
    Mutant(
        "a state that is gone stays in the victim index",
        f"{ADAPTER}/tree_view.py",
        "        self.states.discard(node.id)\n        self._drawn_from.remove(node.id)\n",
        "        self._drawn_from.remove(node.id)\n",
        ("tests/cache/test_stress.py", "tests/cache/test_eviction.py"),
    ),
    Mutant(
        "tenants share what is remembered of forks",
        f"{CORE}/pages.py",
        "        self._salt = mixed(np.array([namespace], np.uint64) ^ _ODD)\n",
        "        self._salt = mixed(np.array([0], np.uint64) ^ _ODD)\n",
        ("tests/core/test_forks.py", "tests/cache/test_wanted.py"),
    ),
    Mutant(
        "a split forgets at which token the lower state was taken",
        f"{CORE}/live_tree.py",
        "            self._nodes[upper.id] = (depth - len(lower.key), clock)\n",
        "            self._nodes[upper.id] = (depth, clock)\n",
        ("tests/cache/test_admission.py", "tests/cache/test_stress.py"),
    ),
    Mutant(
        "a part that has failed stays on",
        f"{ADAPTER}/guards.py",
        "            self.is_on = False\n",
        "            pass\n",
        ("tests/cache/test_failures.py",),
    ),
    Mutant(
        "after a failure of the plan the state at the end still counts",
        f"{ADAPTER}/saving.py",
        "            req.hybrid_tail = req.kv.mamba_last_track_seqlen = None\n",
        "            req.hybrid_tail = None\n",
        ("tests/cache/test_failures.py",),
    ),
    Mutant(
        "a hit goes on from whatever its slot holds",
        f"{ADAPTER}/mamba.py",
        "        return super().finalize_match_result_in_cache(params, result)\n",
        "        result = super().finalize_match_result_in_cache(params, result)\n"
        "        if params.req is not None:\n"
        "            params.req.kv.mamba_cow_src_index = None\n"
        "        return result\n",
        ("tests/cache/test_stress.py",),
    ),
    Mutant(
        "tenants share the tree",
        f"{ADAPTER}/cache.py",
        "    # ---- checks ----\n",
        "    def match_prefix(self, params):\n"
        "        params.key.extra_key = params.key.cache_salt = None\n"
        "        return super().match_prefix(params)\n\n"
        "    # ---- checks ----\n",
        ("tests/cache/test_admission.py",),
    ),
    Mutant(
        "a copy made before a stop token counts a token too many",
        f"{ADAPTER}/request_checkpoints.py",
        "stops.SLOT, token_ids_len - 1",
        "stops.SLOT, token_ids_len",
        ("tests/cache/test_saving.py",),
    ),
    Mutant(
        "a state that a step in flight overwrites is handed over",
        f"{ADAPTER}/request_checkpoints.py",
        "        elif is_copied or self._is_overwritten(req):\n",
        "        elif is_copied:\n",
        (
            f"{_SERVED}::test_a_state_that_a_step_in_flight_overwrites_is_not_handed_over[extra_buffer_chunk]",
        ),
        and_also=(
            (
                "pool.get_mamba_ping_pong_other_idx(kv.mamba_next_track_idx)",
                "kv.mamba_next_track_idx",
            ),
        ),
    ),
    Mutant(
        "a state beyond what is kept of a sequence is handed over",
        f"{ADAPTER}/request_checkpoints.py",
        "            if saved.depth > length:\n",
        "            if saved.depth > length + (1 << 40):\n",
        ("tests/cache/test_machine_findings.py", "tests/cache/test_machine.py"),
    ),
    Mutant(
        "KV that the tree holds is freed with its request",
        f"{ADAPTER}/cache.py",
        "(max(start, first), end)",
        "(start, end)",
        ("tests/cache/test_machine_findings.py", "tests/cache/test_machine.py"),
    ),
    Mutant(
        "requests of one batch share a state across tenants",
        f"{ADAPTER}/saving.py",
        "        req.extra_key == other.extra_key\n"
        "        and req.cache_salt == other.cache_salt\n",
        "        True\n",
        ("tests/cache/test_machine_findings.py", "tests/cache/test_machine.py"),
    ),
    Mutant(
        "a state that leaves the device is not copied to the host",
        f"{ADAPTER}/host_tier.py",
        "        if data.value is not None and data.host_value is None:\n",
        "        if False:\n",
        ("tests/hicache/test_host_tier.py",),
    ),
    Mutant(
        "a declined reload leaves a request without a state",
        f"{ADAPTER}/tiered.py",
        "            loaded = 0, self.components[MAMBA].start_on_device(params.req, loaded[1])\n",
        "",
        ("tests/hicache/test_host_tier.py",),
    ),
)
