"""Packaging of sglang-hybrid.

`kernels/` lives at the top level of the repository and is installed as
`sglang_hybrid.kernels`.
"""

from pathlib import Path

from setuptools import find_packages, setup

SIM = [
    "numpy",  # arrays of the replay
    "numba==0.65.1",  # compiled replay; the version that sglang 0.5.23 pins
    "rich",  # tables
    "matplotlib",  # plots
    "orjson",  # trace files
    "zstandard",  # traces compressed with zstd
    "tqdm",  # progress bars
]
TEST = [
    "pytest",
    "pytest-timeout",  # a hung server must fail a test, not the run
    "pytest-xdist",  # a second worker computes while the first waits for a server
    "filelock",  # what takes long is made once, not by each worker
    "psutil",  # whether a server that answers is the one that was started
    "hypothesis",  # property tests against brute-force references
]

setup(
    name="sglang-hybrid",
    version="0.1.0",
    description="Prefix caching for hybrid attention + state-space models in SGLang",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"sglang_hybrid": "sglang_hybrid", "sglang_hybrid.kernels": "kernels"},
    packages=[
        *find_packages(include=["sglang_hybrid", "sglang_hybrid.*"]),
        "sglang_hybrid.kernels",
    ],
    install_requires=[
        "pydantic>=2",  # validates --cache-config
        "requests",  # HTTP client of verify and of the benchmarks
        "rich",  # tables of the command line
        "tqdm",  # progress bars
    ],
    extras_require={
        "sglang": ["sglang==0.5.23"],
        "sim": SIM,
        "test": TEST,
        "bench": ["pytest-benchmark", "aiohttp", "scipy", *TEST, *SIM],  # scipy: Student's t
        "dev": ["ruff", "mypy", "pre-commit", *TEST],
    },
    entry_points={
        "sglang.srt.plugins": ["hybrid_marconi = sglang_hybrid.adapter.plugin:register"],
        "sglang.srt.platforms": ["hybrid_cpu = sglang_hybrid.cpu.platform:activate"],
        "console_scripts": ["hybrid-marconi = sglang_hybrid.cli.main:main"],
    },
)
