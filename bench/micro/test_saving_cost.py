"""What saving states inside a prefill adds to its forward.

    python -m pytest bench/micro/test_saving_cost.py -s

All variants run the same prompts in turns, round by round in another order, in one thread of
one process, so that other load hits them alike; counted is that thread's time. A ratio is of two
variants in the same round. Besides, the functions that do the saving are timed inside the same
forwards: their share depends less on what else runs than a ratio of two forwards does. All times
are of torch reference operators on the CPU.
"""

import contextlib
import pkgutil
import statistics
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bench.micro.prefills import Prefills
from sglang_hybrid.model.make_model import make_small_model
from sglang_hybrid.model.qwen3_next import make_qwen3_next

MODELS = {"Mamba-2 (small model)": make_small_model, "delta-net (Qwen3-Next)": make_qwen3_next}
TOKEN_IDS = 256


@dataclass(frozen=True)
class Shape:
    """A batch of prompts of one length, and how often each variant runs it."""

    requests: int
    tokens: int
    rounds: int

    def __str__(self):
        return f"{self.requests} x {self.tokens}"


SHAPES = (Shape(1, 1000, 16), Shape(8, 250, 10), Shape(1, 4000, 8))
SHORT = Shape(1, 16, 300)
MAX_HOOKS = 1.01

SAVING = (
    "sglang_hybrid.adapter.forward_saves:ForwardSaves.begin",
    "sglang_hybrid.adapter.forward_saves:ForwardSaves.windows_before",
    "sglang_hybrid.adapter.forward_saves:ForwardSaves.write_layer",
    "sglang_hybrid.adapter.forward_saves:ForwardSaves.copy_ends",
    "sglang_hybrid.adapter.saving_layers:advance_gdn",
    "sglang_hybrid.kernels.ssd_scan:_states_inside",
)
"""What runs only where something is saved; none calls another."""


@dataclass(frozen=True)
class Variant:
    """What a forward saves.

    Attributes:
        inside: checkpoints inside each request, at tokens drawn anew in every round.
        end: whether the state at the prompt's end is copied, too.
        hooked: whether the hooks are in place while the forward runs.
        stock: whether SGLang plans the forward: it saves one state on its grid.
    """

    inside: int = 0
    end: bool = False
    hooked: bool = True
    stock: bool = False


BASE = Variant(hooked=False)
VARIANTS = {
    "not hooked, nothing": BASE,
    "nothing": Variant(),
    "end": Variant(0, end=True),
    "1": Variant(1),
    "1 and end": Variant(1, end=True),
    "2": Variant(2),
    "2 and end": Variant(2, end=True),
    "SGLang's one": Variant(hooked=False, stock=True),
}


class Saving:
    """The thread time spent so far in the functions of `SAVING`."""

    def __init__(self, monkeypatch):
        self.seconds = 0.0
        for name in SAVING:
            path, _, attribute = name.replace(":", ".").rpartition(".")
            owner = pkgutil.resolve_name(path)
            monkeypatch.setattr(owner, attribute, self._timed(getattr(owner, attribute)))

    def _timed(self, call):
        def timed(*args, **kwargs):
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed


@pytest.fixture(scope="module", params=list(MODELS))
def prefills(request, tmp_path_factory):
    loaded = Prefills(MODELS[request.param](tmp_path_factory.mktemp("model")))
    print(f"\n{request.param}")
    yield loaded
    loaded.close()


@pytest.fixture
def saving(monkeypatch):
    return Saving(monkeypatch)


@torch.inference_mode()
def seconds(prefills, variant, prompts, places):
    """Thread time of one forward; checks that it saved what it was to save."""
    batch = prefills.batch(prompts, [each[: variant.inside] for each in places])
    with contextlib.ExitStack() as planning:
        if variant.stock:
            planning.enter_context(prefills.unhooked())
        if not variant.end:
            planning.enter_context(prefills.ends_stay())
        batch.prepare_for_extend()
    saves = batch.__dict__.get("hybrid_saves")
    with contextlib.nullcontext() if variant.hooked else prefills.unhooked():
        start = time.thread_time()
        prefills.forward(batch)
        elapsed = time.thread_time() - start
    assert (saves is not None) == bool(variant.inside or variant.end)
    if saves is not None:
        assert len(saves.plan) == variant.inside * len(prompts)
        assert saves.inside_written == bool(variant.inside) and saves.ends_written == variant.end
    prefills.release(batch)
    return elapsed


def measured(prefills, saving, shape):
    """(seconds, of them saving) of every variant, one per round."""
    rng = np.random.default_rng(0)
    names = list(VARIANTS)
    samples = {name: [] for name in names}
    for number in range(-1, shape.rounds):
        prompts = rng.integers(0, TOKEN_IDS, (shape.requests, shape.tokens)).tolist()
        places = [
            rng.choice(np.arange(1, shape.tokens), 2, replace=False).tolist() for _ in prompts
        ]
        for i in range(len(names)):
            name = names[(number + i) % len(names)]
            saving.seconds = 0.0
            elapsed = seconds(prefills, VARIANTS[name], prompts, places)
            if number >= 0:
                samples[name].append((elapsed, saving.seconds))
    return {name: np.array(pairs) for name, pairs in samples.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_saving_hardly_takes_time_from_a_prefill(prefills, saving, shape):
    samples = measured(prefills, saving, shape)
    base = samples["not hooked, nothing"][:, 0]
    print(f"\n{shape}: {shape.rounds} rounds, {statistics.median(base) * 1e3:.0f} ms unhooked")
    print(f"  {'saved':20} {'ratio of forwards':24} {'fastest':>7}  saving")
    for name, own in samples.items():
        print(f"  {name:20} {text(own, base)}")
    for name in ("not hooked, nothing", "nothing"):
        assert not samples[name][:, 1].any()


def test_hooks_cost_nothing_where_nothing_is_saved(prefills):
    """On short forwards, where the hooks would weigh most."""
    rng, samples = np.random.default_rng(0), {"not hooked, nothing": [], "nothing": []}
    names = list(samples)
    for number in range(SHORT.rounds):
        prompts = rng.integers(0, TOKEN_IDS, (SHORT.requests, SHORT.tokens)).tolist()
        for name in names if number % 2 else reversed(names):
            samples[name].append(seconds(prefills, VARIANTS[name], prompts, [()]))
    base, own = (np.array(samples[name]) for name in names)
    ratio, low, high = median_ratio(own, base)
    print(f"\n{SHORT}: {SHORT.rounds} rounds, {1e3 * np.median(base):.2f} ms unhooked, hooked")
    print(f"  {ratio:.4f} ({low:.4f} to {high:.4f}), {1e6 * np.median(own - base):+.0f} us")
    assert low < MAX_HOOKS


def median_ratio(own, base):
    """The median of the rounds' ratios, and its bootstrap interval of 95 %."""
    ratios, rng = own / base, np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return np.median(ratios), *np.percentile(medians, [2.5, 97.5])


def text(own, base):
    """Ratios of the rounds: median, bootstrap interval, of the fastest; and the share saving."""
    elapsed, saving = own.T
    median, low, high = median_ratio(elapsed, base)
    share = 100 * np.median(saving / (elapsed - saving))
    interval = f"{median:.3f} ({low:.3f} to {high:.3f})"
    return (
        f"{interval:24} {elapsed.min() / base.min():7.3f}  "
        f"{share:5.2f} %  {1e3 * np.median(saving):6.2f} ms"
    )
