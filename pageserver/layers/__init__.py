"""Pages as they are kept: layers, frames, the base backup below them."""
