"""Options: dataclass fields that carry their help, range and choices, so that flag, check and docs stay one."""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from leantrain.errors import LeanError, nearest, shortened

T = TypeVar("T")
LARGEST = 2**62
"""The largest whole number that any option takes: torch counts in 64 bits, and seeds are counted up from theirs."""


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    **more: Any,
) -> Any:
    """A dataclass field with its meaning and its limits.

    Args:
        default: the value when the user says nothing.
        help: what it means, for `--help` and the docs.
        choices: the only values allowed, where they are words.
        low, high: inclusive limits.
        above, below: exclusive limits.
        more: further facts for whoever reads the field, e.g. `operational=True` or `group="Data"`.
    """
    limits = {"choices": choices, "low": low, "above": above, "high": high, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, **limits, **more})


def check(config: Any) -> None:
    """Raise a `LeanError` for the first option of a dataclass whose value is out of its range."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None or "help" not in field.metadata:
            continue
        spoken = spoken_name(field)
        limits = field.metadata
        if limits["choices"] and value not in limits["choices"]:
            raise LeanError(
                f"{spoken} is '{value}', but must be one of {', '.join(limits['choices'])}."
                + nearest(str(value), limits["choices"])
            )
        limited = any(limits[name] is not None for name in ("low", "above", "high", "below"))
        if isinstance(value, bool) or not isinstance(value, int | float):
            if limited:
                raise LeanError(f"{spoken} is {value!r}, but must be a number.")
            if isinstance(value, str) and "\0" in value:
                raise LeanError(f"{spoken} is {value!r}, which holds a NUL character; take it out.")
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise LeanError(f"{spoken} is {value}, but must be a finite number.")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise LeanError(f"{spoken} is {shortened(str(value))}, but must be at most {LARGEST}.")
        for name, broken, words in (
            ("low", operator.lt, "at least"),
            ("above", operator.le, "above"),
            ("high", operator.gt, "at most"),
            ("below", operator.ge, "below"),
        ):
            if limits[name] is not None and broken(value, limits[name]):
                raise LeanError(f"{spoken} is {value}, but must be {words} {limits[name]}.")


def options_of(config: Any) -> list[dataclasses.Field[Any]]:
    """The options of a config or of its class: its own first, then what it shares with others of its kind."""
    shared = {f.name for base in _bases(config) for f in dataclasses.fields(base)}
    fields = [f for f in dataclasses.fields(config) if "help" in f.metadata]
    return sorted(fields, key=lambda f: f.name in shared)


def _bases(config: Any) -> list[Any]:
    """The abstract dataclass at the root of a config's family, whose options all members have."""
    kind = config if isinstance(config, type) else type(config)
    family = [base for base in kind.__mro__ if dataclasses.is_dataclass(base)]
    return family[-1:] if len(family) > 1 else []


def spoken_name(field: dataclasses.Field[Any]) -> str:
    """The option as the user writes it: `--batch-size` on the command line, `keep` inside a method's name."""
    return "--" + field.name.replace("_", "-") if field.metadata.get("flag") else field.name


def scalar_type(annotation: Any) -> type:
    """The plain type behind an annotation: `int` for `int | None`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    return typing.cast(type, annotation)


def convert(kind: type, value: Any, spoken: str) -> Any:
    """A value from text or YAML as the option's type, or a `LeanError` that names it."""
    if value is None:
        return None
    if isinstance(value, dict | list | tuple | set):  # whose text may be of any length
        raise LeanError(f"{spoken} is a {type(value).__name__}, but must be a single value.")
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise LeanError(f"{spoken} is '{value}', but must be true or false.")
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise LeanError(f"{spoken} is {value}, but must be a whole number.")
    if kind in (int, float) and isinstance(value, bool):
        raise LeanError(f"{spoken} is {value}, but must be a number.")
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        word = {int: "a whole number", float: "a number"}.get(kind, f"a {kind.__name__}")
        raise LeanError(f"{spoken} is '{shortened(str(value))}', but must be {word}.") from None


def instead_of_ending(share: str) -> str:
    """What to write for an option that gave the share of the run, at its end, without a method."""
    try:
        until = 1 - float(share)
    except ValueError:
        return "until=SHARE"
    return f"until={until:.6g}" if 0 < until <= 1 else "until=SHARE, above 0 and at most 1,"


def split_outside(text: str, mark: str) -> list[str]:
    """The parts of a text between the marks that stand outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == mark and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


_NAMED = re.compile(r"^\s*([\w./-]+)\s*(?:\[(.*)\])?\s*$", re.DOTALL)


def parse_named(text: str, find: Callable[[str], type[T]], what: str) -> T:
    """`name[option=value,…]` as an instance of the dataclass that `find` knows under that name.

    The one syntax for everything that is chosen by name and has options. A class may have a `former` mapping of options
    that are gone to functions that say, given the value, what to write instead.
    """
    match = _NAMED.match(text)
    if match is None:
        raise LeanError(f"{what} '{text}' cannot be read; write NAME or NAME[option=value,option=value].")
    name, inside = match.group(1), match.group(2) or ""
    kind = find(name)
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind)) if f.init and "help" in f.metadata}
    given: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in split_outside(inside, ","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        key = key.replace("-", "_")
        if not equals or not value:
            raise LeanError(f"{what} '{text}': '{part}' is not of the form option=value.")
        if key in getattr(kind, "former", {}):
            instead = typing.cast(Any, kind).former[key](value)
            raise LeanError(f"{what} '{name}' has no option '{key}' any more; write {instead} instead of {part}.")
        if key in given:
            raise LeanError(f"{what} '{text}' gives '{key}' twice; give it once.")
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise LeanError(f"{what} '{name}' has no option '{key}'; {known}.{nearest(key, fields)}")
        given[key] = convert(scalar_type(hints[key]), value, f"{name}[{key}]")
    try:
        return kind(**given)
    except LeanError as error:
        raise LeanError(f"{what} '{name}': {error}") from None


def spell_named(config: Any, name: str) -> str:
    """The canonical text of a named config: only what differs from the defaults, in the order of the dataclass."""
    changed = [
        f"{f.name}={_spell(getattr(config, f.name))}"
        for f in options_of(config)
        if f.init and getattr(config, f.name) != f.default
    ]
    return f"{name}[{','.join(changed)}]" if changed else name


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
