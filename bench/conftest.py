"""Options of the benchmarks."""


def pytest_addoption(parser):
    parser.addoption("--traces", help="folder of stored traces (default: HYBRID_TRACES)")
