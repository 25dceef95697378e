"""Backbones: how they are built and called; JinaBERT and MosaicBERT, which transformers lacks, written out."""
