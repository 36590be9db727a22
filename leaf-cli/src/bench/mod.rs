//! `leaf bench`: how many ids a server hands out, how fast, and whether one comes twice.
//!
//! Invariant: a response time counts from the moment when the request was due, not from when it was
//! sent. A server that stalls for a second makes all requests of that second late, also those that
//! no connection was free to send. Without a rate, each connection sends its next request when it
//! has its answer: then a request is due when it is sent.

#[cfg(feature = "grpc")]
mod grpc;
mod load;
mod repeats;
mod report;
mod schedule;
mod target;
mod wire;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use load::Tally;
use report::{Measured, Step};
use target::Target;
pub(crate) use target::redis_number;
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::Done;
use crate::cli::{Bench, Output};

/// `--ramp` looks for the highest rate at which 99 of 100 requests are answered within this time.
const FAST: Duration = Duration::from_millis(10);
/// The first rate of `--ramp`, in requests a second.
const FIRST_RATE: u32 = 1000;
/// The number of times that `--ramp` halves the distance between a good rate and one that is too
/// high.
const HALVINGS: u32 = 5;
/// How long `--ramp` tries each rate by default; [`RUN`] is the default duration of a run without
/// it.
const STEP: Duration = Duration::from_secs(3);
const RUN: Duration = Duration::from_secs(10);

/// The settings of one run.
#[derive(Debug, Clone)]
struct Plan {
    target: Arc<Target>,
    connections: usize,
    /// Requests a second. `None`: each connection sends the next request when it has its answer.
    rate: Option<u32>,
    duration: Duration,
}

/// State that the threads of a run share with the task that shows its progress.
#[derive(Debug, Default)]
struct Progress {
    answered: AtomicU64,
    /// The run is over.
    over: AtomicBool,
}

/// Sends the load, checks the ids and reports.
///
/// # Errors
/// The server cannot be reached, or gives no id, or an id comes twice: the report is printed before
/// the error.
pub(crate) async fn run(bench: &Bench, output: Output) -> Result<Done> {
    let target = Arc::new(Target::new(bench)?);
    let ids = repeats::Checker::start()
        .context("a file for the ids, in the directory for temporary files")?;
    // What cannot be written is told before the run.
    let page = bench.html.as_ref().map(|file| {
        let made = std::fs::File::create(file).with_context(|| file.display().to_string())?;
        anyhow::Ok((made, file))
    });
    let page = page.transpose()?;
    let duration = bench.duration.map(crate::cli::Span::duration);
    let mut plan = Plan {
        target,
        connections: bench.connections as usize,
        rate: bench.rate,
        duration: duration.unwrap_or(if bench.ramp { STEP } else { RUN }),
    };
    let mut steps = Vec::new();
    let tally = if bench.ramp {
        ramp(&mut plan, &ids, &mut steps).await?
    } else {
        once(&plan, &ids).await?
    };
    let repeats = tokio::task::spawn_blocking(move || ids.finish()).await??;
    let measured = Measured::new(&plan, &tally, steps, repeats);
    if let Some((mut page, file)) = page {
        let text = report::html(&measured);
        page.write_all(text.as_bytes()).with_context(|| file.display().to_string())?;
    }
    let trouble = match &measured {
        Measured { repeated: 1.., .. } => {
            Some(anyhow!("{} ids came twice: {}", measured.repeated, measured.examples.join(", ")))
        }
        Measured { answered: 0, .. } => {
            let why = tally.failures.keys().next().map_or("no answer", String::as_str);
            let why = plan.target.hide(why);
            let code =
                if tally.is_reached { crate::exit::FAILED } else { crate::exit::UNREACHABLE };
            Some(crate::exit::with(code, anyhow!("no id was answered: {why}")))
        }
        _ => None,
    };
    let text = report::text(&measured).trim_end().to_owned();
    Ok(Done::but(crate::output::one(&measured, text, output), trouble))
}

/// Finds the highest rate that is answered fast. Returns the tally of that rate.
async fn ramp(plan: &mut Plan, ids: &repeats::Checker, steps: &mut Vec<Step>) -> Result<Tally> {
    let (mut rate, mut good, mut bad) = (plan.rate.unwrap_or(FIRST_RATE), None, None);
    let mut halvings = 0;
    loop {
        plan.rate = Some(rate);
        let tally = once(plan, ids).await?;
        let step = Step::new(rate, &tally, FAST);
        let holds = step.holds;
        crate::complain(&step);
        steps.push(step);
        match holds {
            _ if tally.is_interrupted => return Ok(tally),
            true => good = Some((rate, tally)),
            // Nothing lower was tried, or is worth it.
            false if good.is_none() && rate < 2 => return Ok(tally),
            false => bad = Some(rate),
        }
        rate = match (good.as_ref().map(|(rate, _)| *rate), bad) {
            (None, Some(bad)) => bad / 4,
            (Some(good), None) => good.saturating_mul(2),
            (Some(good), Some(bad)) if halvings < HALVINGS && bad - good > 1 => {
                halvings += 1;
                good + (bad - good) / 2
            }
            _ => break,
        }
        .max(1);
    }
    let (rate, tally) = good.context("no rate is answered fast")?;
    plan.rate = Some(rate);
    Ok(tally)
}

/// Runs the load once.
async fn once(plan: &Plan, ids: &repeats::Checker) -> Result<Tally> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(plan.connections);
    let progress = Arc::new(Progress::default());
    let mut parts = Vec::new();
    // All connections stand before the first request is due.
    let ready = Arc::new(tokio::sync::Barrier::new(threads + 1));
    // Before any thread waits for the others.
    let runtimes = (0..threads).map(|_| Builder::new_current_thread().enable_all().build());
    let runtimes = runtimes.collect::<std::io::Result<Vec<_>>>()?;
    for (index, runtime) in runtimes.into_iter().enumerate() {
        let part = load::Part { plan: plan.clone(), index, threads, ready: Arc::clone(&ready) };
        let (progress, ids) = (Arc::clone(&progress), ids.sender());
        parts.push(std::thread::spawn(move || load::run(&runtime, &part, &progress, ids)));
    }
    ready.wait().await;
    let begun = Instant::now();
    let joined = tokio::task::spawn_blocking(move || {
        let joined = parts.into_iter().map(std::thread::JoinHandle::join);
        let joined =
            joined.map(|part| part.map_err(|_| anyhow!("a thread of the load panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    });
    tokio::pin!(joined);
    let mut lasted = Duration::MAX;
    let (is_interrupted, parts) = tokio::select! {
        is_interrupted = show_progress(plan, &progress, begun) => {
            progress.over.store(true, Ordering::Relaxed);
            lasted = begun.elapsed();
            (is_interrupted, joined.await)
        }
        // They are a little earlier, or none has a connection.
        parts = &mut joined => (false, parts),
    };
    let lasted = lasted.min(begun.elapsed()).min(plan.duration);
    let mut all = Tally { lasted, is_interrupted, ..Tally::default() };
    for part in parts?? {
        all.add(part)?;
    }
    Ok(all)
}

/// Shows the progress on a terminal until the run is over or interrupted. Returns whether it was
/// interrupted.
async fn show_progress(plan: &Plan, progress: &Progress, begun: Instant) -> bool {
    const WIDTH: usize = 30;
    let shows = std::io::stderr().is_terminal();
    let end = tokio::time::sleep(plan.duration);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(end, interrupted);
    let mut each = tokio::time::interval(Duration::from_millis(500));
    let mut before = 0;
    let is_interrupted = loop {
        tokio::select! {
            () = &mut end => break false,
            _ = &mut interrupted => break true,
            _ = each.tick() => {}
        }
        if !shows {
            continue;
        }
        let answered = progress.answered.load(Ordering::Relaxed);
        let part = begun.elapsed().as_secs_f64() / plan.duration.as_secs_f64();
        let full = ((part * WIDTH as f64) as usize).min(WIDTH);
        let (bar, rest) = ("#".repeat(full), ".".repeat(WIDTH - full));
        let _ = write!(
            std::io::stderr(),
            "\r[{bar}{rest}] {:.0} of {:.0} s  {}/s ",
            begun.elapsed().as_secs_f64(),
            plan.duration.as_secs_f64(),
            (answered - before) * 2
        );
        before = answered;
    };
    if shows {
        let _ = write!(std::io::stderr(), "\r{:width$}\r", "", width = WIDTH + 40);
    }
    is_interrupted
}
