"""From topics to a ranking: commands, collections, rankers, training, the service.

``python -m pipeline.search`` runs a command from a checkout. Python code imports
``tweetrerank``.
"""

import signal
import sys

if sys.argv[:1] == ["-m"] and "pipeline." in sys.orig_argv[-len(sys.argv)]:
    # A command is starting. Until command.options.run_command begins, Ctrl-C ends it
    # without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
