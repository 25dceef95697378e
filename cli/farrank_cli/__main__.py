"""`python -m farrank_cli` runs `farrank` with the caller's own interpreter."""

import sys

from farrank_cli.main import main

sys.exit(main())
