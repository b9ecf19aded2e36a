"""What the figures on one-shot images are made of: trained networks, theory on their heads, heads taken out."""
