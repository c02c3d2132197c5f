"""What all tests need of their process."""

import signal

# A shell that runs tests in the background has them ignore Ctrl-C, and the servers that they start
# too: those would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
