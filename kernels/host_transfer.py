"""Copies between device pools and host pools whose layout is page-first, in plain torch.

A device pool is one tensor per layer with a row per token (or state slot); a host pool is
one tensor of shape (pages, layers, page_size, ...). What is moved are whole pages.
"""

from collections.abc import Sequence

from torch import Tensor


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copy one layer's rows from host pools to device pools.

    Args:
        src_ptrs: host pools, each (pages, layers, page_size, ...).
        dst_ptrs: that layer of the device pool of each, (rows, ...), changed in place.
        src_indices: (n,) host rows, page by page.
        dst_indices: (n,) device rows, page by page.
        layer_id: layer of the host pools.
    """
    pages = src_indices[::page_size] // page_size
    for host, device in zip(src_ptrs, dst_ptrs, strict=True):
        rows = host[pages.to(host.device), layer_id].flatten(0, 1)
        device[dst_indices.to(device.device)] = rows.to(device.device)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[Tensor],
    dst_ptrs: Sequence[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,
) -> None:
    """Copy rows of all layers from device pools to host pools.

    Args:
        src_ptrs: layers of the first device pool, then those of the second, and so on; each
            (rows, ...).
        dst_ptrs: host pools, each (pages, layers, page_size, ...), changed in place.
        src_indices: (n,) device rows, page by page.
        dst_indices: (n,) host rows, page by page.
    """
    pages = dst_indices[::page_size] // page_size
    layers = iter(src_ptrs)
    for host in dst_ptrs:
        for layer_id in range(host.shape[1]):
            device = next(layers)
            rows = device[src_indices.to(device.device)].to(host.device)
            host[pages.to(host.device), layer_id] = rows.unflatten(0, (-1, page_size))
