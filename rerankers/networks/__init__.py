"""Networks: models that PyTorch computes."""
