"""How fast a link is."""

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def link_bytes_per_s(rate: str) -> float:
    """Of a rate as tc writes it: 1gbit, 100mbit. ValueError where it is none of those."""
    for unit, bits in BITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * bits / 8
    raise ValueError(f"{rate!r} is no rate in {', '.join(BITS)}")
