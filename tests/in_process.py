"""Commands run in this process as `main` runs them, since a new interpreter is slow."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from subprocess import CompletedProcess
from unittest import mock

from robfcp import cli


def run(*arguments, **environment):
    """Run `robfcp ARGUMENTS`; the environment is restored afterwards."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["robfcp", *map(str, arguments)]),
        mock.patch.object(cli, "app", partial(cli.app, prog_name="robfcp")),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())
