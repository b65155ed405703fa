"""What both components share: locks go to the tree view, victims come from it."""

from __future__ import annotations


class ViewDriven:
    """Mixin before a SGLang tree component: locks decide who is a candidate.

    The index of the view is kept up to date by events, so a walk has nothing to build
    when it starts (SGLang's builds a heap or a cursor) and nothing to clear at its end.
    A view that has failed names no victims; then the walk is SGLang's.
    """

    _is_sglangs_walk = False

    def acquire_component_lock(self, node, result, lock_host=False):
        result = super().acquire_component_lock(node, result, lock_host)
        self.cache.view.touch(node)
        return result

    def release_component_lock(self, node, params, lock_host=False):
        super().release_component_lock(node, params, lock_host)
        self.cache.view.touch(node)

    def _evict_device_start(self, request_cnt):
        self._evict_device_request_cnt = request_cnt

    def _next_of_sglang(self, *args):
        """A step of SGLang's walk; the view may have failed in the middle of one."""
        if not self._is_sglangs_walk:
            super()._evict_device_start(self._evict_device_request_cnt)
            self._is_sglangs_walk = True
        return super()._evict_device_next_node(*args)

    def _evict_device_end(self):
        if self._is_sglangs_walk:
            super()._evict_device_end()
            self._is_sglangs_walk = False
