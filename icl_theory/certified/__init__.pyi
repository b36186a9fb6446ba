from .certificate import Certificate as Certificate
from .certificate import Proved as Proved
from .certificate import certify as certify
from .certificate import check_installed as check_installed
