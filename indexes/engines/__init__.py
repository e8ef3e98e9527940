"""First stages in OpenSearch and Elasticsearch: indexes of ours, and indexes that people have.

:class:`indexes.engines.client.EngineAddress` names an index,
:func:`indexes.engines.index.open_index` opens it and :func:`indexes.engines.layout.build` fills it.
"""
