"""Find out what a sweep of the dispatcher has to do."""
