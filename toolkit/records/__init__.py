"""D, the records: every measurement that was ever taken. lines.py says what one is; store.py keeps them."""

from toolkit.records.lines import OperatorLine, RecordKey, TuningRecord
from toolkit.records.repair import StoreCheck, check_records, repair_records
from toolkit.records.store import Records, open_to_tune
