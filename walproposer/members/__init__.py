"""Changes the members of a timeline: requests and their execution."""
