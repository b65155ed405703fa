"""What both components report to the tree view in the same way."""

from __future__ import annotations


class ReportsLocks:
    """Mixin before a SGLang tree component: locks decide who is a candidate."""

    def acquire_component_lock(self, node, result, lock_host=False):
        result = super().acquire_component_lock(node, result, lock_host)
        self.cache.view.touch(node)
        return result

    def release_component_lock(self, node, params, lock_host=False):
        super().release_component_lock(node, params, lock_host)
        self.cache.view.touch(node)
