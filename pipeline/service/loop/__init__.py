"""The loop in the service: logged searches, interleaving, events, and a page of them."""
