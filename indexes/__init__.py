"""Build and search indexes of posts.

>>> from tweetrerank.indexes.lucene_index import build, open_index
>>> from tweetrerank.indexes.methods import BM25, Topic
>>> from tweetrerank.indexes.posts import Post
>>> _ = build([Post("1", "storm closes the harbour")], "my-index")
>>> with open_index("my-index") as index:
...     list(index.search([Topic("a", "storm")], BM25())["a"])
['1']
"""
