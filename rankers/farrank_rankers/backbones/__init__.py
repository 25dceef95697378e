"""Backbones, built and called as each must be; JinaBERT and MosaicBERT, which transformers lacks, in full."""
