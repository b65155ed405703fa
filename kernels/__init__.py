"""Torch and Triton kernels of sglang-hybrid."""
