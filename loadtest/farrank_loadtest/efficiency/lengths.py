"""How long the papers' documents are, in tokens."""

# The most that the papers' models read of a document.
LIMIT = 1431
# Means of MS MARCO v1, of v2 (2,000, of which LIMIT are read) and of Robust04.
# Source: Boytsov et al., arXiv 2207.01262, Table 2.
PAPERS_LENGTHS = (1400, LIMIT, 600)
