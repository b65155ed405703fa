"""Fields of SGLang's `ServerArgs` that were looked at and touch no prefix cache.

Those that do have a row in `support`. A field of another SGLang in neither is reported by
`hybrid-marconi doctor`, and fails a test until somebody has read what it does.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


INDEPENDENT: dict[str, tuple[str, ...]] = {
    "which weights are loaded, and how": _names("""
        checkpoint_engine_wait_weights_before_ready context_length custom_weight_loader
        decrypted_config_file decrypted_draft_config_file delete_ckpt_after_loading
        download_dir engine_info_bootstrap_port json_model_override_args load_format
        model_checksum model_config_parser model_loader_extra_config model_path
        modelexpress_config modelopt_checkpoint_restore_path modelopt_checkpoint_save_path
        modelopt_export_path modelopt_quant qsa_indexer_dtype quantization
        quantize_and_serve remote_instance_weight_loader_backend
        remote_instance_weight_loader_seed_instance_ip
        remote_instance_weight_loader_seed_instance_service_port
        remote_instance_weight_loader_send_weights_group_ports
        remote_instance_weight_loader_start_seed_via_transfer_engine revision
        rl_quant_profile startup_weight_load_mode trust_remote_code weight_cache_mode
        weight_cache_socket weight_cache_timeout weight_loader_disable_mmap
        weight_loader_drop_cache_after_load weight_loader_prefetch_checkpoints
        weight_loader_prefetch_num_threads
    """),
    "HTTP, tokenizers and templates, before and after the scheduler": _names("""
        admin_api_key allow_auto_truncate api_key asr_max_buffer_seconds
        asr_max_concurrent_sessions batch_notify_size chat_template completion_template
        constrained_json_disable_any_whitespace constrained_json_max_whitespace_cnt
        constrained_json_whitespace_pattern default_chat_template_kwargs
        detokenizer_worker_num disable_tokenizer_batch_decode
        dynamic_batch_tokenizer_batch_size dynamic_batch_tokenizer_batch_timeout
        enable_cache_report enable_dynamic_batch_tokenizer enable_http2
        enable_http_worker_reuseport enable_response_store enable_ssl_refresh
        enable_strict_thinking enable_tokenizer_batch_encode fastapi_root_path
        file_storage_path grpc_mode grpc_port grpc_response_timeout_secs grpc_worker_threads
        hf_chat_template_name host http2_initial_connection_window_size
        http2_max_concurrent_streams incremental_streaming_output port
        preferred_sampling_params reasoning_parser return_input_ids return_output_ids
        sampling_defaults served_model_name sidecar sidecar_args skip_server_warmup
        smg_grpc_mode ssl_ca_certs ssl_certfile ssl_keyfile ssl_keyfile_password
        stream_interval stream_response_default_include_usage tokenizer_backend
        tokenizer_mode tokenizer_path tokenizer_worker_num tool_call_parser tool_server
        trust_request_chat_template warmups weight_version
    """),
    "how images reach the model; their place in a prompt is a hash": _names("""
        allowed_media_domains disable_fast_image_processor
        enable_broadcast_mm_inputs_process enable_mm_global_cache enable_prefix_mm_cache
        image_processor_backend limit_mm_data_per_request media_url_max_file_size_mb
        mm_attention_backend mm_enable_dp_encoder mm_feature_transport
        mm_global_cache_backend mm_io_worker_num mm_preprocess_cache_size_mb
        mm_process_config mm_processor_worker_num trust_mm_content_hashes
    """),
    "logs, metrics, traces, dumps": _names("""
        bucket_e2e_request_latency bucket_inter_token_latency bucket_time_to_first_token
        crash_dump_folder debug_tensor_dump_input_file debug_tensor_dump_layers
        debug_tensor_dump_output_folder decode_log_interval enable_forward_pass_metrics
        enable_metrics enable_metrics_for_all_schedulers enable_mfu_metrics
        enable_request_time_stats_logging enable_trace export_metrics_to_file
        export_metrics_to_file_dir extra_metric_labels forward_hooks
        forward_pass_metrics_ipc_name forward_pass_metrics_worker_id
        gc_warning_threshold_secs generation_tokens_buckets kv_canary kv_canary_real_data
        kv_canary_sweep_interval load_publish_endpoint load_snapshot_publish_interval
        log_level log_level_http log_requests log_requests_format log_requests_level
        log_requests_target msprobe_dump_config otlp_service_name otlp_traces_endpoint
        prompt_tokens_buckets show_time_cost smg_http_sidecar_port stat_loggers
        tokenizer_metrics_allowed_custom_labels tokenizer_metrics_custom_labels_header
        trace_modules uvicorn_access_log_exclude_prefixes
    """),
    "processes, devices and timeouts": _names("""
        base_gpu_id custom_sigquit_handler gc_threshold gpu_id_step mlx_enable_sampling
        numa_node random_seed sleep_on_idle soft_watchdog_timeout watchdog_timeout
    """),
    "what is sampled and returned": _names("""
        aux_hidden_state_capture disable_outlines_disk_cache enable_custom_logit_processor
        enable_decoder_swa_bounded_replay enable_draft_weights_cpu_backup
        enable_encoder_swa_bounded_replay enable_fp32_lm_head
        enable_return_aux_hidden_states enable_return_hidden_states
        enable_return_indexer_topk enable_return_routed_experts enable_tf32_matmul
        enable_watermark return_aux_hidden_state_layer_ids return_hidden_states_mode
        sampling_mask_max_tokens watermark_config watermark_context_window
        watermark_default_enabled watermark_enforce_all watermark_key watermark_key_b
        watermark_max_probability watermark_mixing_probability
    """),
    "settings of flags in the table, or of pools that hybrid models lack": _names("""
        _swa_full_tokens_ratio_explicitly_set c128_page_size disable_chunked_prefix_cache
        prefill_delayer_forward_passes_buckets prefill_delayer_max_delay_ms
        prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
        prefill_delayer_token_usage_low_watermark prefill_delayer_wait_seconds_buckets
        swa_full_tokens_ratio swa_prefix_tails
    """),
    "how ranks talk, and how layers without states are split": _names("""
        disable_attn_tp_gather dist_init_addr dist_timeout enable_attn_tp_input_scattered
        enable_dense_mlp_attn_tp enable_layernorm_sp enable_megamoe_for_layernorm_sp
        enable_p2p_check enable_shared_experts_attn_tp gated_launch_port nccl_port
        shared_experts_tp_size
    """),
    "kernels of layers without states, and of sampling": _names("""
        bf16_gemm_backend disable_flashinfer_autotune dsa_decode_backend
        dsa_paged_mqa_logits_backend dsa_prefill_backend dsa_topk_backend dsa_triton_union
        dsv4_attn_backend dsv4_prefill_backend enable_amd_monokernel
        enable_deepseek_v4_fp4_indexer enable_dsa_fused_indexer enable_fused_qk_norm_rope
        enable_lean_attention enable_nvidia_megakernel
        enable_precise_embedding_interpolation flashinfer_autotune_skip_ops
        flashinfer_mla_disable_ragged fp4_gemm_runner_backend fp8_gemm_runner_backend
        grammar_backend sampling_backend triton_attention_num_kv_splits
        triton_attention_reduce_in_fp32 triton_attention_split_tile_size
    """),
    "sizes and debugging of graphs": _names("""
        cuda_graph_bs_decode cuda_graph_bs_prefill cuda_graph_max_bs_decode
        cuda_graph_max_bs_prefill cuda_graph_max_seq_len_prefill
        cuda_graph_prefill_max_context disable_cuda_graph_padding enable_cudagraph_gc
        enable_profile_cuda_graph enable_torch_compile_debug_mode
    """),
    "collectives": _names("""
        boundary_reduction disable_aiter_allreduce_fusion_in_decode
        disable_aiter_allreduce_fusion_in_prefill disable_custom_all_reduce
        enable_aiter_allreduce_fusion enable_flashinfer_allreduce_fusion
        enable_layerwise_nvtx_marker enable_mscclpp enable_nccl_nvls
        enable_quant_communications enable_scattered_sconv enable_symm_mem
        enable_torch_symm_mem enforce_disable_flashinfer_allreduce_fusion
        flashinfer_allreduce_fusion_backend pre_warm_nccl
    """),
    "experts": _names("""
        deepep_config deepep_dispatcher_output_dtype deepep_mode deepep_v2_mode
        disable_flashinfer_cutlass_moe_fp4_allgather disable_shared_experts_fusion
        enable_fused_moe_sum_all_reduce enable_paged_experts enable_w4a4_mxfp4_megamoe
        enable_waterfill enforce_shared_experts_fusion ep_dispatch_algorithm eplb_algorithm
        eplb_min_rebalancing_utilization_threshold eplb_rebalance_layers_per_chunk
        eplb_rebalance_num_iterations expert_balancedness_report_mode
        expert_distribution_recorder_buffer_size expert_distribution_recorder_mode
        flashinfer_a2a_dispatch_type flashinfer_mxfp4_moe_precision fuseep_mode
        init_expert_location kt_cpuinfer kt_max_deferred_experts_per_token kt_method
        kt_num_gpu_experts kt_threadpool_count kt_weight_path mooncake_ib_device
        paged_experts_num_resident
    """),
    "where weights are kept": _names("""
        cpu_offload_gb offload_group_size offload_mode offload_num_in_group
        offload_prefetch_step ple_offload_backend ple_offload_dir ple_offload_embedding
    """),
    "kernels and limits of adapters": _names("""
        experts_shared_outer_loras lora_strict_loading lora_target_modules
        lora_use_virtual_experts max_lora_chunk_size max_lora_rank
    """),
    "only with speculative decoding, which is refused": _names("""
        _speculative_draft_quantization_explicitly_set enable_multi_layer_eagle
        spec_trace_dir speculative_accept_threshold_acc speculative_accept_threshold_single
        speculative_adaptive speculative_adaptive_config speculative_attention_mode
        speculative_boundary_reduction speculative_dflash_block_size
        speculative_domino_candidate_pool_size speculative_draft_attention_backend
        speculative_draft_kv_cache_dtype speculative_draft_load_format
        speculative_draft_model_path speculative_draft_model_quantization
        speculative_draft_model_revision speculative_draft_sink_size
        speculative_draft_window_size speculative_dsa_topk_backend
        speculative_dspark_align_verify_tokens_to_graph_tier speculative_dspark_block_size
        speculative_dspark_confidence_sts_path speculative_dspark_sps_table_path
        speculative_eagle_topk speculative_enable_w4a4_mxfp4_megamoe
        speculative_moe_a2a_backend speculative_moe_runner_backend
        speculative_ngram_capacity speculative_ngram_external_corpus_max_tokens
        speculative_ngram_external_corpus_path speculative_ngram_external_sam_budget
        speculative_ngram_match_type speculative_ngram_max_bfs_breadth
        speculative_ngram_max_trie_depth speculative_ngram_min_bfs_breadth
        speculative_num_draft_tokens speculative_num_steps speculative_token_map
        speculative_use_block_verification speculative_use_rejection_sampling uno_lora_path
    """),
    "only with disaggregation or an encoder, which are refused or outside the scheduler": _names("""
        decoupled_spec_bind_endpoint decoupled_spec_connect_endpoints decoupled_spec_rank
        disaggregation_bootstrap_port disaggregation_decode_allocation_policy
        disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_enable_radix_cache disaggregation_decode_extra_slots
        disaggregation_decode_host_receive_threshold disaggregation_decode_polling_interval
        disaggregation_decode_retraction_backup disaggregation_enable_kv_checksum
        disaggregation_ib_device disaggregation_transfer_backend
        enable_adaptive_dispatch_to_encoder enable_pd_role_switch encoder_bootstrap_port
        encoder_register_urls encoder_transfer_backend encoder_urls
        num_reserved_decode_tokens optimistic_prefill_attempts
    """),
}
"""Why, and which."""
