"""SGLang's launcher with a prefill that saves its states too early. Run as a script.

The number of tokens is that of the environment variable `TEST_TOKENS_EARLY`.
"""

import os

import launcher

from sglang_hybrid.core import chunk_plan

TOKENS = int(os.environ["TEST_TOKENS_EARLY"])

_add_row = chunk_plan.ChunkPlan.add_row


def _add_row_early(plan, tokens, offsets):
    _add_row(plan, tokens, [max(1, offset - TOKENS) for offset in offsets])


chunk_plan.ChunkPlan.add_row = _add_row_early

if __name__ == "__main__":
    launcher.main()
