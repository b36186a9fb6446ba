from .certificate import Certificate as Certificate
from .certificate import Proved as Proved
from .certificate import Steps as Steps
from .run import certify as certify
from .run import check_installed as check_installed
