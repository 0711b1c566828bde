"""One training run, from settings to result: the program's half of training, a user of the library like any other."""
