"""verlbox's entry: `python entrypoint.py --help`."""

import sys

from verlbox.cli import main

sys.exit(main())
