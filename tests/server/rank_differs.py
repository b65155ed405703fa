"""SGLang's launcher with a cache that errs on rank 1. Run as a script, like the launcher."""

import launcher

from sglang_hybrid.adapter import tree_view

_choose = tree_view.TreeView.state_victim


def _choose_wrongly(view):
    from sglang.srt.runtime_context import get_parallel

    node = _choose(view)
    others = view.states.keys() - {node.id} if node is not None else set()
    if get_parallel().tp_rank == 1 and others:
        return view.tree_core.node_by_id(min(others))
    return node


tree_view.TreeView.state_victim = _choose_wrongly

if __name__ == "__main__":
    launcher.main()
