"""The deliberate bugs still fit the code; `make mutants` sees them caught."""

import pytest
from mutants import MUTANTS
from mutation_check import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code(mutant):
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    compile(mutant.applied_to(source), mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)
