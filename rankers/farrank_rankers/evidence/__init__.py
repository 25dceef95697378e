"""Evidence to the sentence: the bounds of sentences, their values, and evidence packed into a budget."""
