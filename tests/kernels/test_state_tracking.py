"""Copies into track slots: what is copied, and that nothing else changes."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang_hybrid.kernels.state_tracking import (
    track_mamba_states_all_layers,
    track_mamba_states_if_needed,
)


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_only_masked_rows_are_copied(mask, all_layers, with_freed):
    batch, layers, slots = len(mask), 2, 12
    conv = torch.arange(layers * slots * 6, dtype=torch.float32).view(layers, slots, 2, 3)
    ssm = torch.arange(layers * slots * 4, dtype=torch.float32).view(layers, slots, 2, 2, 1)
    source = torch.arange(batch)
    target = torch.arange(6, 6 + batch)
    if with_freed:
        target[0] = -1
    want_conv, want_ssm = conv.clone(), ssm.clone()
    for row in range(batch):
        if mask[row] and target[row] >= 0:
            for layer in range(layers):
                want_conv[layer, target[row]] = conv[layer, source[row]]
                want_ssm[layer, target[row]] = ssm[layer, source[row]]
    index = (source, torch.tensor(mask), target, batch)
    if all_layers:
        track_mamba_states_all_layers(conv, ssm, *index, check_freed_slots=with_freed)
    else:
        for layer in range(layers):
            track_mamba_states_if_needed(
                conv[layer], ssm[layer], *index, check_freed_slots=with_freed
            )
    assert torch.equal(conv, want_conv)
    assert torch.equal(ssm, want_ssm)
