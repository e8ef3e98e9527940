"""Published models. Each file has the name of its model.

Files with a leading underscore belong to a model of another file.
"""
