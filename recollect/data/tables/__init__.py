"""Tables as they come, taken apart into columns: the formats, and how times are written in them."""
