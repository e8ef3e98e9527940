"""In front of OpenSearch or Elasticsearch: searches go to the engine, and come back reranked.

:mod:`.search` reads a search, and puts the hits of its response into another order without touching
anything else; :mod:`.upstream` asks the engine, :mod:`.routes` connects them.
"""
