"""Networks: the models that PyTorch computes."""
