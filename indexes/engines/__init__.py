"""First stages in OpenSearch and Elasticsearch, in indexes of ours and of others."""
