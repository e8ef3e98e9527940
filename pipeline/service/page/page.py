"""Old names, until the commit of moved names."""
from tweetrerank.pipeline.service.page.grades import Grades  # noqa: F401
from tweetrerank.pipeline.service.page.page_routes import routes  # noqa: F401
from tweetrerank.pipeline.service.page.search_page import SearchPage  # noqa: F401
