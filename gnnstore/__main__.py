"""`python -m gnnstore`: the command line where no script was installed on the PATH."""

import sys

from gnnstore.tools.cli import main

sys.exit(main())
