"""The stream source: the driver decides on ranges of offsets, tasks read them."""
