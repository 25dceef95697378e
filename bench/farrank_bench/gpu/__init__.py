"""`make bench-gpu`: packed rankers on a CUDA device, against padded ones and the device's own peaks."""
