"""Copies of running states into the slots that prefix caching keeps, in plain torch."""

from torch import Tensor


def _tracked_slots(
    cache_indices: Tensor,
    track_mask: Tensor,
    track_indices: Tensor,
    batch_size: int,
    check_freed_slots: bool,
) -> tuple[Tensor, Tensor] | None:
    mask = track_mask[:batch_size]
    if not bool(mask.any()):
        return None
    source = cache_indices[:batch_size][mask].long()
    target = track_indices[:batch_size][mask].long()
    if check_freed_slots:
        live = (source >= 0) & (target >= 0)
        source, target = source[live], target[live]
    return source, target


def track_mamba_states_if_needed(
    conv_states: Tensor,
    ssm_states: Tensor,
    cache_indices: Tensor,
    mamba_track_mask: Tensor,
    mamba_track_indices: Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """Copy one layer's states from running slots to track slots.

    Args:
        conv_states: (slots, dim, width - 1), changed in place.
        ssm_states: (slots, heads, head_dim, d_state), changed in place.
        cache_indices: (batch,) running slot of each row.
        mamba_track_mask: (batch,) bool, the rows to copy.
        mamba_track_indices: (batch,) target slot of each row.
        check_freed_slots: skip rows in which either slot is negative.
    """
    slots = _tracked_slots(
        cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots
    )
    if slots is not None:
        source, target = slots
        conv_states[target] = conv_states[source]
        ssm_states[target] = ssm_states[source]


def track_mamba_states_all_layers(
    conv_states_pool: Tensor,
    ssm_states_pool: Tensor,
    cache_indices: Tensor,
    mamba_track_mask: Tensor,
    mamba_track_indices: Tensor,
    batch_size: int,
    check_freed_slots: bool = False,
) -> None:
    """As `track_mamba_states_if_needed`, for pools with a leading layer axis."""
    slots = _tracked_slots(
        cache_indices, mamba_track_mask, mamba_track_indices, batch_size, check_freed_slots
    )
    if slots is not None:
        source, target = slots
        conv_states_pool[:, target] = conv_states_pool[:, source]
        ssm_states_pool[:, target] = ssm_states_pool[:, source]
