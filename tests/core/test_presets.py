"""Models by name or by file."""

import json

import pytest

from sglang_hybrid.core.costs import ModelCosts
from sglang_hybrid.core.presets import PRESETS, load_model

KNOWN_BYTES = {
    # KV bytes per token and bytes of one checkpoint, by hand from the models' sizes:
    # layers x heads x state, then layers x channels x 3 columns of the convolution.
    "jamba-1.5-mini": (4 * 2 * 8 * 128 * 2, 28 * (8192 * 16 * 4 + 8192 * 3 * 2)),
    "zamba2-7b": (13 * 2 * 32 * 224 * 2, 81 * (7168 * 64 * 4 + (7168 + 256) * 3 * 2)),
    "hymba-1.5b": (17 * 5 * (64 + 128) * 2, 32 * (3200 * 16 * 4 + 3200 * 3 * 2)),
    "nemotron-h-8b": (4 * 2 * 8 * 128 * 2, 24 * (8192 * 128 * 4 + (8192 + 2048) * 3 * 2)),
    "falcon-h1-7b": (44 * 2 * 2 * 128 * 2, 44 * (3072 * 256 * 4 + (3072 + 512) * 3 * 2)),
    "granite-4.0-h-small": (4 * 2 * 8 * 128 * 2, 36 * (8192 * 128 * 4 + (8192 + 256) * 3 * 2)),
    "granite-4.0-h-tiny": (4 * 2 * 4 * 128 * 2, 36 * (3072 * 128 * 4 + (3072 + 256) * 3 * 2)),
    "qwen3-next-80b-a3b": (12 * 2 * 2 * 256 * 2, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
    "kimi-linear-48b-a3b": (7 * (512 + 64) * 2, 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)),
}

PUBLISHED_WEIGHTS = {
    # In 1e9, with input embedding and output head, which are given in weights. Zamba2 7B is
    # not here: it runs the same weights several times.
    "hymba-1.5b": (1.52, 32001 * 1600),
    "nemotron-h-8b": (8.1, 2 * 131072 * 4096),
    "falcon-h1-7b": (7.59, 2 * 130048 * 3072),
}
WINDOW_PRODUCTS = {"hymba-1.5b": 29 * 25 * (64 + 128) * 1024}

PUBLISHED_ACTIVE_WEIGHTS = {
    # In 1e9 and rounded to whole ones; embeddings are left out.
    "jamba-1.5-mini": 12,
    "granite-4.0-h-small": 9,
    "granite-4.0-h-tiny": 1,
    "qwen3-next-80b-a3b": 3,
    "kimi-linear-48b-a3b": 3,
}


def test_every_real_model_has_known_bytes():
    assert set(KNOWN_BYTES) == {name for name in PRESETS if not name.startswith("paper")}


@pytest.mark.parametrize("name", KNOWN_BYTES)
def test_bytes_of_real_models(name):
    model = load_model(name).costs
    assert (model.kv_bytes_per_token, model.state_bytes) == KNOWN_BYTES[name]


@pytest.mark.parametrize("name", PUBLISHED_WEIGHTS)
def test_a_token_costs_two_flops_per_weight(name):
    billions, embeddings = PUBLISHED_WEIGHTS[name]
    products = load_model(name).costs.flops_linear / 2 - WINDOW_PRODUCTS.get(name, 0)
    # The recurrences add a little to the products with weights.
    assert (products + embeddings) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE_WEIGHTS)
def test_a_token_costs_two_flops_per_active_weight(name):
    products = load_model(name).costs.flops_linear / 2
    assert products / 1e9 == pytest.approx(PUBLISHED_ACTIVE_WEIGHTS[name], abs=0.55)


@pytest.mark.parametrize("name", PRESETS)
def test_layers_add_up_to_the_model(name):
    model = load_model(name)
    layers = [group.costs for group in model.layers for _ in range(group.count)]
    assert ModelCosts.of(layers).prefill_flops(1000) == model.costs.prefill_flops(1000)
    assert ModelCosts.of(layers).held_bytes(1000, 1) == model.costs.held_bytes(1000, 1)
    assert all(group.kind for group in model.layers)


@pytest.mark.parametrize("name", PRESETS)
def test_a_file_gives_the_same_as_the_preset(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PRESETS[name].config))
    from_file = load_model(str(tmp_path))
    assert from_file.costs == load_model(name).costs
    assert from_file.layers == load_model(name).layers


@pytest.mark.parametrize("name", ["jamba-1.5-mini", "zamba2-7b", "hymba-1.5b"])
def test_models_that_sglang_cannot_serve_are_marked(name):
    assert any("SGLang 0.5.23" in note for note in load_model(name).notes)


def test_dtypes():
    default = load_model("nemotron-h-8b").costs
    halved = load_model(
        "nemotron-h-8b", kv_dtype="fp8_e4m3", ssm_dtype="bfloat16", conv_dtype="fp8_e4m3"
    ).costs
    assert halved.kv_bytes_per_token * 2 == default.kv_bytes_per_token
    assert halved.state_bytes * 2 == default.state_bytes
    assert halved.flops_linear == default.flops_linear


def test_the_papers_types_are_its_own():
    model = load_model("paper-7b", kv_dtype="fp8_e4m3", ssm_dtype="float32")
    assert model.costs == load_model("paper-7b").costs
    assert any("FP16" in note for note in model.notes)


def test_tensor_parallel_shards():
    whole, half = load_model("nemotron-h-8b").costs, load_model("nemotron-h-8b", tp=2)
    assert half.costs.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert half.costs.state_bytes * 2 == whole.state_bytes
    assert any("one of 2" in note for note in half.notes)
    latent = load_model("kimi-linear-48b-a3b").costs.kv_bytes_per_token
    assert load_model("kimi-linear-48b-a3b", tp=4).costs.kv_bytes_per_token == latent
    assert load_model("paper-7b", tp=4).costs.state_bytes * 4 == 26_787_840


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"name_or_path": "nemotron-h-8"}, r"'nemotron-h-8' .* paper-7b, .*nemotron-h-8b\?"),
        ({"kv_dtype": "float8"}, r"kv_dtype='float8' .* float32, .*mean float\d"),
        ({"ssm_dtype": "int3"}, "ssm_dtype='int3'"),
        ({"tp": 0}, "tp=0"),
        ({"tp": 7}, "falcon-h1-7b: 12 attention heads cannot be divided over 7"),
    ],
)
def test_wrong_arguments_are_named(arguments, problem):
    fields = {"name_or_path": "falcon-h1-7b", **arguments}
    with pytest.raises(ValueError, match=problem):
        load_model(**fields)


def write(tmp_path, preset, **changes):
    fields = {**PRESETS[preset].config, **changes}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: value for key, value in fields.items() if value != "none"}))
    return str(file)


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"model_type": "llama"}, "'llama' is not a known type .* no state to checkpoint"),
        ({"model_type": "falcon_h2"}, r"did you mean falcon_h1\?"),
        ({"mamba_d_state": "none"}, "lacks 'mamba_d_state'"),
        ({"hidden_size": None}, "config.json: "),
        ({"num_attention_heads": 0, "head_dim": "none"}, "num_attention_heads = 0 is not allowed"),
    ],
)
def test_configurations_that_are_not_understood(tmp_path, changes, problem):
    with pytest.raises(ValueError, match=problem):
        load_model(write(tmp_path, "falcon-h1-7b", **changes))


def test_a_layer_type_that_the_family_does_not_have(tmp_path):
    path = write(tmp_path, "granite-4.0-h-tiny", layer_types=["mamba", "novel"])
    with pytest.raises(ValueError, match="'novel' is not known in a model of type"):
        load_model(path)


def test_a_model_of_attention_layers_only_has_nothing_to_checkpoint(tmp_path):
    path = write(tmp_path, "granite-4.0-h-tiny", layer_types=["attention"] * 40)
    with pytest.raises(ValueError, match="no layer has a state"):
        load_model(path)
