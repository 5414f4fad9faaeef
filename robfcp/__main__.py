"""`python -m robfcp` is the `robfcp` command."""

from robfcp.cli import main

main()
