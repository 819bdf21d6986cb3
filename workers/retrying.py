"""Decides whether a failed attempt is retried, and after which delay: by skill and by type of the exception."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from orchestrator.core import backoff as core
from orchestrator.core.durations import Duration, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.workers.signals import AttemptSignal

EXPONENTIAL: Final = "exponential"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts with full jitter: the ceiling doubles with each failure, from `base` to `cap`.

    Args:
        base: seconds or timedelta after the first failure, at most; the setting `retry.base_s` by default.
        cap: seconds or timedelta, longest delay; the setting `retry.cap_s` by default.

    Raises:
        InvalidInput: `base` or `cap` is no duration, or `base` is above `cap`.
    """

    base: Duration | None = None
    cap: Duration | None = None

    def __post_init__(self) -> None:
        base_s, cap_s = (
            None if value is None else to_seconds(f"{name} of Backoff", value)
            for name, value in (("base", self.base), ("cap", self.cap))
        )
        if base_s is not None and cap_s is not None and base_s > cap_s:
            raise InvalidInput(f"base of Backoff must not be above its cap, got {base_s:g} s and {cap_s:g} s")

    def with_defaults(self, defaults: core.ExponentialBackoff) -> core.ExponentialBackoff:
        """Return the delays; `defaults` has those of the settings."""
        base_s = defaults.base_s if self.base is None else to_seconds("base", self.base)
        cap_s = defaults.cap_s if self.cap is None else to_seconds("cap", self.cap)
        # One of them may be a setting, which must not make the other one invalid.
        if self.base is None:
            base_s = min(base_s, cap_s)
        return core.ExponentialBackoff(base_s=base_s, cap_s=max(base_s, cap_s))


Delays: TypeAlias = Backoff | float
"""A back-off, or a fixed number of seconds."""
DelayOption: TypeAlias = Backoff | Duration | str
"""Delays as users write them; `"exponential"` is `Backoff()`."""
RetryOption: TypeAlias = (
    type[BaseException] | Iterable[type[BaseException]] | Mapping[type[BaseException], DelayOption] | None
)
"""Exceptions that are retried, maybe each with its delays; None for all."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides how a skill retries failed attempts.

    Of the classes of an exception, the nearest one that `retry_on` or `give_up_on` has decides.

    Attributes:
        delays: between attempts.
        retry_on: delays by type of exception; None if all are retried.
        give_up_on: types of exceptions that make the task a dead letter at once.
    """

    delays: Delays
    retry_on: Mapping[type[BaseException], Delays] | None = None
    give_up_on: frozenset[type[BaseException]] = frozenset()

    def refuses(self, kinds: Iterable[type[BaseException] | str]) -> str:
        """Return why an exception is not retried; empty if it is.

        Args:
            kinds: the classes of the exception, the nearest first; their names, if another process raised it.
        """
        for kind in kinds:
            if (found := _find(kind, self.give_up_on)) is not None:
                return f"give_up_on has {found.__name__}"
            if self.retry_on is not None and _find(kind, self.retry_on) is not None:
                return ""
        return "" if self.retry_on is None else "retry_on has none of its types"

    def delay_ms(
        self, failures: int, kinds: Iterable[type[BaseException] | str], defaults: core.ExponentialBackoff
    ) -> int:
        """Return the delay after this many failures.

        Args:
            failures: 1 after the first one.
            kinds: as in `refuses`.
            defaults: base and cap of the settings.
        """
        retried: Mapping[type[BaseException], Delays] = self.retry_on or {}
        found = next(filter(None, (_find(kind, retried) for kind in kinds)), None)
        delays = self.delays if found is None else retried[found]
        seconds = delays.with_defaults(defaults).delay_s(failures) if isinstance(delays, Backoff) else delays
        return round(seconds * 1000)


def make_policy(backoff: DelayOption, retry_on: RetryOption, give_up_on: RetryOption) -> RetryPolicy:
    """Validate the options of a skill that say how it retries.

    Raises:
        InvalidInput: an option is invalid.
    """
    delays = _delays("backoff", backoff)
    retried: dict[type[BaseException], Delays] | None = None
    if isinstance(retry_on, Mapping):
        retried = {_exception("retry_on", kind): _delays("retry_on", given) for kind, given in retry_on.items()}
    elif retry_on is not None:
        retried = dict.fromkeys(_exceptions("retry_on", retry_on), delays)
    if retried is not None and not retried:
        raise InvalidInput("retry_on has no exception; omit it to retry all, or give max_attempts=1 to retry none")
    if isinstance(give_up_on, Mapping):
        raise InvalidInput("give_up_on is a list of exceptions; they have no delays")
    given_up = frozenset(_exceptions("give_up_on", () if give_up_on is None else give_up_on))
    if both := given_up & set(retried or ()):
        names = ", ".join(sorted(kind.__name__ for kind in both))
        raise InvalidInput(f"retry_on and give_up_on both have {names}; remove it from one of them")
    return RetryPolicy(delays, retried, given_up)


def name_of_class(kind: type) -> str:
    """Return the name by which a class is known in another process, whose main script has another name."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _find(kind: type[BaseException] | str, known: Iterable[type[BaseException]]) -> type[BaseException] | None:
    if not isinstance(kind, str):
        return kind if kind in known else None
    return next((one for one in known if name_of_class(one) == kind), None)


def _delays(option: str, given: DelayOption) -> Delays:
    if isinstance(given, Backoff):
        return given
    if isinstance(given, str):
        if given != EXPONENTIAL:
            raise InvalidInput(f'{option} must be "exponential", a Backoff or a number of seconds, not {given!r}')
        return Backoff()
    return to_seconds(option, given)


def _exceptions(option: str, given: type[BaseException] | Iterable[type[BaseException]]) -> list[type[BaseException]]:
    try:
        kinds = [given] if isinstance(given, type) else list(given)
    except TypeError:
        raise InvalidInput(f"{option} must be an exception or a list of them, not {given!r}") from None
    return [_exception(option, kind) for kind in kinds]


def _exception(option: str, kind: object) -> type[BaseException]:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise InvalidInput(f"{option} must name exceptions, as ValueError, not {kind!r}")
    if issubclass(kind, AttemptSignal):
        raise InvalidInput(f"{option} cannot name {kind.__name__}, because that says itself how the attempt ends")
    return kind
