"""Old names, until the commit of moved names."""
from tweetrerank.pipeline.service.json_log import LOG, JsonFormatter, log_in_background  # noqa: F401
from tweetrerank.pipeline.service.limits import Limits, apart, deadline_of, unless_gone  # noqa: F401
from tweetrerank.pipeline.service.request_record import Record  # noqa: F401
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError  # noqa: F401
