//! A small line plot as SVG: panels side by side with one scale.
//!
//! It has its own ground and its own colours for light and for dark, by the reader's preference. The lines differ by their
//! dashes and by their labels too, not by colour alone.

use std::fmt::Write as _;

/// One of the panels: the same lines over other things.
pub(crate) struct Panel {
    /// What the ticks count.
    pub(crate) label: String,
    /// The places on the horizontal axis, as far from each other as they are.
    pub(crate) ticks: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

/// A value at each tick.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 240.0;
/// Left of the first panel, for the numbers; and above and below, for titles and ticks.
const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
const GAP: f64 = 36.0;

const STYLE: &str = "\
  svg { --ground: #ffffff; --ink: #24292f; --grid: #d0d7de; --a: #0969da; --b: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #161b22; --ink: #e6edf3; --grid: #30363d; --a: #58a6ff; --b: #f0883e; }
  }
  .ground { fill: var(--ground); }
  text { fill: var(--ink); font: 12px system-ui, sans-serif; }
  .title { font-size: 14px; font-weight: 600; }
  .grid { stroke: var(--grid); stroke-width: 1; }
  .axis { stroke: var(--ink); stroke-width: 1; }
  .line { fill: none; stroke-width: 2; }
  .l0 { stroke: var(--a); }
  .l1 { stroke: var(--b); stroke-dasharray: 5 4; }
  .d0 { fill: var(--a); }
  .d1 { fill: var(--b); }
";

/// The whole picture.
pub(crate) fn draw(title: &str, panels: &[Panel]) -> String {
    let width = panels.iter().fold(LEFT, |width, _| width + WIDTH + GAP);
    let height = TOP + HEIGHT + BOTTOM;
    let step = step(panels);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>\n{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    text(&mut svg, (LEFT, 24.0), "title", "start", title);
    let mut left = LEFT;
    for panel in panels {
        draw_panel(&mut svg, panel, left, step);
        left += WIDTH + GAP;
    }
    legend(&mut svg, panels, width - GAP);
    svg.push_str("</svg>\n");
    svg
}

/// The distance of the lines of the grid, of which there are four: 1, 2, 2.5 or 5 times a power of ten.
fn step(panels: &[Panel]) -> f64 {
    let values = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.values);
    let most = values.copied().fold(1.0, f64::max) / 4.0;
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= most).unwrap_or(most)
}

fn draw_panel(svg: &mut String, panel: &Panel, left: f64, step: f64) {
    let (right, bottom) = (left + WIDTH, TOP + HEIGHT);
    let height = |value: f64| bottom - value / (4.0 * step) * HEIGHT;
    for number in [0.0, 1.0, 2.0, 3.0, 4.0] {
        let (value, class) = (number * step, if number == 0.0 { "axis" } else { "grid" });
        rule(svg, class, (left, height(value)), (right, height(value)));
        if left <= LEFT {
            text(svg, (left - 8.0, height(value) + 4.0), "", "end", &format!("{value}"));
        }
    }
    rule(svg, "axis", (left, TOP), (left, bottom));
    let places = places(panel.ticks.len(), left);
    for (tick, x) in panel.ticks.iter().zip(&places) {
        rule(svg, "axis", (*x, bottom), (*x, bottom + 4.0));
        text(svg, (*x, bottom + 18.0), "", "middle", tick);
    }
    text(svg, (left + WIDTH / 2.0, bottom + 40.0), "", "middle", &panel.label);
    for (number, line) in panel.lines.iter().enumerate() {
        let points = places.iter().zip(&line.values).map(|(x, value)| (*x, height(*value)));
        draw_line(svg, number, &points.collect::<Vec<_>>());
    }
}

/// Where the ticks are: half a distance from both edges.
#[expect(clippy::cast_precision_loss, reason = "a handful of ticks")]
fn places(ticks: usize, left: f64) -> Vec<f64> {
    let distance = WIDTH / ticks.max(1) as f64;
    (0..ticks).map(|tick| left + distance * (tick as f64 + 0.5)).collect()
}

fn draw_line(svg: &mut String, number: usize, points: &[(f64, f64)]) {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let _ = writeln!(svg, "<polyline class=\"line l{number}\" points=\"{path}\"/>");
    for (x, y) in points {
        let _ = writeln!(svg, "<circle class=\"d{number}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
    }
}

/// The names of the lines, in the upper right corner, the first outermost.
fn legend(svg: &mut String, panels: &[Panel], right: f64) {
    let Some(panel) = panels.first() else { return };
    let mut right = right;
    for (number, line) in panel.lines.iter().enumerate().rev() {
        text(svg, (right, 24.0), "", "end", &line.name);
        // Names are short; each has room for nine letters.
        draw_line(svg, number, &[(right - 96.0, 20.0), (right - 64.0, 20.0)]);
        right -= 120.0;
    }
}

fn rule(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, said: &str) {
    let said = said.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{said}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64]) -> Panel {
        Panel {
            label: "a & b".to_owned(),
            ticks: values.iter().map(f64::to_string).collect(),
            lines: vec![Line { name: "one".to_owned(), values: values.to_vec() }],
        }
    }

    #[test]
    fn the_largest_value_is_within_the_grid_and_fills_half_of_it() {
        for largest in [1.0, 3.0, 9.9, 41.0, 812.0, 1000.0, 2999.0] {
            let top = 4.0 * step(&[panel(&[0.5, largest])]);
            assert!(largest <= top && top <= 4.0_f64.max(2.6 * largest), "{largest} in {top}");
        }
    }

    #[test]
    fn every_value_has_its_point_and_every_tick_its_text() {
        let svg = draw("rates", &[panel(&[10.0, 40.0]), panel(&[20.0])]);
        // Two of the legend's line.
        assert_eq!(svg.matches("<circle").count(), 3 + 2);
        assert!(svg.contains(">10</text>") && svg.contains(">40</text>"));
        assert!(svg.contains("a &amp; b"), "text is escaped");
        let highest = format!("cy=\"{TOP:.1}\"");
        assert!(svg.contains(&highest), "40 lies on the top of a grid that ends at 40");
    }
}
