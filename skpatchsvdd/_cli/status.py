"""What the commands return."""

# All is well; something went wrong; an image is abnormal; none is, but not all could be
# inspected; the user has ended it.
OK, FAILED, ABNORMAL, UNREADABLE, INTERRUPTED = 0, 1, 3, 4, 130
