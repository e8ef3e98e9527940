"""Search and fill indexes in OpenSearch and Elasticsearch.

An index is either built by this program or made by somebody else.
"""
