"""How fast a link is."""

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def link_bytes_per_s(rate: str) -> float:
    """Of a rate as tc writes it: 1gbit, 100mbit. ValueError where it is none of those."""
    for unit, bits in BITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * bits / 8
    raise ValueError(f"{rate!r} is no rate in {', '.join(BITS)}")


def link_limit(rate: str, nbytes: float) -> list[list[float]]:
    """What so many bytes take at least on such a link, as blocks of a trial, in seconds."""
    return 2 * [[nbytes / link_bytes_per_s(rate)]]
