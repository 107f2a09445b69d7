"""What of a request is read and put right where a round gives it several tokens."""

from __future__ import annotations

from sglang_adaptive_spec.contract.symbols import Kind, Symbol, of

HOOK, OVERRIDE, CALL, READ, WRITE = Kind

REQUESTS: tuple[Symbol, ...] = (
    # -- where an answer ends (ends.py) --
    *of(
        "sglang.srt.managers.scheduler_components.output_streamer:SchedulerOutputStreamer",
        (HOOK, "stream_output", "cut what lies behind the end of an answer", "self, reqs"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (READ, "finished_len", "know where the answer ends"),
        (WRITE, "reasoning_tokens", "count none behind the end"),
        (WRITE, "output_ids", "let the next turn of a session begin with the answer"),
        (READ, "origin_input_ids", "know up to which token KV is written"),
        (READ, "session", "know whether another turn may follow"),
    ),
    *of(
        "sglang.srt.session.session_controller:Session",
        (READ, "session_id", "find the session's KV"),
    ),
    *of(
        "sglang.srt.session.streaming_session:StreamingSession",
        (HOOK, "try_cache_finished_req", "keep only KV that was written", "self, req"),
        (READ, "slots", "find the session's KV"),
    ),
    *of(
        "sglang.srt.session.streaming_session:SessionSlot",
        (READ, "kv", "correct how much of it is there"),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:ReqKvInfo",
        (WRITE, "kv_committed_len", "know the context; keep only KV that was written"),
        (READ, "cache_protected_len", "never fall behind what the cache holds"),
    ),
    # -- what plain decoding does to every token (exact.py) --
    *of(
        "sglang.srt.managers.scheduler:Scheduler",
        (
            HOOK,
            "_add_request_to_queue",
            "refuse what no round could serve exactly",
            "self, req, is_retracted",
        ),
    ),
    *of(
        "sglang.srt.managers.schedule_batch:Req",
        (READ, "custom_logit_processor", "know whether zero steps are needed"),
        (READ, "to_finish", "leave requests alone that the host refused"),
        (CALL, "set_finish_with_abort", "refuse with a sentence", "self, error_msg"),
    ),
    *of(
        "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo",
        (READ, "need_min_p_sampling", "know whether zero steps are needed"),
        (READ, "need_top_k_sampling", "know whether zero steps are needed"),
        (READ, "need_top_p_sampling", "know whether zero steps are needed"),
    ),
    *of(
        "sglang.srt.sampling.sampling_params:SamplingParams",
        (READ, "frequency_penalty", "know whether zero steps are needed"),
        (READ, "presence_penalty", "know whether zero steps are needed"),
        (READ, "repetition_penalty", "know whether zero steps are needed"),
        (READ, "min_new_tokens", "know whether zero steps are needed"),
        (READ, "min_p", "know whether zero steps are needed"),
        (READ, "top_k", "know whether zero steps are needed"),
        (READ, "top_p", "know whether zero steps are needed"),
    ),
    *of(
        "sglang.srt.arg_groups.fields.exec_:ExecFeatures",
        (READ, "_NS_PATH", "reach these settings as get_exec().features"),
        (READ, "enable_custom_logit_processor", "warn where requests with one are refused"),
    ),
    *of(
        "sglang.srt.sampling.sampling_params",
        (READ, "TOP_K_ALL", "know whether top-k cuts anything"),
    ),
)
