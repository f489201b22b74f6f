//! Who held what when, as a picture (SVG): a row for each key and contender.

use std::fmt::Write;

use crate::contender;
use rlock_testkit::history::checker::Violation;
use rlock_testkit::history::{History, Hold, Moment, seconds};

const ROW: usize = 16;
const LEFT: f64 = 150.0;
const TOP: usize = 92;

/// A longer run gets fewer pixels for each second, and a wider picture.
struct Scale {
    pixels: f64,
}

impl Scale {
    fn of(end: Moment) -> Self {
        let length = to_seconds(end).max(1.0);
        Self {
            pixels: (2_400.0 / length).clamp(24.0, 120.0),
        }
    }

    fn x(&self, moment: Moment) -> f64 {
        LEFT + to_seconds(moment) * self.pixels
    }
}

fn to_seconds(moment: Moment) -> f64 {
    std::time::Duration::from_micros(moment).as_secs_f64()
}

pub(crate) fn draw(world: &str, seed: u64, history: &History, violations: &[Violation]) -> String {
    let end = history.end();
    let scale = Scale::of(end);
    let rows = rows(history);
    let (width, bottom) = (scale.x(end) + 40.0, TOP + rows.len() * ROW);
    let mut svg = String::new();
    let height = bottom + 30;
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"15\">{world}, seed {seed}: {} holds, {} faults, {} violations</text>\n",
        history.holds.len(),
        history.faults.len(),
        violations.len()
    );
    legend(&mut svg);
    draw_faults(&mut svg, history, &scale, bottom);
    draw_rows(&mut svg, &rows, &scale, end, bottom);
    for (row, contender) in rows.iter().enumerate() {
        let holds = history
            .holds
            .iter()
            .filter(|hold| hold.contender == *contender);
        holds.for_each(|hold| draw_hold(&mut svg, hold, TOP + row * ROW, &scale));
    }
    draw_violations(&mut svg, violations, &rows, &scale, bottom);
    svg.push_str("</svg>\n");
    svg
}

/// Contenders, those for one key together.
fn rows(history: &History) -> Vec<usize> {
    let last = history.calls.iter().map(|call| call.contender).max();
    let mut rows: Vec<_> = (0..=last.unwrap_or(0)).collect();
    rows.sort_by_key(|row| contender::name(*row));
    rows
}

fn legend(svg: &mut String) {
    let entries = [
        (
            "hsl(0, 65%, 55%)",
            "valid hold; a colour for each process, a shade for each owner",
        ),
        ("url(#none)", "shared hold: half as high"),
        ("#555", "not valid any more, not yet ended"),
        ("#f6d9a8", "fault, until all is well"),
        ("red", "violation"),
    ];
    let mut x = 8;
    for (fill, text) in entries {
        let (fill, height) = if fill == "url(#none)" {
            ("hsl(0, 65%, 55%)", 5)
        } else {
            (fill, 10)
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"31\" width=\"18\" height=\"{height}\" fill=\"{fill}\"/><text x=\"{}\" y=\"40\">{text}</text>",
            x + 23
        );
        x += 40 + text.len() * 6;
    }
}

fn draw_faults(svg: &mut String, history: &History, scale: &Scale, bottom: usize) {
    for (number, fault) in history.faults.iter().enumerate() {
        let (from, to) = (
            scale.x(fault.begun),
            scale.x(fault.healed.unwrap_or(history.end())),
        );
        // Two lines, so that names that are close do not hide each other.
        let y = if number % 2 == 0 { 62 } else { 76 };
        let _ = writeln!(
            svg,
            "<g><title>{kind} ({detail}), {} to {}</title><rect x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" \
             fill=\"#f6d9a8\" fill-opacity=\"0.6\"/><line x1=\"{from:.1}\" x2=\"{from:.1}\" y1=\"{y}\" y2=\"{bottom}\" \
             stroke=\"#c70\"/><text x=\"{from:.1}\" y=\"{y}\" fill=\"#a50\">{kind}</text></g>",
            seconds(fault.begun),
            seconds(fault.healed.unwrap_or(0)),
            kind = fault.kind,
            detail = escaped(&fault.detail),
            width = (to - from).max(1.0),
            height = bottom - y,
        );
    }
}

fn draw_rows(svg: &mut String, rows: &[usize], scale: &Scale, end: Moment, bottom: usize) {
    let right = scale.x(end);
    for (row, contender) in rows.iter().enumerate() {
        let (key, process) = contender::name(*contender);
        let y = TOP + row * ROW;
        let is_first = row == 0 || contender::name(rows[row - 1]).0 != key;
        let stroke = if is_first { "#888" } else { "#e4e4e4" };
        let _ = writeln!(
            svg,
            "<line x1=\"8\" x2=\"{right:.0}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{stroke}\"/>\
             <text x=\"8\" y=\"{}\">{key}, process {process}</text>",
            y + 12
        );
    }
    for second in (0..=end / 1_000_000).step_by(5) {
        let x = scale.x(second * 1_000_000);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" fill=\"#666\">{second} s</text>",
            bottom + 16
        );
    }
}

fn draw_hold(svg: &mut String, hold: &Hold, y: usize, scale: &Scale) {
    let (y, height) = (y + 2, if hold.is_shared { ROW / 2 - 2 } else { ROW - 4 });
    let (_, process) = contender::name(hold.contender);
    let shade = 40 + hold.owner.bytes().map(usize::from).sum::<usize>() % 4 * 9;
    let title = format!(
        "{} by {} ({:?}), fence {}, granted {}, ended {} ({})",
        hold.key,
        hold.contender,
        hold.owner,
        hold.fence,
        seconds(hold.granted),
        seconds(hold.ended.unwrap_or(0)),
        hold.end
    );
    let mut bar = |from: Moment, to: Moment, fill: &str| {
        let width = (scale.x(to) - scale.x(from)).max(0.8);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{fill}\"><title>{}</title></rect>",
            scale.x(from),
            escaped(&title)
        );
    };
    let last = hold.believed.map_or(hold.granted, |(_, last)| last);
    bar(
        hold.granted,
        last,
        &format!("hsl({}, 65%, {shade}%)", process * 90),
    );
    if let Some(ended) = hold.doubted.and(hold.ended) {
        bar(last, ended, "#555");
    }
}

fn draw_violations(
    svg: &mut String,
    violations: &[Violation],
    rows: &[usize],
    scale: &Scale,
    bottom: usize,
) {
    for violation in violations {
        let x = scale.x(violation.moment);
        let of_key = |row: &usize| {
            violation.key.is_empty() || contender::name(rows[*row]).0 == violation.key
        };
        let first = (0..rows.len()).find(of_key).unwrap_or(0);
        let count = (0..rows.len()).filter(of_key).count();
        let _ = writeln!(
            svg,
            "<g><title>{}</title><rect x=\"{:.1}\" y=\"{}\" width=\"6\" height=\"{}\" fill=\"none\" stroke=\"red\" \
             stroke-width=\"2\"/><text x=\"{x:.1}\" y=\"{}\" fill=\"red\">{:?}</text></g>",
            escaped(&violation.text),
            x - 3.0,
            TOP + first * ROW,
            count * ROW,
            bottom + 28,
            violation.rule
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}
