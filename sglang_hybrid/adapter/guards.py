"""Parts of the cache whose failure costs hits, never the server.

What such a part raises is logged once and counted, and the part is switched off: from then
on the server does without it, as SGLang does. Parts are switched off for good, because a
part that has failed half-way no longer knows its own state.

Ranks of a replica must decide alike. What runs on the host sees the same operations on
every rank, so that it fails on all of them at once; what fails on the device may fail on
one rank alone, and then ends the server where there are others.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Guard:
    """One part: on until it has failed too often. As a context, it takes what is raised.

    Args:
        name: of the part, in logs and metrics.
        without: what the server does without the part, for the log.
        is_strict: whether failures are raised, as tests want it.
        tolerated: failures that leave the part on.
        ranks: tensor-parallel ranks of the replica.

    Attributes:
        failures: so far.
        error: the first one, as text.
        when_off: called when the part is switched off.
    """

    def __init__(
        self,
        name: str,
        without: str,
        *,
        is_strict: bool = False,
        tolerated: int = 0,
        ranks: int = 1,
    ) -> None:
        self.name, self._without = name, without
        self._is_strict, self._tolerated, self._ranks = is_strict, tolerated, ranks
        self.is_on = True
        self.failures = 0
        self.error = ""
        self.when_off: Callable[[], None] = lambda: None

    def failed(self, error: Exception, *, on_device: bool = False) -> None:
        """The part raised ``error``.

        Args:
            on_device: whether other ranks may not have seen it.

        Raises:
            Exception: ``error`` itself, where ranks could part or failures are not tolerated.
        """
        if on_device and self._ranks > 1:
            error.add_note(
                f"hybrid-marconi: {self.name} failed on one of {self._ranks} ranks, which must not "
                "go on with different caches"
            )
            raise error
        if self._is_strict:
            raise error
        self.failures += 1
        if self.failures == 1:
            self.error = f"{type(error).__name__}: {error}"
            logger.error("hybrid-marconi: its %s failed", self.name, exc_info=error)
        if self.is_on and self.failures > self._tolerated:
            self.is_on = False
            logger.error(
                "hybrid-marconi: its %s is off until the server is restarted; %s.",
                self.name,
                self._without,
            )
            try:
                self.when_off()
            except Exception:
                logger.exception("hybrid-marconi: its %s could not be taken down", self.name)

    @contextmanager
    def on_device(self, give_up: Callable[[], None]) -> Iterator[None]:
        """A context for what other ranks may not see fail; then ``give_up`` is called."""
        try:
            yield
        except Exception as error:
            give_up()
            self.failed(error, on_device=True)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.failed(error)
        return True

    def status(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"is_on": self.is_on, "failures": self.failures, "error": self.error}


@dataclass(frozen=True)
class Guards:
    """Those of one cache.

    Attributes:
        order: which checkpoints and leaves go first.
        saving: states saved inside prefills and before stop tokens, and their copies.
        history: wishes for checkpoints beside branch points, explanations.
        tuning: decisions about policy and alpha, put in force on every rank.
        lead: what only the rank that reads requests does: the record, the shadow caches.
    """

    order: Guard
    saving: Guard
    history: Guard
    tuning: Guard
    lead: Guard

    @classmethod
    def of(cls, *, is_strict: bool, ranks: int) -> Guards:
        """Of a cache on one of ``ranks`` tensor-parallel ranks."""
        make = functools.partial(Guard, is_strict=is_strict, ranks=ranks)
        return cls(
            order=make("eviction order", "victims are SGLang's, the least recently used"),
            # A copy may fail for want of memory, and the next one succeed.
            saving=make("saving of states", "prefills save no states inside", tolerated=2),
            history=make("history", "checkpoints are kept at branch points and ends only"),
            tuning=make("tuning", "the policy in force stays"),
            lead=make("record of requests", "nothing is recorded, and the policy in force stays"),
        )

    def status(self) -> dict[str, dict[str, Any]]:
        """By part, ready for JSON."""
        return {part: getattr(self, part).status() for part in PARTS}


PARTS = tuple(field.name for field in fields(Guards))
"""Names of the parts, as metrics have them."""


def guarded(
    otherwise: Callable[..., Any], by: str = "guard"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of methods of an object whose guard watches them.

    Args:
        otherwise: called instead once the part is off, with the same arguments.
        by: attribute of the object that is its guard.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            guard: Guard = getattr(self, by)
            if guard.is_on:
                try:
                    result = method(self, *args, **kwargs)
                    # Off by now if a method that it called has failed.
                    if guard.is_on:
                        return result
                except Exception as error:
                    guard.failed(error)
            return otherwise(self, *args, **kwargs)

        return call

    return decorate


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """For `guarded`: the part is missing, and nothing has to be done."""


def never(*_args: Any, **_kwargs: Any) -> bool:
    """For `guarded`: no."""
    return False
