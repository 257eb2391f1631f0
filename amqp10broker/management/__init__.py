"""One table of operations on what is declared, behind every door by which people manage a broker."""
