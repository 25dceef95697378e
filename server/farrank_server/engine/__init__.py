"""The stages between wire and device: admission, tokenizing, queue, device."""
