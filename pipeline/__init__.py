"""The way from topics to a ranking: commands, collections, rankers and the service.

From a checkout, run a command as in ``python -m pipeline.search``. In Python code,
import ``tweetrerank``.
"""

import signal
import sys

if sys.argv[:1] == ["-m"] and "pipeline." in sys.orig_argv[-len(sys.argv)]:
    # A command is starting. Until command.options.run_command begins, Ctrl-C ends it
    # without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
