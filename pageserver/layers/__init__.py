"""The stored forms of pages: layers, frames, and the base backup below them."""
