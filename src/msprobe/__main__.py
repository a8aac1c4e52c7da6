"""`python -m msprobe` is `msprobe`."""

import sys

from msprobe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
