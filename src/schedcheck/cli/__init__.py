"""The command line, one module for each group of commands."""

from __future__ import annotations

import os
import sys
import traceback

import click

from schedcheck import __version__
from schedcheck.catalogue import CatalogueMissing
from schedcheck.cli.console import OUR_FAULT, USAGE, say
from schedcheck.cli.know import env, explain, list_
from schedcheck.cli.search import run
from schedcheck.cli.traces import replay, show, shrink
from schedcheck.invariants.registry import UnknownInvariant
from schedcheck.report.text import clean
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, TraceUnwritable

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="schedcheck")
def cli() -> None:
    """Verify the request lifecycle of LLM-serving schedulers.

    Exit codes: 0 all hold; 1 a violation; 2 usage, or a target that cannot be loaded; 3 vacuous or
    unknown under --strict, drifted, or nothing ran; 70 a fault of schedcheck; 130 interrupted.
    """


for command in (run, replay, shrink, show, list_, explain, env):
    cli.add_command(command)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as leaving:
        code = leaving.exit_code
    except click.ClickException as error:
        say(f"schedcheck: {clean(error.format_message())} (schedcheck --help)")
        code = USAGE
    except (TargetError, TraceError, TraceUnwritable, UnknownInvariant, CatalogueMissing) as error:
        say(f"schedcheck: {clean(str(error))}")
        code = USAGE
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:  # noqa: BLE001  whatever is left is a fault of our own
        say(f"schedcheck: a fault of our own, please report it: {type(error).__name__}: {error}")
        if os.environ.get("SCHEDCHECK_DEBUG"):
            traceback.print_exc()
        else:
            say("SCHEDCHECK_DEBUG=1 shows where")
        code = OUR_FAULT
    sys.exit(code if isinstance(code, int) else 0)
