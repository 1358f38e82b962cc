//! How far a long piece of work is, where a terminal shows it.

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output;

/// A bar that appears with the first step, and goes with the value.
pub(super) struct Progress {
    what: &'static str,
    unit: &'static str,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new(what: &'static str, unit: &'static str) -> Self {
        Self { what, unit, bar: None }
    }

    pub(super) fn show(&mut self, done: u64, total: u64) {
        if !output::is_animated() {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(self.what, self.unit, total));
        bar.set_position(done);
    }
}

fn bar(what: &'static str, unit: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = format!("{{msg}} [{{bar:30}}] {{pos}}/{{len}} {unit} {{per_sec}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
