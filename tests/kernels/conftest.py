import torch
from hypothesis import HealthCheck, settings

# The machines that run these tests are small and shared.
torch.set_num_threads(1)
settings.register_profile(
    "kernels",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("kernels")
