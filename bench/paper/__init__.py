"""Reproduction of the experiments of Pan et al., "Marconi", MLSys 2025."""
