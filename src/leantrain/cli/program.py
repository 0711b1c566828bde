"""The commands put together, and what they answer to a mistake."""

from __future__ import annotations

import sys

import click

from leantrain.cli.bench import BenchGroup, bench
from leantrain.cli.common import Command
from leantrain.cli.compare import compare
from leantrain.cli.eval import eval_command
from leantrain.cli.inspect import inspect_command
from leantrain.cli.methods import methods_command
from leantrain.cli.predict import predict_command
from leantrain.cli.report import report_command
from leantrain.cli.score import score_command
from leantrain.cli.train import train
from leantrain.errors import LeanError, shortened
from leantrain.run import processes
from leantrain.run.allocator import keep_freed_memory

NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""How torch says that memory has run out."""

MOST = 2000
"""The most characters of a sentence; what it quotes may be of any length."""


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
        return _refuse(error.format_message() if isinstance(error, click.ClickException) else str(error))
    except (KeyboardInterrupt, click.Abort) as stop:
        if isinstance(stop.__cause__ or stop.__context__, EOFError):  # click takes it for the end of its own input
            raise
        click.echo("leantrain: interrupted", err=True)
        return 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and (sentence := processes.lost(error)) is not None:
            _refuse(sentence)
            return 1
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        return _refuse("there is not enough memory; try a smaller --batch-size, --width, --image-size or --model.")
    except UnicodeEncodeError as error:  # half of a character, which no file's name can hold
        return _refuse(f"{error.object!r} has a character that cannot be written; choose another name.")
    except OSError as error:
        if error.filename is None:
            raise
        return _refuse(f"'{error.filename}' cannot be used: {error.strerror}; choose another place.")
    return code if isinstance(code, int) else 0


def _refuse(text: str) -> int:
    click.echo(f"{_speaker()}: {shortened(_sentence(text), MOST)}", err=True)
    return 2


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
    keep_freed_memory()


for _command in (
    train,
    eval_command,
    predict_command,
    inspect_command,
    score_command,
    compare,
    report_command,
    methods_command,
    bench,
):
    assert isinstance(_command, Command | BenchGroup)  # which load the plugins
    cli.add_command(_command)
