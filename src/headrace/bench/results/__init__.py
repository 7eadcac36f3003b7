"""What it means: percentiles, goodput, the search for a rate, comparisons, and the files that hold them."""
