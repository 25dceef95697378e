"""Who may call: the file of API keys, what each key may use, and how much of it."""
