"""The main job, shown: Lucene finds, Farrank reranks, judged questions say how well."""
