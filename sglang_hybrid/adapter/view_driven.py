"""What both components share: locks go to the tree view, victims come from it."""

from __future__ import annotations


class ViewDriven:
    """Mixin before a SGLang tree component: locks decide who is a candidate.

    The index of the view is kept up to date by events, so a walk has nothing to build
    when it starts (SGLang's builds a heap or a cursor) and nothing to clear at its end.
    """

    def acquire_component_lock(self, node, result, lock_host=False):
        result = super().acquire_component_lock(node, result, lock_host)
        self.cache.view.touch(node)
        return result

    def release_component_lock(self, node, params, lock_host=False):
        super().release_component_lock(node, params, lock_host)
        self.cache.view.touch(node)

    def _evict_device_start(self, request_cnt):
        self._evict_device_request_cnt = request_cnt

    def _evict_device_end(self):
        pass
