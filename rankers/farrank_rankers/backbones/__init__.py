"""Backbones: their construction and calls; JinaBERT and MosaicBERT, which transformers lacks, in full."""
