"""`leantrain methods`: what there is to train with, and each method's options."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from leantrain.cli.common import Command

if TYPE_CHECKING:
    from leantrain.methods import Method


@click.command("methods", cls=Command)
@click.argument("name", required=False)
def methods_command(name: str | None) -> None:
    """List the methods, or show one method's options, or what a chain such as "infobatch + progressive-resizing" does.

    A chain that cannot be combined is refused with the reason.
    """
    from leantrain.methods import METHODS, chain, parse_method, parts_of
    from leantrain.options import split_outside

    if name is None:
        width = max(map(len, METHODS))
        for known, kind in METHODS.items():
            also = f" Also called {', '.join(kind.aliases)}." if kind.aliases else ""
            click.echo(f"{known:<{width}}  {_first_line(kind)}{also}")
        click.echo("\nleantrain methods NAME shows a method's options; write them as NAME[option=value,…].")
        click.echo('Methods combine from left to right: "infobatch + progressive-resizing"; see docs/combining.md.')
        return
    if len(split_outside(name, "+")) == 1 and "[" not in name:
        _show_options(METHODS.find(name.strip()), name.strip())
        return
    method = parse_method(name)
    parts = parts_of(method)
    width = max(len(str(part)) for part in parts)
    for part in parts:
        click.echo(f"{part!s:<{width}}  {_when(part)}{_first_line(type(part))}")
    share = chain(method).expected_share
    if share is None:
        click.echo("\nWhat it costs depends on the data; `leantrain train` prints the most that it can be.")
    else:
        click.echo(f"\nA run costs about {share:.2f} of plain training.")


def _show_options(kind: type[Method], name: str) -> None:
    from leantrain.methods import Preset
    from leantrain.options import options_of

    click.echo(f"{name}: {_first_line(kind)}")
    if issubclass(kind, Preset):
        click.echo(f"It is the chain {' + '.join(part.name for part in kind.kinds)}, with the options of all.")
    for option in options_of(kind):
        choices = f" [{', '.join(option.metadata['choices'])}]" if option.metadata["choices"] else ""
        click.echo(f"  {option.name} = {_default(option)}{choices}\n      {option.metadata['help']}")


def _default(option: dataclasses.Field[Any]) -> str:
    if option.default is None:
        return "(not set)"
    return str(option.default).lower() if isinstance(option.default, bool) else str(option.default)


def _when(method: Method) -> str:
    """Between which shares of the run it works, where that is not all of it."""
    if (method.start, method.until) == (0.0, 1.0):
        return ""
    return f"From {method.start:.0%} to {method.until:.0%} of the run. "


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
