"""`msprobe COMMAND ...`: finds the command, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from msprobe import __version__
from msprobe.cli import (
    api_precision_compare,
    compare,
    multi_run_ut,
    recover,
    run_overflow_check,
    run_ut,
    show,
)
from msprobe.errors import MsprobeError
from msprobe.screen import harmless

# A command is a module with SUMMARY, add_arguments(parser) and run(arguments) -> exit code. What is heavy it
# imports inside run(), so that --help and --version answer at once.
COMMANDS = {
    "compare": compare,
    "show": show,
    "recover": recover,
    "run_ut": run_ut,
    "multi_run_ut": multi_run_ut,
    "api_precision_compare": api_precision_compare,
    "run_overflow_check": run_overflow_check,
}
FRAMEWORKS = ("pytorch", "mindspore")

FAILED = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_TRACEBACK = "MSPROBE_DEBUG"

_DESCRIPTION = "Look at what msprobe recorded while a model was trained."
_EXAMPLES = """examples:
  msprobe compare TARGET GOLDEN     name the call that made the difference
  msprobe show ./recording          what was recorded, and where
  msprobe recover ./recording       after a crash or a kill: finish the recording with every finished call
  msprobe run_ut -api_info ./recording/step0/rank/dump.json   each recorded call, checked against a reference
  msprobe COMMAND --help            more about one command

exit codes: 0 done; 2 wrong usage, or input that cannot be used; 130 interrupted (Ctrl-C); 141 output closed
If msprobe itself fails, MSPROBE_DEBUG=1 shows where.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a file name may hold bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    try:
        code: int = COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except Exception as error:  # the one place where any error becomes a sentence
        if os.environ.get(_TRACEBACK):
            raise
        print(f"msprobe: {harmless(_sentence(error))}", file=sys.stderr)
        return FAILED


def _sentence(error: Exception) -> str:
    if isinstance(error, MsprobeError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror or error}."
    kind = type(error).__name__
    return f"unexpected {kind}: {error}. Set {_TRACEBACK}=1 to see where, and please report it."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="msprobe",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msprobe {__version__}")
    parser.add_argument(
        "-f",
        "--framework",
        choices=FRAMEWORKS,
        help="the framework of the recordings; found out if not given",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        module.add_arguments(
            commands.add_parser(
                name,
                help=module.SUMMARY,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser
