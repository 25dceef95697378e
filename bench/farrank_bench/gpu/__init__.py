"""`make bench-gpu`: packed rankers on a CUDA device, beside padded ones and the device's own peaks."""
