"""The service's application, requests, scheduler and models."""
