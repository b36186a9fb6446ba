from .certificate import certify as certify
from .certificate import check_installed as check_installed
from .proof import Certificate as Certificate
from .proof import Proved as Proved
from .proof import Steps as Steps
