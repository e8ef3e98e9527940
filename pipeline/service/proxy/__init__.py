"""In front of OpenSearch or Elasticsearch: searches go to the engine, and come back
reranked.
"""
