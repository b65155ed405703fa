"""Features that are refused, and the flags that only shape them."""

from __future__ import annotations

from sglang_hybrid.adapter.support.row import Row, refused

REFUSED: tuple[Row, ...] = (
    refused(
        "pipeline parallelism",
        "--pp-size 2",
        "pp_max_micro_batch_size pp_async_batch_depth enable_dynamic_chunking",
    ),
    refused("decode context parallelism", "--dcp-size 2", "dcp_comm_backend dcp_replicate_q_proj"),
    refused(
        "attention context parallelism",
        "--attn-cp-size 2",
        "enable_cp_decode_attn_tp enable_cp_tp_group_sharing enable_dsa_cache_layer_split",
    ),
    refused("prefill context parallelism", "--enable-prefill-cp", "cp_strategy"),
    refused(
        "elastic expert parallelism",
        "--elastic-ep-backend mooncake",
        "ep_join_mode "
        "ep_join_rank_offset elastic_ep_initial_size max_ep_size elastic_ep_scale_timeout",
    ),
    refused(
        "attention data parallelism",
        "--enable-dp-attention",
        "enable_dp_attention_local_control_broadcast enable_dp_lm_head "
        "enable_tp_lm_head_all_to_all",
    ),
    refused("attention data parallelism, by its size", "--attn-dp-size 2"),
    refused("distributed weights", "--dwdp-size 2"),
    refused("two-batch overlap", "--enable-two-batch-overlap", "tbo_token_distribution_threshold"),
    refused("KV sharding", "--enable-kv-cache-sharding"),
    refused("Ray", "--use-ray"),
    refused("devices but CUDA and the CPU platform", "--device xpu"),
    refused("PD multiplexing", "--enable-pdmux", "pdmux_config_path sm_group_num"),
    refused("streaming sessions", "--enable-streaming-session"),
    refused("session radix cache", "--enable-session-radix-cache"),
    refused("models of transformers", "--model-impl transformers"),
    refused("encoder only", "--encoder-only"),
    refused(
        "diffusion language models",
        "--dllm-algorithm LowConfidence",
        "dllm_algorithm_config dllm_fdfo",
    ),
    refused("no prefix cache", "--disable-radix-cache"),
    refused("prefill without KV", "--prefill-only-disable-kv-cache"),
    refused("multi-item scoring", "--enable-mis"),
    refused(
        "storage behind HiCache",
        "--hicache-storage-backend file",
        "hicache_storage_prefetch_policy hicache_storage_backend_extra_config "
        "hicache_storage_prefetch_retry_poll_interval hicache_storage_prefetch_retry_max_attempts",
    ),
    refused("LMCache", "--enable-lmcache", "lmcache_config_file"),
    refused("FlexKV", "--enable-flexkv", "flexkv_config_file"),
    refused(
        "external linker",
        "--enable-unified-cache-external-linker",
        "enable_linker_mla_dedup "
        "unified_cache_external_linker_backend unified_cache_external_linker_config",
    ),
    refused("HiSparse", "--enable-hisparse", "hisparse_config"),
    refused("int8 checkpoints", "--enable-int8-mamba-checkpoint", "int8_mamba_ckpt_size"),
    refused("ReplaySSM", "--enable-linear-replayssm", "linear_replayssm_cache_len"),
    refused("ReplaySSM while verifying drafts", "--enable-linear-replayssm-spec"),
    refused("cap of states per path", "--mamba-max-states-per-path 4"),
    refused(
        "SGLang's eviction policies",
        "--radix-eviction-policy lfu",
        "_radix_eviction_policy_explicitly_set",
    ),
    refused("their configuration", '--radix-eviction-policy-config {"a":1}'),
    refused("disaggregation", "--disaggregation-mode prefill"),
    refused("speculative decoding", "--speculative-algorithm NGRAM", "linear_attn_verify_backend"),
    refused("decoupled speculation", "--decoupled-spec-role drafter"),
    refused("sliding windows beside states", field="disable_hybrid_swa_memory"),
    refused(
        "models whose states SGLang keeps in no prefix cache",
        field="uses_mamba_radix_cache",
        tests="unit/test_launcher.py::test_model_without_ssm_layers",
    ),
)
