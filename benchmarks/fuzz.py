"""Does anything in a file that we parse, or behind a flag, bring more than a success or one line that says why not?

Every file that leantrain reads (settings, metrics, results, histories, checkpoints, weights, comparisons, scores,
images, tables) is damaged again and again: bits flipped, bytes dropped, repeated and overwritten, ends cut off. Then
every flag of every command gets hostile values, and the whole command runs, in a process of its own that may neither
crash nor hang. The quick version of the first half is tests/test_fuzz.py; what we parse is listed in tests/fuzzing.py.

    python benchmarks/fuzz.py

Result: nothing but successes and our own errors; n, hardware and versions in results/fuzz.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from _common import finish, markdown, parser, progress
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fuzzing import DAMAGES, FLAGS, HOSTILE, TARGETS, TEXTS, Damage, attack, make_files, parse, settle, value_of
from leantrain.cli.program import cli
from program import SMALL, run

PATIENCE = 120  # seconds that a command with one odd flag may take
NOT_TRIED = ("--help", "--plugin", "--version")  # a plugin is the user's own code
WORDS: dict[str, tuple[object, ...]] = {
    "train": (*SMALL, "--epochs", 1),
    "compare": (*SMALL, "--epochs", 1, "--seeds", 1, "--methods", "plain"),
    "score": (*SMALL, "--models", 1, "--score-epochs", 1),
    "inspect": ("run", "--pairings", 1, "--examples", 20),
    "eval": ("run",),
    "report": ("run",),
    "methods": (),
}
"""Commands that work, to which one hostile flag is added."""


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = make_files(folder / "whole")
        files, broken = damaged_files(whole, folder, arguments)
        flags, more = hostile_flags(arguments)
        commands, most = hostile_commands(whole, folder, arguments)
    broken |= more | most
    rows = [("damaged files", files, len(TARGETS)), ("flags, as far as training", flags, len(FLAGS) + 1)]
    table = markdown(("attacked", "tries", "kinds"), [*rows, ("whole commands", commands.total(), len(WORDS))])
    ends = ", ".join(f"{count} × {end}" for end, count in commands.most_common())
    table += f"\n\nThe commands ended: {ends}. Broken: {len(broken)}."
    for what, why in broken.items():
        table += f"\n\n{what}\n{why}"
    result = {"files": files, "flags": flags, "commands": dict(commands), "broken": broken}
    finish("fuzz", arguments, table, result, n=files + flags + commands.total())
    sys.exit(bool(broken))


def damaged_files(whole: Path, folder: Path, arguments: argparse.Namespace) -> tuple[int, dict[str, str]]:
    """How many damaged files were read, and by what the first traceback was brought."""
    tries, broken = 0, {}
    for number, (name, target) in enumerate(TARGETS.items()):

        def once(damages: list[Damage], target=target, place=folder / str(number)) -> None:  # type: ignore[no-untyped-def]
            nonlocal tries
            tries += 1
            attack(target, whole, place, damages)

        broken |= _searched(name, once, DAMAGES, arguments)
        progress(f"{name}: {'BROKEN' if name in broken else 'ok'}")
    return tries, broken


def hostile_flags(arguments: argparse.Namespace) -> tuple[int, dict[str, str]]:
    """The same for values of flags, up to where training would begin."""
    tries, broken = 0, {}
    for name in (*FLAGS, "lists"):

        def once(value: object, name: str = name) -> None:
            nonlocal tries
            tries += 1
            parse(str(value)) if name == "lists" else settle(name, value)

        broken |= _searched(f"--{name}", once, TEXTS if name == "lists" else value_of(name), arguments)
    progress(f"flags: {len(broken)} broken")
    return tries, broken


def _searched(
    name: str, once: Callable[..., None], values: st.SearchStrategy[object], arguments: argparse.Namespace
) -> dict[str, str]:
    """What hypothesis finds, if anything."""
    chosen = settings(
        max_examples=arguments.examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
    )
    try:
        seed(arguments.seed)(chosen(given(values)(lambda value: once(value))))()
    except Exception:
        return {name: traceback.format_exc(limit=-4)}
    return {}


def hostile_commands(whole: Path, folder: Path, arguments: argparse.Namespace) -> tuple[Counter[str], dict[str, str]]:
    """Every flag of every command with every hostile value; how they ended, and what was said where it broke."""
    ends: Counter[str] = Counter()
    broken = {}
    lines = list(_lines())[:: arguments.every]
    for number, line in enumerate(lines):
        end, said = _in_process(line, whole, folder / f"c{number}")
        ends[end] += 1
        if end not in ("exit 0", "exit 1", "exit 2"):
            broken[" ".join(map(repr, line))[:300]] = f"{end}: {said}"
            progress(f"BROKEN: {line}: {end}: {said}")
        if number % 100 == 0:
            progress(f"command {number}/{len(lines)}: {len(broken)} broken")
    return ends, broken


def _lines() -> Iterator[list[object]]:
    for name, command in cli.commands.items():
        for option in command.params:
            if not isinstance(option, click.Option) or option.opts[0] in NOT_TRIED:
                continue
            for value in ("",) if option.is_flag else HOSTILE:
                if "\0" not in value:  # which no shell can pass
                    yield [name, *WORDS[name], option.opts[0], *([] if option.is_flag else [value] * option.nargs)]


def _in_process(line: list[object], whole: Path, place: Path) -> tuple[str, str]:
    """Run a command in a forked process, in a folder of its own; how it ended and what it said."""
    place.mkdir()
    (place / "run").symlink_to(whole / "run")
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        try:
            done = run(*line, cwd=place)
            theirs.send((f"exit {done.returncode}", done.stderr[-500:]))
        except BaseException:
            theirs.send(("traceback", traceback.format_exc(limit=-4)))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    theirs.close()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
        return "hang", ""
    try:
        end: tuple[str, str] = ours.recv()
    except EOFError:
        return "crash", f"exit code {process.exitcode}"
    return end


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--examples", type=int, default=300, help="tries per kind of file and flag (default: 300)")
    options.add_argument("--every", type=int, default=1, help="try only every Nth of the commands (default: 1)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.examples, arguments.every = 5, 300
    return arguments


if __name__ == "__main__":
    main()
