import sys
from pathlib import Path

import pytest

SERIES = Path(__file__).resolve().parents[2] / "patches"


@pytest.fixture(scope="session")
def patched_tree(tmp_path_factory) -> Path:
    """SGLang's tree with the whole series applied."""
    sys.path.insert(0, str(SERIES))
    try:
        import tree
    finally:
        sys.path.remove(str(SERIES))
    dest = tmp_path_factory.mktemp("patched") / "tree"
    tree.build(dest, tree.patches())
    return dest
