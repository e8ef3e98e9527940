"""The proxy in front of OpenSearch or Elasticsearch, which reranks their searches."""
