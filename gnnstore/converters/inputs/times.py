"""Units of times: one name has one unit in all types of a graph, the finest of its columns.

Tables state units (days of a date, seconds to nanoseconds of a timestamp), and so do arrays of
datetime64; other arrays and text do not.
Times of one name are compared with one another when a loader samples by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource, MappedRows
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.spec import TIME_UNITS

_PER_DAY = dict(
    zip(TIME_UNITS, (1, 86_400, 86_400 * 10**3, 86_400 * 10**6, 86_400 * 10**9), strict=True)
)
_LIMITS = np.iinfo(np.int64)
# Units of datetime64 that stores do not record: the unit in which their times are kept.
_RECORDED = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}

Attributes = MutableMapping[str, ArraySource]


def finest(units: Iterable[str]) -> str:
    """Return the finest of some units."""
    return max(units, key=_PER_DAY.__getitem__)


def in_unit(
    rows: npt.NDArray[Any], own: str, wanted: str, where: str, first: int = 0
) -> npt.NDArray[np.int64]:
    """Return times of a unit as int64 of another that is as fine or finer.

    `first` is the number of the first row, for messages.
    """
    factor = _PER_DAY[wanted] // _PER_DAY[own]
    times = rows.astype(np.int64, copy=False)
    bad = (times > _LIMITS.max // factor) | (times < -(_LIMITS.max // factor))
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), bad.shape)
        value, row = int(times[place]), first + int(place[0])
        if value == _LIMITS.min:
            raise _missing(where, row)
        raise InputError(
            f"{where}: row {row}: {value} {own} does not fit int64 in {wanted}, the finest unit of "
            "this name; store all of its columns in a coarser one"
        )
    return times * factor


class Datetimes(MappedRows):
    """Times of an array of datetime64 as int64, in its unit or the next that a store records."""

    def __init__(self, source: ArraySource) -> None:
        super().__init__(source, self._to_unit, dtype=np.int64)
        own, _ = np.datetime_data(source.dtype)
        unit = _RECORDED.get(own, own)
        if unit not in TIME_UNITS:
            raise InputError(
                f"{source.label}: is {source.dtype}, and units of times are "
                f"{', '.join(TIME_UNITS)}; convert it: values.astype('datetime64[ns]')"
            )
        self.time_unit, self.memory_bytes = unit, source.memory_bytes

    def _to_unit(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[np.int64]:
        found = rows.astype(f"M8[{self.time_unit}]")
        bad = np.isnat(rows) | (found.astype(rows.dtype) != rows)
        if bad.any():
            place = np.unravel_index(int(np.argmax(bad)), bad.shape)
            row, value = first + int(place[0]), rows[place]
            if np.isnat(value):
                raise _missing(self.label, row)
            raise InputError(
                f"{self.label}: row {row}: {value} does not fit int64 in {self.time_unit}"
            )
        return found.view(np.int64)


def as_times(source: ArraySource) -> ArraySource:
    """Return an array of datetime64 as integers that have a unit, and others as they are."""
    return Datetimes(source) if source.dtype.kind == "M" else source


def _missing(where: str, row: int) -> InputError:
    return InputError(f"{where}: row {row} is NaT; decide on a time for rows without one")


class TimesInUnit(MappedRows):
    """Times in a finer unit than their source's, int64."""

    def __init__(self, source: ArraySource, own: str, unit: str) -> None:
        self._own = own
        self.time_unit = unit
        super().__init__(source, self.convert, dtype=np.int64)
        self.memory_bytes = source.memory_bytes

    def convert(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[np.int64]:
        """Return rows of the source in the unit; `first` is the number of the first one."""
        return in_unit(rows, self._own, str(self.time_unit), self.label, first)


def settle_units(
    owners: Mapping[Any, Attributes], time_attr: Iterable[str], stated: Mapping[str, str]
) -> None:
    """Bring times of one name to one unit, given the attributes of all types.

    A unit that is stated for a name applies to the columns that have none.
    """
    for attributes in owners.values():
        attributes.update({name: as_times(own) for name, own in attributes.items()})
    known = {name for own in owners.values() for name, of in own.items() if of.time_unit}
    for name in sorted(known | stated.keys()):
        having = {owner: own for owner, own in owners.items() if name in own}
        units = {owner: own[name].time_unit for owner, own in having.items()}
        without = [owner for owner, unit in units.items() if unit is None]
        if name in stated:
            _check_stated(name, having, without)
            units |= dict.fromkeys(without, stated[name])
        elif without and name in time_attr:
            there = next(owner for owner, unit in units.items() if unit)
            raise InputError(
                f"time_attr={name!r}: {having[there][name].label} is in the unit {units[there]}, "
                f"and {having[without[0]][name].label} has none, so that they cannot be compared; "
                f"state it: time_unit={{{name!r}: 's'}} (--time-unit {name}=s), or D, ms, us, ns"
            )
        wanted = finest(unit for unit in units.values() if unit)
        for owner, own in having.items():
            unit = units[owner]
            if unit == wanted:
                own[name].time_unit = unit
            elif unit is not None:
                own[name] = TimesInUnit(own[name], unit, wanted)


def _check_stated(name: str, having: Mapping[Any, Attributes], without: list[Any]) -> None:
    if not having:
        raise UsageError(f"time_unit={name!r}: there is no such node or edge attribute")
    if not without:
        raise UsageError(
            f"time_unit={name!r}: all columns of this name state their unit; leave the option out"
        )
    for owner in without:
        source = having[owner][name]
        if source.dtype.kind not in "iu":
            raise InputError(
                f"{source.label}: is {source.dtype}, and times in a unit are integers; convert it"
            )
