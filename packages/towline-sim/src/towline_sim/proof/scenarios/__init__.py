"""The scenes: each plays a part of the product, and knows what must be true of it."""
