"""The methods of `rerank.proto` and what is said when they fail, whichever door a call comes through."""
