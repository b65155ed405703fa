"""Copies to and from page-first host pools, against a copy token by token."""

import pytest
import torch
from sglang_hybrid.kernels.host_transfer import (
    transfer_kv_all_layer_direct_lf_pf,
    transfer_kv_per_layer_direct_pf_lf,
)

LAYERS, ROW = 3, (2, 4)


def rows(pages, page_size):
    return torch.cat([torch.arange(page * page_size, (page + 1) * page_size) for page in pages])


@pytest.mark.parametrize("page_size", [1, 16])
def test_pages_go_to_the_host_and_come_back_elsewhere(page_size):
    pools = [[torch.rand(8 * page_size, *ROW) for _ in range(LAYERS)] for _ in range(2)]
    host = [torch.zeros(5, LAYERS, page_size, *ROW) for _ in range(2)]
    device, place, back = ([6, 1, 3], [4, 0, 2], [0, 7, 5])
    source, held, target = (rows(pages, page_size) for pages in (device, place, back))
    transfer_kv_all_layer_direct_lf_pf(
        [layer for pool in pools for layer in pool], host, source, held, page_size
    )
    for pool, copies in zip(pools, host, strict=True):
        for layer in range(LAYERS):
            for at, to in zip(source.tolist(), held.tolist(), strict=True):
                assert torch.equal(copies[to // page_size, layer, to % page_size], pool[layer][at])
        assert not copies[[1, 3]].any()
    before = [[layer.clone() for layer in pool] for pool in pools]
    for layer in range(LAYERS):
        transfer_kv_per_layer_direct_pf_lf(
            host, [pool[layer] for pool in pools], held, target, layer, page_size
        )
    untouched = rows([1, 2, 3, 4, 6], page_size)
    for pool, old in zip(pools, before, strict=True):
        for layer in range(LAYERS):
            assert torch.equal(pool[layer][target], old[layer][source])
            assert torch.equal(pool[layer][untouched], old[layer][untouched])
