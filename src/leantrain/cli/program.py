"""The commands put together, and what they answer to a mistake."""

from __future__ import annotations

import sys

import click

from leantrain.cli.common import Command
from leantrain.cli.compare import compare
from leantrain.cli.eval import eval_command
from leantrain.cli.inspect import inspect_command
from leantrain.cli.methods import methods_command
from leantrain.cli.report import report_command
from leantrain.cli.score import score_command
from leantrain.cli.train import train
from leantrain.errors import LeanError
from leantrain.run import processes


def run(argv: list[str] | None) -> int:
    """Run a command line and return its exit code."""
    try:
        # The words themselves go along, for a command that starts itself in several processes.
        words = sys.argv[1:] if argv is None else argv
        code = cli.main(args=argv, prog_name="leantrain", standalone_mode=False, obj=words)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except (click.ClickException, LeanError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"{_speaker()}: {_sentence(text)}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("leantrain: interrupted", err=True)
        return 130
    except RuntimeError as error:
        sentence = processes.lost(error)
        if sentence is None:
            raise
        click.echo(f"{_speaker()}: {sentence}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _speaker() -> str:
    """Who speaks: of several processes, which one."""
    return f"leantrain, process {processes.rank()}" if processes.count() > 1 else "leantrain"


def _sentence(text: str) -> str:
    """The sentence alone: a DataLoader wraps a worker's exception into the text of its traceback."""
    marker = "LeanError: "
    return text.rsplit(marker, 1)[1].strip() if marker in text else text


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="leantrain")
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    help="Python file or module to import first, with your own methods, forms or scores; may be repeated",
    metavar="FILE",
)
def cli(plugins: tuple[str, ...]) -> None:
    """Train image classifiers on fewer and cheaper examples, with the accuracy kept."""


for _command in (
    train,
    eval_command,
    inspect_command,
    score_command,
    compare,
    report_command,
    methods_command,
):
    assert isinstance(_command, Command)  # which loads the plugins
    cli.add_command(_command)
