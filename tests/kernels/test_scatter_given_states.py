"""Where every state is given, nothing is read by row: rows may outnumber the checkpoints."""

import torch
from sglang_hybrid.kernels.scatter_checkpoints import scatter_checkpoints


def test_one_checkpoint_of_the_last_of_three_rows():
    conv_pool, ssm_pool = torch.zeros(4, 2, 3), torch.zeros(4, 5)
    slots, state = torch.tensor([2]), torch.arange(1.0, 6.0)[None]
    scatter_checkpoints(
        conv_pool,
        ssm_pool,
        torch.arange(24.0).view(12, 2),
        torch.tensor([0, 4, 8, 12]),
        slots,  # as many as there are checkpoints
        rows=torch.tensor([2]),
        ends=torch.tensor([11]),
        slots=slots,
        state_index=torch.tensor([0]),
        states=state,
    )
    assert torch.equal(ssm_pool[2], state[0]) and not ssm_pool[[0, 1, 3]].any()
    assert torch.equal(conv_pool[2], torch.tensor([[16.0, 18, 20], [17, 19, 21]]))
