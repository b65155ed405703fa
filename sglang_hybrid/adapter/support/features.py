"""Features that are served with this cache: tested here, or accepted with a reason."""

from __future__ import annotations

from sglang_hybrid.adapter.support.row import Row, accepted, tested

SERVED: tuple[Row, ...] = (
    # ---- the cache and the way a prefill is cut ----
    tested(
        "strategy, overlap, page size, chunk size",
        "mamba_radix_cache_strategy disable_overlap_schedule page_size chunked_prefill_size "
        "radix_cache_backend",
        "every combination that SGLang serves; `make test` runs a part, `make matrix` all. "
        "no_buffer goes with chunked prefill, pages of one token and no overlap",
        "matrix/test_combinations.py::test_four_prompts_share_a_prefix "
        "matrix/test_combinations.py::test_a_conversation_goes_on_at_its_last_token",
        "--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule",
    ),
    tested(
        "mixed chunks",
        "enable_mixed_chunk",
        "prefills and decodes in one forward",
        "server/test_serving.py::test_mixed_load_in_small_pools_answers_as_without_a_cache",
        "--enable-mixed-chunk",
    ),
    tested(
        "pool sizes",
        "max_total_tokens max_mamba_cache_size mamba_full_memory_ratio mem_fraction_static "
        "max_running_requests",
        "pools too small for the load make requests wait, not fail",
        "server/test_serving.py::test_mixed_load_in_small_pools_answers_as_without_a_cache",
        "--max-mamba-cache-size 20 --max-total-tokens 4096",
    ),
    accepted(
        "unified memory: states and tokens share it",
        "enable_unified_memory enable_page_major_kv_layout",
        "tested on SGLang's pools alone, with every strategy, pages of 1 and 64 tokens and every "
        "branch_checkpoint; not served here, as SGLang refuses the CPU's attention back end with "
        "it. With a host tier refused",
        "cache/test_unified_memory.py::test_a_shared_prefix_hits_though_all_rows_moved "
        "cache/test_unified_memory.py::test_states_make_room_for_kv_and_no_more_than_that "
        "cache/test_machine.py::test_the_cache_agrees_with_the_model",
        "--enable-unified-memory --attention-backend triton",
    ),
    tested(
        "tracking interval",
        "mamba_track_interval",
        "only with branch_checkpoint chunk; otherwise every sequence's end is kept",
        "unit/test_launcher.py::test_decode_tracks_on_the_checkpoint_grid",
    ),
    tested(
        "dtype of states and model",
        "mamba_ssm_dtype dtype",
        "float32 and bfloat16",
        "matrix/test_other_flags.py::test_states_in_bfloat16",
        "--mamba-ssm-dtype bfloat16",
    ),
    accepted(
        "stochastic rounding of states",
        "enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds",
        "a checkpoint is one such state; what decodes from it rounds anew, as without a cache",
    ),
    accepted(
        "dtype of the KV",
        "kv_cache_dtype quantization_param_path prefill_kv_cache_dequant_dtype",
        "a hit reads KV as decode does; quantized KV differs from a cold prefill in any cache",
    ),
    tested(
        "HiCache: a host tier",
        "enable_hierarchical_cache hicache_host_memory_mode hicache_ratio hicache_size "
        "hicache_write_policy hicache_io_backend hicache_mem_layout hicache_host_memory_fraction",
        "demoted checkpoints come back as they were; the host evicts in SGLang's order. Copies "
        "by `direct` with torch here; those of a GPU are SGLang's own",
        "hicache/test_host_tier_server.py::test_a_shared_prefix_comes_back_from_the_host "
        "hicache/test_host_tier_server.py::test_a_conversation_goes_on_from_the_host",
        "--enable-hierarchical-cache --hicache-io-backend direct "
        "--hicache-mem-layout page_first_direct",
    ),
    # ---- parallelism ----
    tested(
        "tensor parallelism",
        "tp_size nnodes node_rank",
        "two ranks under SGLang's consensus checker; more nodes are the same ranks elsewhere",
        "server/test_two_ranks.py::test_two_ranks_tune_and_evict_alike",
        "--tp-size 2",
    ),
    tested(
        "data parallelism",
        "dp_size load_balance_method",
        "every replica has its own cache, tuner, status and metrics",
        "support/test_replicas.py::test_replicas_share_nothing",
        "--dp-size 2",
    ),
    accepted(
        "expert parallelism and MoE back ends",
        "ep_size moe_dp_size moe_dense_tp_size moe_a2a_backend moe_runner_backend "
        "ep_num_redundant_experts enable_eplb enable_single_batch_overlap "
        "enable_elastic_expert_backup",
        "experts work token by token and see neither states nor KV",
    ),
    # ---- scheduling ----
    tested(
        "priorities and preemption",
        "enable_priority_scheduling disable_priority_preemption default_priority_value "
        "abort_on_priority_when_disabled schedule_low_priority_values_first "
        "priority_scheduling_preemption_threshold retraction_policy",
        "a preempted request goes on exactly where it was; its slots are released",
        "support/test_priorities.py::test_a_preempted_request_goes_on_where_it_was",
        "--enable-priority-scheduling --priority-scheduling-preemption-threshold 0",
    ),
    tested(
        "queue limit, failed admission",
        "max_queued_requests",
        "what is refused with 503 holds no slot",
        "support/test_priorities.py::test_what_the_full_queue_refuses_holds_nothing "
        "support/test_sessions.py::test_a_turn_driven_out_of_the_queue_leaves_no_slot_behind",
        "--max-queued-requests 2",
    ),
    tested(
        "scheduling policy",
        "schedule_policy",
        "lpm and fcfs run here; a policy orders the queue and only reads the tree",
        "support/test_replicas.py::test_replicas_share_nothing",
        "--schedule-policy lpm",
    ),
    accepted(
        "pace of prefills",
        "prefill_decode_interval prefill_decode_interval_min_bs max_prefill_tokens "
        "prefill_max_requests schedule_conservativeness num_continuous_decode_steps "
        "scheduler_recv_interval enable_prefill_delayer min_free_slots_delay",
        "they decide when a request is admitted; admission itself is the same",
    ),
    tested(
        "retraction",
        "",
        "SGLang's test switch retracts requests every few steps",
        "matrix/test_other_flags.py::test_retracted_requests",
    ),
    # ---- sessions, tenants, adapters, weights ----
    tested(
        "sessions (/open_session, /close_session)",
        "",
        "turns hit; closing or aborting while a request runs loses no slot",
        "support/test_sessions.py::test_turns_hit_what_the_session_computed "
        "support/test_sessions.py::test_a_session_closed_while_its_request_runs "
        "support/test_sessions.py::test_a_turn_that_is_aborted_while_it_runs",
    ),
    tested(
        "LoRA",
        "enable_lora lora_paths lora_backend max_loras_per_batch enable_lora_overlap_loading "
        "max_loaded_loras lora_eviction_policy lora_drain_wait_threshold",
        "adapters, extra_key and cache_salt separate hits and what is learned from requests; "
        "run with the back end torch_native",
        "support/test_lora.py::test_each_adapter_hits_its_own_prefixes_only "
        "support/test_lora.py::test_tenants_share_nothing "
        "cache/test_wanted.py::test_what_another_namespace_served_is_not_seen",
        "--enable-lora --max-lora-rank 4 --lora-target-modules q_proj",
    ),
    tested(
        "weight updates",
        "",
        "SGLang flushes the cache with them, unless the request says flush_cache false",
        "support/test_weights.py::test_no_hit_on_what_other_weights_computed",
    ),
    accepted(
        "memory saver",
        "enable_memory_saver enable_weights_cpu_backup",
        "SGLang flushes the cache before it releases the pools",
    ),
    tested(
        "KV events",
        "kv_events_config",
        "a follower knows the KV of the tree; evicted states alone are no event",
        "cache/test_kv_events.py::test_a_follower_knows_what_is_cached",
    ),
    tested(
        "--strip-thinking-cache",
        "strip_thinking_cache",
        "no_buffer keeps no state of what is cut off, extra_buffer none beyond it",
        "cache/test_saving.py::test_a_prompt_kept_without_its_answer_has_its_own_state_or_none "
        "cache/test_admission.py::test_a_state_beyond_the_tokens_that_are_kept_is_not_handed_over",
        "--strip-thinking-cache",
    ),
    accepted(
        "no tokenizer",
        "skip_tokenizer_init",
        "then no checkpoint is taken at the end of the system message",
        "unit/test_system_end.py::test_templates_that_do_not_tell_are_left_alone",
        "--skip-tokenizer-init",
    ),
    accepted(
        "input embeddings",
        "",
        "SGLang refuses them while a prefix cache is on",
    ),
    accepted(
        "beam search",
        "",
        "SGLang refuses it for models with states",
    ),
    # ---- models ----
    accepted(
        "multimodal models",
        "enable_multimodal language_only language_model_only",
        "SGLang puts a hash of each image in place of its tokens, before the cache sees them",
    ),
    accepted(
        "embedding and reward models",
        "is_embedding",
        "a request ends with its prefill, as one with max_new_tokens 0 does",
        "server/test_edges.py::test_prompts_shorter_than_the_window",
    ),
    # ---- kernels and graphs ----
    accepted(
        "attention back ends",
        "attention_backend prefill_attention_backend decode_attention_backend",
        "they read and write KV where the pool says; torch_native runs here, and SGLang refuses "
        "trtllm_mha with no_buffer",
    ),
    accepted(
        "linear-attention and Mamba back ends",
        "linear_attn_backend linear_attn_prefill_backend linear_attn_decode_backend mamba_backend",
        "where the prefill's kernel returns no states inside a prompt, prefills are cut instead",
        "server/test_families.py::test_a_shared_prefix_hits_exactly",
    ),
    accepted(
        "CUDA graphs",
        "cuda_graph_config cuda_graph_backend_prefill cuda_graph_backend_decode "
        "disable_prefill_cuda_graph disable_decode_cuda_graph disable_cuda_graph debug_cuda_graph",
        "a prefill replayed from a graph writes no states inside a prompt; these checkpoints are "
        "dropped and counted",
        "cache/test_saving.py::test_what_the_forward_did_not_write_is_not_handed_over",
    ),
    accepted(
        "torch compile",
        "enable_torch_compile torch_compile_max_bs",
        "it compiles decodes, in which nothing of the cache runs",
    ),
    accepted(
        "deterministic inference",
        "enable_deterministic_inference rl_on_policy_target",
        "with branch_checkpoint chunk, whose hits lie between chunks of the scan as SGLang's own "
        "do, and a back end for which SGLang keeps the prefix cache (fa3, fa4, triton); else "
        "refused",
        "unit/test_launcher.py::test_deterministic_inference",
        "--enable-deterministic-inference --attention-backend triton "
        """--cache-config {"branch_checkpoint":"chunk"}""",
    ),
)
