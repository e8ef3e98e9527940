"""First stages in OpenSearch and Elasticsearch: indexes of ours, and indexes that people have."""
