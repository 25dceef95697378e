"""`python -m farrank_cli` is `farrank`, for programs that must run it with their own interpreter."""

import sys

from farrank_cli.main import main

sys.exit(main())
