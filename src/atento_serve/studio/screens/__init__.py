"""What each screen of Studio computes, in one file or with those of its kind; imported where the models are alone."""
