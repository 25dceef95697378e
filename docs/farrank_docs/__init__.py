"""The documentation's builder: parts generated from the code, Markdown copies, and `llms.txt`."""
