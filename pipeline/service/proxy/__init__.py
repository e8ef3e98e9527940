"""In front of OpenSearch or Elasticsearch: searches go to the engine, and come back reranked.

:mod:`.plan` reads what a search asks for, :mod:`.upstream` asks the engine, :mod:`.answers` puts
its hits into another order without touching anything else, :mod:`.routes` connects them.
"""
