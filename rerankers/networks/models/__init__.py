"""Published models, a file for each, whose name is the model's.

Files with a leading underscore belong to a model.
"""
