"""What the launcher accepts and refuses before weights load, over real command lines."""

import re

import pytest
from launching import CACHE, run_cases
from tiny_models import write_attention_only, write_hybrid, write_hybrid_without_ssm

CHUNK = '{"branch_checkpoint": "chunk"}'
DETERMINISTIC = ("--enable-deterministic-inference", "--attention-backend")

# Command line after the model: parts of the one line that the user sees.
REFUSED = {
    ("--cache", "hybrid-marcony"): ["'hybrid-marcony'", "allowed: ", "hybrid-marconi", "correct"],
    ("--radix-cache-backend", "nothing"): ["'nothing'", "allowed: ", "hybrid-marconi"],
    ("--cache", ""): ["--cache ''", "allowed: "],
    ("--cache-config", "{}"): ["--cache-config is given", "--cache hybrid-marconi"],
    (*CACHE, "--cache-config", '{"policy": "x"}'): ['policy = "x"', "allowed: ", "correct it"],
    (*CACHE, "--cache-config", '{"ghost_forks": 1}'): ["ghost_forks = 1", "true, false"],
    (*CACHE, "--cache-config", '{"tuner": "bootstrap"}'): ['policy "auto"', "remove tuner"],
    (*CACHE, "--cache-config", "{"): ["not valid JSON", "check quotes"],
    (*CACHE, "--cache-config", '{"alpha": NaN}'): ["alpha = NaN", "allowed: a number from 0"],
    (*CACHE, "--radix-eviction-policy", "lru"): ["--radix-eviction-policy lru", "--cache-config"],
    (*CACHE, "--radix-eviction-policy=slru"): ["--radix-eviction-policy slru", "--cache-config"],
    (*CACHE, "--radix-eviction-policy-config", '{"a": 1}'): ["--radix-eviction-policy-config"],
    (*CACHE, "--disable-radix-cache"): ["--disable-radix-cache"],
    (*CACHE, "--enable-hierarchical-cache", "--hicache-storage-backend", "file"): [
        "--hicache-storage-backend file",
        "the host tier alone",
    ],
    (*CACHE, "--enable-lmcache"): ["--enable-lmcache"],
    (*CACHE, "--enable-flexkv"): ["--enable-flexkv"],
    (*CACHE, "--enable-unified-cache-external-linker"): ["--enable-unified-cache-external-linker"],
    (*CACHE, "--enable-session-radix-cache"): ["--enable-session-radix-cache"],
    (*CACHE, "--enable-streaming-session"): ["--enable-streaming-session"],
    (*CACHE, "--enable-int8-mamba-checkpoint"): ["--enable-int8-mamba-checkpoint"],
    (*CACHE, "--enable-kv-cache-sharding"): ["--enable-kv-cache-sharding"],
    (*CACHE, "--enable-unified-memory", "--enable-hierarchical-cache"): [
        "--enable-unified-memory with --enable-hierarchical-cache",
        "either of them alone",
    ],
    (*CACHE, "--enable-hisparse"): ["--enable-hisparse"],
    (*CACHE, "--enable-pdmux"): ["--enable-pdmux"],
    (*CACHE, "--enable-linear-replayssm"): ["--enable-linear-replayssm"],
    (*CACHE, "--encoder-only"): ["--encoder-only"],
    (*CACHE, "--use-ray"): ["--use-ray"],
    (*CACHE, "--dcp-size", "2"): ["--dcp-size 2", "--dcp-size 1"],
    (*CACHE, "--pp-size", "2"): ["--pp-size 2", "--pp-size 1"],
    (*CACHE, "--mamba-max-states-per-path", "4"): ["--mamba-max-states-per-path 4"],
    (*CACHE, "--disaggregation-mode", "prefill"): ["--disaggregation-mode prefill"],
    (*CACHE, "--speculative-algorithm", "NGRAM"): ["--speculative-algorithm NGRAM"],
    (*CACHE, "--dllm-algorithm", "LowConfidence"): ["--dllm-algorithm LowConfidence"],
    (*CACHE, "--mamba-radix-cache-strategy", "no_buffer", "--chunked-prefill-size", "-1"): [
        "--chunked-prefill-size -1",
        "a positive chunk size",
    ],
    (*CACHE, "--disable-overlap-schedule", "--chunked-prefill-size", "-1"): [
        "--chunked-prefill-size -1",
        "no_buffer",
    ],
    (*CACHE, "--mamba-radix-cache-strategy", "no_buffer", "--page-size", "64"): [
        "--page-size 64",
        "--page-size 1",
    ],
    (*CACHE, "--mamba-radix-cache-strategy", "no_buffer"): [
        "no_buffer with the overlap schedule",
        "--disable-overlap-schedule",
    ],
    (*CACHE, "--disable-overlap-schedule", "--cache-config", CHUNK): [
        'branch_checkpoint = "chunk"',
        "no_buffer",
        'allowed: "exact", "split"',
    ],
    (*CACHE, "--mamba-track-interval", "128"): [
        "--mamba-track-interval 128",
        '"exact"',
        "without --mamba-track-interval",
    ],
    (*CACHE, "--chunked-prefill-size", "-1", "--cache-config", '{"branch_checkpoint": "split"}'): [
        "--chunked-prefill-size -1",
        '"split"',
        "a positive chunk size",
    ],
    (*CACHE, "--mamba-radix-cache-strategy", "extra_buffer", "--page-size", "48"): [
        "SGLang refuses",
        "mamba_track_interval % view.page_size == 0",
    ],
}

ENGINE_REFUSED = [
    ({"cache_config": {"policy": "x"}}, 'policy = "x"'),
    ({"cache_config": "{"}, "not valid JSON"),
    ({"radix_eviction_policy": "lru"}, "--radix-eviction-policy lru"),
    ({"pp_size": 2}, "--pp-size 2"),
    ({"radix_cache_backend": None, "cache_config": {}}, "--cache-config is given"),
    ({"radix_cache_backend": "nothing"}, "'nothing'"),
]


def named_cases(folder):
    """Every case of this file by name; they share one process."""
    hybrid = write_hybrid(folder / "hybrid")
    llama = write_attention_only(folder / "llama")
    granite = write_hybrid_without_ssm(folder / "granite")
    yaml = folder / "flags.yaml"
    yaml.write_text("cache: hybrid-marconi\ncache-config:\n  policy: marconi\n  alpha: 3\n")
    model = ["--model-path", hybrid]
    ours = [*model, *CACHE]
    chunk = [*ours, "--cache-config", CHUNK]
    engine = {"model_path": hybrid, "radix_cache_backend": "hybrid-marconi"}
    cases = {flags: {"argv": [*model, *flags]} for flags in REFUSED}
    cases |= {
        f"engine {index}": {"engine": {**engine, **keywords}}
        for index, (keywords, _) in enumerate(ENGINE_REFUSED)
    }
    cases |= {
        "llama": {"argv": ["--model-path", llama, *CACHE]},
        "llama extra_buffer": {
            "argv": ["--model-path", llama, *CACHE, "--mamba-radix-cache-strategy", "extra_buffer"]
        },
        "granite": {"argv": ["--model-path", granite, *CACHE]},
        "rust": {"argv": ours, "env": {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust"}},
        "python": {"argv": ours, "env": {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}},
        "ours": {"argv": ours},
        "backend": {"argv": [*model, "--radix-cache-backend", "hybrid-marconi"]},
        "config": {"argv": [*ours, "--cache-config", '{"policy": "marconi", "alpha": 2}']},
        "deterministic": {"argv": [*ours, *DETERMINISTIC, "triton"]},
        "deterministic chunk": {"argv": [*chunk, *DETERMINISTIC, "triton"]},
        "deterministic without cache": {"argv": [*chunk, *DETERMINISTIC, "flashinfer"]},
        "yaml": {"argv": [*model, "--config", str(yaml)]},
        "no_buffer": {"argv": [*ours, "--disable-overlap-schedule"]},
        "chunk": {"argv": chunk},
        "chunk page": {"argv": [*chunk, "--page-size", "128"]},
        "chunk interval": {"argv": [*chunk, "--mamba-track-interval", "256"]},
        "engine": {"engine": {**engine, "cache_config": {"policy": "lru"}}},
        "engine interval": {
            "engine": {**engine, "cache_config": CHUNK, "mamba_track_interval": 256}
        },
        "stock": {"argv": model},
        "stock interval": {"argv": [*model, "--mamba-track-interval", "512"]},
        "stock version": {"argv": model, "sabotage": "version"},
        "stock hook": {"argv": model, "sabotage": "hook"},
        "version": {"argv": ours, "sabotage": "version"},
        "version allowed": {
            "argv": ours,
            "sabotage": "version",
            "env": {"SGLANG_HYBRID_ALLOW_UNSUPPORTED": "1"},
        },
        "hook": {"argv": ours, "sabotage": "hook"},
        "name": {"argv": ours, "sabotage": "name"},
    }
    return cases


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    cases = named_cases(tmp_path_factory.mktemp("models"))
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


def assert_refused(outcome, parts, kind="SystemExit"):
    assert outcome["kind"] == kind, outcome
    message = outcome["message"]
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert re.search("allowed( keys)?: ", message)
    if kind == "SystemExit":
        assert message.startswith("sglang-hybrid: error: ")
        assert outcome["code"] == message  # a text is printed and means exit status 1


@pytest.mark.parametrize("flags", REFUSED, ids=" ".join)
def test_refused(outcomes, flags):
    assert_refused(outcomes[flags], REFUSED[flags])


@pytest.mark.parametrize("index", range(len(ENGINE_REFUSED)))
def test_engine_raises_instead_of_exiting(outcomes, index):
    assert_refused(outcomes[f"engine {index}"], [ENGINE_REFUSED[index][1]], "ConfigError")


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("llama extra_buffer", "LlamaForCausalLM"),
        ("granite", "GraniteMoeHybridForCausalLM"),
    ],
)
def test_model_without_ssm_layers(outcomes, case, architecture):
    assert_refused(outcomes[case], [architecture, "without SSM layers", "choose such a model"])


def test_deterministic_inference(outcomes):
    parts = ['branch_checkpoint "exact"', "between the chunks of the scan", '"chunk"']
    assert_refused(outcomes["deterministic"], ["--enable-deterministic-inference", *parts])
    assert outcomes["deterministic chunk"]["kind"] == "started"
    parts = ["with --attention-backend flashinfer", "switches the prefix cache off", "fa3"]
    assert_refused(outcomes["deterministic without cache"], parts)


def test_rust_tree_core(outcomes):
    assert_refused(outcomes["rust"], ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=rust", "unset"])
    assert outcomes["python"]["kind"] == "started"


@pytest.mark.parametrize("case", ["ours", "backend"])
def test_defaults_reach_the_other_processes(outcomes, case):
    assert outcomes[case]["validated"]
    assert outcomes[case]["config"]["policy"] == "auto"
    assert outcomes[case]["resolved"]["radix_cache_backend"] == "'hybrid-marconi'"


@pytest.mark.parametrize(
    ("case", "policy", "alpha"),
    [("config", "marconi", 2), ("yaml", "marconi", 3), ("engine", "lru", 0)],
)
def test_config_reaches_the_other_processes(outcomes, case, policy, alpha):
    assert outcomes[case]["config"]["policy"] == policy
    assert outcomes[case]["config"]["alpha"] == alpha


@pytest.mark.parametrize(
    ("case", "strategy", "interval"),
    [
        ("ours", "extra_buffer", 256),
        ("chunk", "extra_buffer", 64),
        ("chunk page", "extra_buffer", 128),
        ("chunk interval", "extra_buffer", 256),
        ("engine interval", "extra_buffer", 256),
        ("no_buffer", "no_buffer", 256),
        ("stock", "extra_buffer", 256),
        ("stock interval", "extra_buffer", 512),
    ],
)
def test_decode_tracks_on_the_checkpoint_grid(outcomes, case, strategy, interval):
    resolved = outcomes[case]["resolved"]
    assert resolved["mamba_radix_cache_strategy"] == repr(strategy)
    assert resolved["mamba_track_interval"] == str(interval)


def test_unsupported_version(outcomes):
    assert_refused(
        outcomes["version"],
        ["sglang 0.5.99", "allowed: 0.5.23", "SGLANG_HYBRID_ALLOW_UNSUPPORTED=1"],
    )
    assert outcomes["version allowed"]["kind"] == "started"


def test_hook_that_is_not_in_place(outcomes):
    assert_refused(outcomes["hook"], ["check_server_args is not in place", "doctor"])


def test_name_that_moved(outcomes):
    outcome = outcomes["name"]
    assert outcome["kind"] == "SystemExit"
    for part in ("0.5.23", "Scheduler.no_such_method", "missing", "expected (self)", "install"):
        assert part in outcome["message"]


@pytest.mark.parametrize("case", ["stock", "stock version", "stock hook"])
def test_stock_server_carries_nothing_of_ours(outcomes, case):
    assert outcomes[case]["kind"] == "started"
    assert "config" not in outcomes[case]


def test_stock_server_is_the_same_without_the_plugin(outcomes, tmp_path):
    model = write_hybrid(tmp_path / "hybrid")
    # The variable also filters platforms; this one keeps the machine's.
    (alone,) = run_cases([{"argv": ["--model-path", model]}], SGLANG_PLUGINS="hybrid_cpu")
    differing = {
        key
        for key, value in outcomes["stock"]["resolved"].items()
        if alone["resolved"][key] != value
    }
    assert differing <= {"model_path", "tokenizer_path", "served_model_name", "random_seed"}
