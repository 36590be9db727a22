//! The report of a run: as a text with a chart, as JSON, and as an HTML page.

use std::fmt::{self, Write as _};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::Plan;
use super::load::Tally;
use super::repeats::Repeats;
use crate::output::printable;

/// The length of the chart's longest bar, in characters.
const WIDTH: f64 = 50.0;

/// The results of a run. Times are milliseconds (except `seconds`); ids are strings, as in all JSON
/// of `leaf`.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) target: String,
    pub(super) connections: usize,
    /// The requested rate per second; `null` if there was none.
    pub(super) rate: Option<u32>,
    pub(super) seconds: f64,
    /// How many requests were answered with an id; `per_second` is the rate of those answered in
    /// time.
    pub(super) answered: u64,
    pub(super) per_second: f64,
    /// How many requests were due and not sent before the end.
    pub(super) unsent: u64,
    /// From when a request was due to its answer.
    pub(super) response_ms: Times,
    /// From when a request was sent to its answer.
    pub(super) service_ms: Times,
    /// Requests without an id, grouped by the server's answer or the error.
    pub(super) failures: Vec<Failed>,
    /// How many ids were compared; `repeated` of them had come before, and `examples` has some of
    /// these.
    pub(super) compared: u64,
    pub(super) repeated: u64,
    pub(super) examples: Vec<String>,
    /// The rates that `--ramp` tried.
    pub(super) steps: Vec<Step>,
    /// A histogram of the response times: for each bucket its upper bound in milliseconds, and its
    /// share of all requests.
    pub(super) spread: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct Failed {
    what: String,
    count: u64,
}

/// Percentiles in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Times {
    fn of(times: &Histogram<u64>) -> Self {
        let at = |quantile| millis(times.value_at_quantile(quantile));
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: millis(times.max()),
        }
    }
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// A rate that `--ramp` tried.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    rate: u32,
    per_second: f64,
    p99_ms: f64,
    /// Whether 99 % of its requests were answered fast enough, and none failed.
    pub(super) holds: bool,
}

impl Step {
    pub(super) fn new(rate: u32, tally: &Tally, fast: Duration) -> Self {
        let p99 = tally.response.value_at_quantile(0.99);
        let is_whole = tally.failures.is_empty() && !tally.is_interrupted;
        let holds = is_whole && u128::from(p99) < fast.as_micros() && tally.answered > 0;
        Self { rate, per_second: per_second(tally), p99_ms: millis(p99), holds }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, per_second, p99_ms, .. } = self;
        let how = if self.holds { "holds" } else { "too many" };
        write!(f, "{rate}/s: {per_second:.0}/s answered, 99 % within {p99_ms:.1} ms: {how}")
    }
}

fn per_second(tally: &Tally) -> f64 {
    tally.in_time as f64 / tally.lasted.as_secs_f64().max(0.001)
}

impl Measured {
    pub(super) fn new(plan: &Plan, tally: &Tally, steps: Vec<Step>, repeats: Repeats) -> Self {
        let failures = tally.failures.iter();
        let failures = failures.map(|(what, count)| Failed {
            what: printable(&plan.target.hide(what)),
            count: *count,
        });
        Self {
            target: printable(&plan.target.shown),
            connections: plan.connections,
            rate: plan.rate,
            seconds: (tally.lasted.as_secs_f64() * 10.0).round() / 10.0,
            answered: tally.answered,
            per_second: per_second(tally).round(),
            unsent: tally.unsent,
            response_ms: Times::of(&tally.response),
            service_ms: Times::of(&tally.service),
            failures: failures.collect(),
            compared: repeats.ids,
            repeated: repeats.repeated,
            examples: repeats.examples.iter().map(u64::to_string).collect(),
            steps,
            spread: spread(&tally.response),
        }
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let rate = self.rate.map_or("as many as are answered".into(), |rate| format!("{rate}/s"));
        let checked = match self.repeated {
            0 => format!("{} compared, each of them once", self.compared),
            again => format!(
                "{} compared, {again} HAD COME BEFORE: {}",
                self.compared,
                self.examples.join(", ")
            ),
        };
        let mut lines = vec![
            ("measured", self.target.clone()),
            (
                "asked for",
                format!("{rate}, on {} connections, for {} s", self.connections, self.seconds),
            ),
            ("answered", format!("{}, {}/s", self.answered, self.per_second)),
            ("ids", checked),
        ];
        if self.unsent > 0 {
            lines.push((
                "not sent",
                format!("{} that were due: no connection was free", self.unsent),
            ));
        }
        lines.extend(
            self.failures
                .iter()
                .map(|failed| ("refused", format!("{} × {}", failed.count, failed.what))),
        );
        lines
    }
}

/// Returns a histogram of `times`, with buckets whose upper bounds double, and without the empty
/// buckets at both ends. Each bucket is its upper bound in milliseconds, and its share of all
/// times.
fn spread(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    if times.is_empty() {
        return Vec::new();
    }
    let (mut parts, mut below, mut bound) = (Vec::new(), 0, 32);
    loop {
        let count = times.count_between(below, bound - 1);
        if count > 0 || !parts.is_empty() {
            parts.push((millis(bound), count as f64 / times.len() as f64));
        }
        if bound > times.max() {
            return parts;
        }
        (below, bound) = (bound, bound * 2);
    }
}

/// The text for a terminal.
pub(super) fn text(measured: &Measured) -> String {
    let mut text = String::new();
    for (name, value) in measured.lines() {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    let _ = writeln!(
        text,
        "\n{:<10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "ms", "50 %", "90 %", "99 %", "99.9 %", "max"
    );
    for (name, times) in [("response", &measured.response_ms), ("service", &measured.service_ms)] {
        let Times { p50, p90, p99, p999, max } = times;
        let _ =
            writeln!(text, "{name:<10} {p50:>9.3} {p90:>9.3} {p99:>9.3} {p999:>9.3} {max:>9.3}");
    }
    let most = measured.spread.iter().map(|(_, part)| *part).fold(0.0, f64::max);
    if !measured.spread.is_empty() {
        text.push('\n');
    }
    for (bound, part) in &measured.spread {
        let bar = "#".repeat((part / most * WIDTH).round() as usize);
        let line = format!("< {bound:>9.3} ms {:>6.2} % {bar}", part * 100.0);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The report as an HTML page that loads no other file.
pub(super) fn html(measured: &Measured) -> String {
    let mut rows = String::new();
    for (name, value) in measured.lines() {
        let _ = write!(rows, "<tr><th>{name}<td>{}", escape(&value));
    }
    let mut times = String::new();
    for (name, it) in [("response", &measured.response_ms), ("service", &measured.service_ms)] {
        let _ = write!(times, "<tr><th>{name}");
        for value in [it.p50, it.p90, it.p99, it.p999, it.max] {
            let _ = write!(times, "<td>{value:.3}");
        }
    }
    let most = measured.spread.iter().map(|(_, part)| *part).fold(0.0, f64::max);
    let mut bars = String::new();
    for (bound, part) in &measured.spread {
        let _ = write!(
            bars,
            "<tr><th>&lt; {bound:.3} ms<td>{:.2} %<td><meter max=\"{most}\" value=\"{part}\"></meter>",
            part * 100.0
        );
    }
    let mut steps = String::new();
    if !measured.steps.is_empty() {
        steps.push_str("<h2>Rates</h2><ul>");
        for step in &measured.steps {
            let _ = write!(steps, "<li>{step}");
        }
        steps.push_str("</ul>");
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>leaf bench: {title}</title>\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}}\
         th{{text-align:left;font-weight:400;padding-right:1.5rem}}td{{padding-right:1.5rem;font-variant-numeric:tabular-nums}}\
         meter{{width:min(24rem,40vw)}}</style>\
         <h1>{title}</h1><table>{rows}</table>\
         <h2>Milliseconds</h2><table><tr><th><th>50 %<th>90 %<th>99 %<th>99.9 %<th>max{times}</table>\
         <p>Response: from when a request was due. Service: from when it was sent.</p>\
         <h2>Response times</h2><table>{bars}</table>{steps}\n",
        title = escape(&measured.target)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_has_every_time_once() {
        let mut times = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        for time in [1, 31, 32, 33, 63, 64, 1000] {
            times.record(time).unwrap();
        }
        let spread = spread(&times);
        assert_eq!(spread.len(), 6, "{spread:?}");
        let counts: Vec<_> = spread.iter().map(|(_, part)| (part * 7.0).round() as u64).collect();
        assert_eq!(counts, [2, 3, 1, 0, 0, 1]);
    }

    #[test]
    fn what_a_server_says_is_no_part_of_the_page() {
        assert_eq!(escape("<b a=\"x\">&"), "&lt;b a=&quot;x&quot;&gt;&amp;");
    }
}
