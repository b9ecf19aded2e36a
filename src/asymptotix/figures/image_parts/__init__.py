"""Parts of the figures on one-shot images: trained networks, theory for their heads, pruning of heads."""
