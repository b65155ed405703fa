import pytest
import torch
from reference import ReferenceModel

from sglang_hybrid.model.make_model import make_small_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """Folder of the small model."""
    return make_small_model(tmp_path_factory.mktemp("small_model"))


@pytest.fixture(scope="session")
def reference(small_model):
    return ReferenceModel.load(small_model)
