"""Entry point of `python -m sandboxd`."""

from sandboxd.cli.main import main

main()
