"""What each screen of Studio computes, one file a screen; imported by the process that holds the models alone."""
