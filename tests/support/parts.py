"""Parts of schedules with other headers, for the tests of what reads them."""

from poet_host import isa
from poet_host.schedule.model import with_crc


def with_header(kind: str, part: bytes, **fields: object) -> bytes:
    """A model part (`poet_model`) or plan part with other header fields, and a right CRC."""
    size = isa.record_size(kind)
    header = isa.unpack(kind, part[:size]) | fields
    return with_crc(isa.pack(kind, **header) + part[size:])


def plan_of_model(plan: bytes, model: bytes, **fields: object) -> bytes:
    """A plan part whose header names this model part."""
    crc = isa.unpack("poet_model", model[: isa.record_size("poet_model")])["crc"]
    return with_header("poet_plan_header", plan, model_crc=crc, **fields)
