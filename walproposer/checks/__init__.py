"""May a primary be attached, and are its commits safe? Rules; asking changes nothing."""
