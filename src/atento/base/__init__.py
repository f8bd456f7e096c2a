"""What every room of the library builds on: exceptions, limits of files, processes, random numbers, the version."""
