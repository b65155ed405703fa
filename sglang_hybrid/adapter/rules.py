"""What a refusal is: which records it meets, and the line that the user sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sglang_hybrid.adapter.record import CACHE_NAME

_CHOOSE = f"or leave out --cache {CACHE_NAME}"


@dataclass(frozen=True)
class Rule:
    """One refusal.

    Attributes:
        fields: fields of `ServerArgs` that the rule reads.
        refused: whether a record, or a view of it, is refused.
        value: the offending flag with its value, for the message.
        why: what stands in the way, for the message and the table of `support`.
        allowed: what is allowed instead.
        advice: what the user should do.
        stage: whether it reads what the user gave, what SGLang resolved, or either.
    """

    fields: tuple[str, ...]
    refused: Callable[[Any], bool]
    value: Callable[[Any], str]
    why: str
    allowed: str
    advice: str
    stage: Literal["input", "resolved", "either"] = "either"

    def message(self, view: Any) -> str:
        """One line that names the value, the reason, what is allowed and what to do."""
        return (
            f"{self.value(view)} cannot be used with --cache {CACHE_NAME}: {self.why}; allowed: "
            f"{self.allowed}; {self.advice}, {_CHOOSE}"
        )


def flag_of(field: str) -> str:
    return "--" + field.strip("_").replace("_", "-")


def switch(field: str, why: str, stage: Literal["input", "either"] = "either") -> Rule:
    """A switch that has to stay off."""
    flag = flag_of(field)
    return Rule(
        (field,),
        lambda view: bool(getattr(view, field)),
        lambda view: flag,
        why,
        f"without {flag}",
        f"remove {flag}",
        stage,
    )


def only(field: str, value: Any, why: str, allowed: str | None = None) -> Rule:
    """A field that has to keep one value."""
    flag = flag_of(field)
    return Rule(
        (field,),
        lambda view: getattr(view, field) != value,
        lambda view: f"{flag} {getattr(view, field)}",
        why,
        allowed or (f"without {flag}" if value is None else f"{flag} {value}"),
        f"remove {flag}",
    )


def among(field: str, values: tuple[Any, ...], why: str) -> Rule:
    """A field that has to keep one of some values."""
    flag = flag_of(field)
    return Rule(
        (field,),
        lambda view: getattr(view, field) not in values,
        lambda view: f"{flag} {getattr(view, field)}",
        why,
        f"{flag} {' or '.join(map(str, values))}",
        f"remove {flag}",
    )


def no_buffer(field: str, refused: Callable[[Any], bool], **texts: Any) -> Rule:
    """A rule of the `no_buffer` strategy, which "auto" may resolve to."""
    return Rule(
        ("mamba_radix_cache_strategy", field),
        lambda view: view.mamba_radix_cache_strategy == "no_buffer" and refused(view),
        **texts,
    )


def model(refused: Callable[[Any], bool], what: str, *fields: str, **texts: Any) -> Rule:
    """A rule of the model's configuration, which is read when SGLang has resolved the record."""
    return Rule(
        ("model_path", *fields),
        refused,
        lambda view: f"--model-path {view.model_path} ({_architecture(view)}), {what},",
        **texts,
        stage="resolved",
    )


def chunking_off(view: Any) -> bool:
    return view.chunked_prefill_size is not None and view.chunked_prefill_size <= 0


def without_ssm_layers(view: Any) -> bool:
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    return not uses_ssm_state(_config(view))


def with_sliding_windows(view: Any) -> bool:
    return bool(_config(view).is_hybrid_swa) and not view.disable_hybrid_swa_memory


def _config(view: Any) -> Any:
    from sglang.srt.arg_groups.overrides import model_config_of

    return model_config_of(view)


def _architecture(view: Any) -> str:
    names = _config(view).hf_config.architectures or ["unknown"]
    return str(names[0])
