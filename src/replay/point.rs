//! A point in the history: a sequence number, or a time.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// A point in the history, right after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// After this event.
    Seq(u64),
    /// Before the first event that is later by the wall clock, microseconds since 1970.
    Time(i64),
}

impl Point {
    /// Whether an event comes at or before this point, if all before it do. Wall clocks may be set back: whoever walks
    /// the history stops at the first event that does not.
    #[must_use]
    pub fn includes(self, seq: u64, wall_us: i64) -> bool {
        match self {
            Self::Seq(last) => seq <= last,
            Self::Time(last_us) => wall_us <= last_us,
        }
    }

    /// Whether this event or one before it is what a history since this point begins with.
    #[must_use]
    pub fn is_reached(self, seq: u64, wall_us: i64) -> bool {
        match self {
            Self::Seq(first) => seq >= first,
            Self::Time(first_us) => wall_us >= first_us,
        }
    }

    /// Reads a point: a sequence number, a time (RFC 3339, or without a zone for that of this host), a duration before
    /// now (`15m`), or `now`.
    ///
    /// # Errors
    /// What it takes.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_at(text, Timestamp::now(), &TimeZone::system())
    }

    fn parse_at(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Self, String> {
        if let Ok(seq) = text.parse() {
            return Ok(Self::Seq(seq));
        }
        let time = match text {
            "now" => Some(now),
            _ => text.parse().ok().or_else(|| local_time(text, zone)).or_else(|| before(text, now)),
        };
        time.map(|time| Self::Time(time.as_microsecond())).ok_or_else(|| {
            format!(
                "`{text}` is no point of the history; write a sequence number, a time as in 2026-11-30T16:45:00Z, or a duration before now as in 15m"
            )
        })
    }
}

fn local_time(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let time: DateTime = text.parse().ok()?;
    Some(time.to_zoned(zone.clone()).ok()?.timestamp())
}

fn before(text: &str, now: Timestamp) -> Option<Timestamp> {
    let duration: SignedDuration = text.parse().ok()?;
    if duration.is_negative() {
        return None;
    }
    now.checked_sub(duration).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_numbers_times_or_durations() {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let parse = |text| Point::parse_at(text, now, &TimeZone::UTC);
        let time =
            |text: &str| Ok(Point::Time(text.parse::<Timestamp>().unwrap().as_microsecond()));
        assert_eq!(parse("17"), Ok(Point::Seq(17)));
        assert_eq!(parse("2026-11-30T10:00:00.5Z"), time("2026-11-30T10:00:00.5Z"));
        assert_eq!(parse("2026-11-30T10:00:00+02:00"), time("2026-11-30T08:00:00Z"));
        assert_eq!(parse("2026-11-30 10:00"), time("2026-11-30T10:00:00Z"));
        assert_eq!(parse("2026-11-30"), time("2026-11-30T00:00:00Z"));
        assert_eq!(parse("15m"), time("2026-11-30T11:45:00Z"));
        assert_eq!(parse("now"), time("2026-11-30T12:00:00Z"));
        for bad in ["", "-1", "soon", "-15m", "25:00"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_clock_set_back_does_not_bring_a_time_back() {
        let walls = [10, 20, 5, 30];
        let until = Point::Time(15);
        let shown = walls.iter().zip(1..).take_while(|(wall, seq)| until.includes(*seq, **wall));
        assert_eq!(shown.count(), 1);
    }
}
