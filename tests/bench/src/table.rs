//! Numbers and how they are printed.

use std::time::Duration;

/// The value below which a share of all lies; zero of none.
pub(crate) fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a short list"
    )]
    let at = ((sorted.len() as f64 - 1.0) * share).round().max(0.0) as usize;
    sorted.get(at).copied().unwrap_or_default()
}

pub(crate) fn median(values: &[Duration]) -> Duration {
    quantile(values, 0.5)
}

/// The middle one of some numbers; zero of none.
pub(crate) fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

pub(crate) fn ms(value: Duration) -> String {
    format!("{:.2}", value.as_secs_f64() * 1e3)
}

pub(crate) fn ratio(a: Duration, b: Duration) -> String {
    format!("{:.2}", a.as_secs_f64() / b.as_secs_f64().max(1e-9))
}

/// Prints a row of a Markdown table.
pub(crate) fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// Prints the head of a Markdown table.
pub(crate) fn head(cells: &[&str]) {
    row(&cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    row(&cells.iter().map(|_| "---".to_owned()).collect::<Vec<_>>());
}
