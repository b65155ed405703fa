from pathlib import Path

import pytest
import tree


@pytest.fixture(scope="session")
def patched_tree(tmp_path_factory) -> Path:
    """SGLang's tree with the whole series applied."""
    dest = tmp_path_factory.mktemp("patched") / "tree"
    tree.build(dest, tree.patches())
    return dest
