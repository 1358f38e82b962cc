//! `/metrics`: Prometheus text.

use std::fmt::Write as _;

use crate::daemon::board::Board;

/// All metrics.
pub(super) fn render(board: &Board) -> String {
    let counts = board.counts();
    let mut text = String::new();
    heading(&mut text, "cocoon_vms", "gauge", "VMs by state.");
    for (state, count) in board.by_state() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "cocoon_vms{{state=\"{state}\"}} {count}");
    }
    let gauges: [(&str, &str, usize); 4] = [
        (
            "cocoon_root_unconfirmed",
            "1 if nothing is done before `cocoon adopt`.",
            usize::from(board.is_unconfirmed()),
        ),
        ("cocoon_vms_degraded", "VMs that cannot be brought to rest now.", counts.degraded),
        ("cocoon_vms_settling", "VMs that are being brought to rest.", counts.settling),
        ("cocoon_vmms_watched", "VMMs whose exit is waited for.", counts.watched),
    ];
    for (name, help, value) in gauges {
        metric(&mut text, name, "gauge", help, value);
    }
    let counters: [(&str, &str, u64); 5] = [
        ("cocoon_passes_total", "Full passes made.", counts.passes),
        ("cocoon_passes_failed_total", "Full passes that could not be made.", counts.failed_passes),
        ("cocoon_failures_total", "Attempts on single VMs that failed.", counts.failures),
        ("cocoon_exits_recorded_total", "Unexpected exits recorded.", counts.exits),
        ("cocoon_settled_total", "VMs brought to rest.", counts.settled),
    ];
    for (name, help, value) in counters {
        metric(&mut text, name, "counter", help, value);
    }
    if let Some(age) = board.pass_age() {
        let help = "Seconds since the last full pass.";
        metric(&mut text, "cocoon_last_pass_age_seconds", "gauge", help, age.as_secs_f64());
    }
    metric(&mut text, "cocoon_journal_seq", "gauge", "Last event that was read.", counts.seq);
    text
}

fn heading(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
    heading(text, name, kind, help);
    let _ = writeln!(text, "{name} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_value_has_a_type_and_every_state_is_there() {
        let board = Board::new(Duration::from_secs(5));
        board.passed(|_| true);
        let text = render(&board);
        assert!(text.contains("cocoon_vms{state=\"creating\"} 0\n"), "{text}");
        assert!(text.contains("cocoon_passes_total 1\n"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
        }
    }
}
