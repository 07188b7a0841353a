"""What the commands return."""

# All is well; something went wrong; an image is abnormal; the user has ended it.
OK, FAILED, ABNORMAL, INTERRUPTED = 0, 1, 3, 130
