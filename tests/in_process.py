"""Commands in this process, run as `main` runs them: most tests need no new interpreter."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from subprocess import CompletedProcess
from unittest import mock

from robfcp import cli


def run(*words, **environment):
    """`robfcp WORDS`, with nothing of it left in the environment afterwards."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["robfcp", *map(str, words)]),
        mock.patch.object(cli, "app", partial(cli.app, prog_name="robfcp")),
        mock.patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else int(done.code is not None)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
