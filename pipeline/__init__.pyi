from pipeline.collections.trec import read_run as read_run
from pipeline.collections.trec import write_run as write_run
from pipeline.errors import DataError as DataError
from pipeline.errors import UsageError as UsageError
from pipeline.notebook import for_pyterrier as for_pyterrier
from pipeline.notebook import open_collection as open_collection
from pipeline.ranking.build import ranker as ranker
from pipeline.ranking.reports import evaluate as evaluate

__version__: str
