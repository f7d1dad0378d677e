"""``python -m schedcheck``."""

from schedcheck.cli import main

main()
