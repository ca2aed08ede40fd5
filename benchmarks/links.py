"""How fast a link is, or several of a host."""

from rig.hosts import Hosts

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def rails(link: str) -> tuple[int, str]:
    """How many links a host has, and the rate of each: 2 and 1gbit for 2x1gbit, else one."""
    count, times, rate = link.partition("x")
    return (int(count), rate) if times and count.isdecimal() and int(count) else (1, link)


def hosts_behind(link: str, count: int) -> Hosts:
    """So many hosts behind such links; see rig.hosts for what it raises."""
    many, rate = rails(link)
    return Hosts(count, rate, rails=many)


def link_bytes_per_s(link: str) -> float:
    """By all of them together; rates as tc writes them: 1gbit, 100mbit, 2x1gbit.

    Raises:
        ValueError: it is none of those.
    """
    count, rate = rails(link)
    for unit, bits in BITS.items():
        if rate.endswith(unit):
            return count * float(rate.removesuffix(unit)) * bits / 8
    raise ValueError(f"{rate!r} is no rate in {', '.join(BITS)}")


def link_limit(link: str, nbytes: float) -> list[list[float]]:
    """What so many bytes take at least on such a link, as blocks of a trial, in seconds."""
    return 2 * [[nbytes / link_bytes_per_s(link)]]
