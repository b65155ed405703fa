"""Checks of the launcher: everything that can stop the server before weights load."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable
from typing import Any

from sglang_hybrid.adapter import hooks, names, record, serving, validation
from sglang_hybrid.config import SOURCE

logger = logging.getLogger(__name__)


def resolve_once(original: Callable[[Any], None], server_args: Any) -> None:
    """Hook around `ServerArgs.resolve_once`: refuse before SGLang starts to resolve."""
    if not record.is_active(server_args) or getattr(server_args, "_resolution_finished", False):
        original(server_args)
        return
    # Only the names that are needed here: the others import a scheduler, and a wrong
    # flag should be reported at once.
    _check_installation(server_args, names.field_names())
    _refuse(server_args, validation.input_problem(server_args))
    try:
        original(server_args)
    except (AssertionError, ValueError) as error:
        logger.debug("SGLang refused the arguments", exc_info=True)
        record.fail(server_args, _refusal_of_sglang(server_args, error))


def _refusal_of_sglang(server_args: Any, error: Exception) -> str:
    """SGLang's refusal, an assertion or error with a traceback, as one line."""
    from sglang.srt.arg_groups.overrides import resolving_view

    # Some assertions have no text; their condition says what SGLang wants.
    failed = traceback.extract_tb(error.__traceback__)[-1].line
    reason = " ".join((str(error) or failed or type(error).__name__).split()).rstrip(".")
    if problem := validation.explanation(resolving_view(server_args)):
        return f"{problem} (SGLang: {reason})"
    return f"SGLang refuses the arguments ({reason}); allowed: what SGLang serves; correct them"


def check_server_args(_result: None, server_args: Any) -> None:
    """Hook after `ServerArgs.check_server_args`, the last step before processes start.

    Every way to start a server passes here, also those that resolved the record
    before plugins were loaded.
    """
    if not record.is_active(server_args):
        return
    from sglang.srt.arg_groups.overrides import resolving_view

    _check_installation(server_args, names.all_names())
    _refuse(server_args, validation.input_problem(server_args))
    _refuse(server_args, validation.resolved_problem(resolving_view(server_args)))
    _check_where_states_are_kept(server_args)
    serving.register_backend()
    record.update_notes(
        server_args, config=record.config_of(server_args).model_dump(), validated=True
    )


def _check_installation(server_args: Any, touched: tuple[names.Name, ...]) -> None:
    """Refuse an SGLang that is not the one this package was written for."""
    problem = names.version_problem()
    if problem and not names.unsupported_allowed():
        record.fail(server_args, problem)
    if problem:
        logger.warning("sglang-hybrid: %s", problem)
    for problem in (*hooks.problems(hooks.LAUNCH), *names.problems(touched)):
        record.fail(server_args, problem)


def _refuse(server_args: Any, problem: str | None) -> None:
    if problem:
        record.fail(server_args, problem)


def _check_where_states_are_kept(server_args: Any) -> None:
    """Settle with SGLang's flags at which tokens states are kept."""
    from sglang.srt.arg_groups.overrides import mamba_extra_buffer_of, resolving_view

    view = resolving_view(server_args)
    mode = record.config_of(server_args).branch_checkpoint
    is_buffered = mamba_extra_buffer_of(view)
    has_interval = record.explicitly_set(server_args, "mamba_track_interval", 256)
    if mode != "chunk" and view.enable_deterministic_inference:
        record.fail(
            server_args,
            f'--enable-deterministic-inference cannot be used with branch_checkpoint "{mode}" of '
            f"{SOURCE}: a prefill that goes on between the chunks of the scan rounds differently "
            'from one that does not; allowed: "chunk"; set branch_checkpoint to it, or remove '
            "--enable-deterministic-inference",
        )
    if mode == "chunk" and not is_buffered:
        record.fail(
            server_args,
            f'{SOURCE}: branch_checkpoint = "chunk" cannot be used with '
            "--mamba-radix-cache-strategy no_buffer, whose forward keeps no states on a grid; "
            'allowed: "exact", "split"; choose one of them, or the strategy extra_buffer',
        )
    if mode == "split" and view.chunked_prefill_size is not None and view.chunked_prefill_size <= 0:
        record.fail(
            server_args,
            f"--chunked-prefill-size {view.chunked_prefill_size} cannot be used with "
            f'branch_checkpoint "split" of {SOURCE}, which continues prefills in chunks; '
            "allowed: a positive chunk size; remove --chunked-prefill-size, or use "
            'branch_checkpoint "exact"',
        )
    if mode != "chunk" and is_buffered and has_interval:
        record.fail(
            server_args,
            f"--mamba-track-interval {view.mamba_track_interval} has no meaning with "
            f'branch_checkpoint "{mode}", which keeps the end of every sequence; allowed: without '
            f'--mamba-track-interval; remove it, or set branch_checkpoint to "chunk" in {SOURCE}',
        )
    if mode == "chunk" and not has_interval:
        _track_on_checkpoint_grid(server_args, view)


def _track_on_checkpoint_grid(server_args: Any, view: Any) -> None:
    """Let decode keep states at every point where the tree can name one.

    SGLang's default interval is 256 tokens, so that a follow-up turn could lose up to
    255 tokens of the answer.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, mamba_cache_chunk_size

    grid = math.lcm(mamba_cache_chunk_size(server_args), view.page_size)
    if view.mamba_track_interval != grid:
        declare_resolution(server_args, "sglang_hybrid", mamba_track_interval=grid)
