"""The command line, one module for each group of commands."""

from __future__ import annotations

import traceback

import click

from schedcheck import __version__
from schedcheck.catalogue import CatalogueMissing
from schedcheck.catalogue.exemptions import LedgerError
from schedcheck.cli.check import check
from schedcheck.cli.compare import bisect, diff
from schedcheck.cli.console import (
    INTERRUPTED,
    OUR_FAULT,
    USAGE,
    OutputLost,
    complain,
    complain_of_ourselves,
    say,
)
from schedcheck.cli.curate import catalogue
from schedcheck.cli.doctor import doctor
from schedcheck.cli.export import export
from schedcheck.cli.know import env, explain, list_
from schedcheck.cli.search import run
from schedcheck.cli.show import show
from schedcheck.cli.traces import replay, shrink
from schedcheck.invariants.registry import UnknownInvariant
from schedcheck.sut import TargetError
from schedcheck.tracefile import TraceError, TraceUnwritable


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="schedcheck")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Verify the request lifecycle of LLM-serving schedulers.

    Exit codes: 0 all hold; 1 a violation that the known-issue ledger does not label; 2 usage, or a
    target that cannot be loaded; 3 vacuous or unknown under --strict, drifted, or nothing ran; 70 a
    fault of schedcheck; 130 interrupted.
    """
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
        ctx.exit(USAGE)


for command in (
    run, replay, shrink, show, export, check, bisect, diff, list_, explain, doctor, env, catalogue,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    raise SystemExit(_code())


def _code() -> int:
    """Run the command line and return its exit code; every error is told here."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        complain(f"{error.format_message()} (schedcheck --help)")
        return USAGE
    except (
        TargetError,
        TraceError,
        TraceUnwritable,
        UnknownInvariant,
        CatalogueMissing,
        LedgerError,
    ) as error:
        complain(error)
        return USAGE
    except OutputLost as lost:
        if str(lost):
            complain(lost)
        return lost.code
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  whatever is left is a fault of our own
        complain_of_ourselves(f"{type(error).__name__}: {error}", traceback.format_exc())
        return OUR_FAULT
    return code if isinstance(code, int) else 0
