//! Values of flags.

use std::time::Duration;

use clap::{Args, ValueEnum};

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

/// The flag that chooses how data is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArg {
    /// How data is printed
    #[arg(
        short = 'o',
        long = "output",
        visible_alias = "format",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(crate) format: Format,
}

/// The flag that bounds the wait for locks.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct LockTimeout {
    /// How long to wait for what somebody else works on
    #[arg(
        long = "timeout",
        value_name = "DURATION",
        default_value = "60s",
        value_parser = duration,
        allow_hyphen_values = true
    )]
    pub(crate) timeout: Duration,
}

/// Reads a size: bytes, or a number with K, M, G or T (powers of 1024).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is not a size; write bytes or a number with K, M, G or T, as in 512M");
    let plain = text.trim().trim_end_matches(['b', 'B']).trim_end_matches(['i', 'I']);
    let (digits, shift) = match plain.char_indices().last() {
        Some((at, 'k' | 'K')) => (&plain[..at], 10),
        Some((at, 'm' | 'M')) => (&plain[..at], 20),
        Some((at, 'g' | 'G')) => (&plain[..at], 30),
        Some((at, 't' | 'T')) => (&plain[..at], 40),
        _ => (plain, 0),
    };
    let digits = digits.trim();
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("`{text}` is not a size that anything has; it is 2^64 bytes or more")
    })
}

/// Reads a duration: `500ms`, `10s`, `2m`, `1h 30m`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write it as in 500ms, 10s or 2m");
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(parsed).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("4096"), Ok(4096));
        for bad in ["", "M", "-1G", "1.5G", "1X", "99999999999T", "ä"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert!(size("1e9").unwrap_err().contains("as in 512M"));
        for huge in ["16777216T", "18446744073709551616", "99999999999999999999999999G"] {
            assert!(size(huge).unwrap_err().contains("2^64 bytes or more"), "{huge}");
        }
        assert_eq!(size("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "-5s", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
