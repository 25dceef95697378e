"""The stages between wire and device: admission, tokenization, queue, device."""
