"""The models of "Understanding Performance of Long-Document Ranking Models", at full size, without weights.

Source: Boytsov et al., arXiv 2207.01262: its models, Table 6 (parameters) and section 3.1 (limits).
"""
