# SPDX-License-Identifier: BSD-3-Clause
"""The commands, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import initcore
from initcore.cli.attention import attention
from initcore.cli.chain import chain
from initcore.cli.draw import draw
from initcore.cli.gain import gain
from initcore.cli.propagate import propagate
from initcore.cli.theory import theory
from initcore.cli.verify import verify

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
for command in (propagate, attention, chain, draw, gain, theory, verify):
    app.command()(command)

# Everything typer raises for bad usage derives from this class, whichever click it is built on.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"initcore {initcore.__version__} ({initcore.isa()})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Which weights keep the signal alive, and does it stay alive?

    Start with: initcore propagate
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None) -> int:
    """Parse and run; the exit code. Bad usage is a ValueError that names the option."""
    command = typer.main.get_command(app)
    try:
        code = command.main(
            None if arguments is None else list(arguments),
            prog_name="initcore",
            standalone_mode=False,
        )
    except typer.Abort:  # how older releases of typer pass on a KeyboardInterrupt
        return 130
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        if context is not None and not isinstance(error, typer.BadParameter):
            message = f"{message.rstrip('.')}; see {context.command_path} --help"
        raise ValueError(message) from error
    return code if isinstance(code, int) else 0
