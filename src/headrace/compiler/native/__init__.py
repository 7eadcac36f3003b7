"""Everything around generated C: compilers, the cache of libraries, the processor, threads, candidates on trial."""
