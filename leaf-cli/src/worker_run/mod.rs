//! `leaf worker run`: a program that makes ids itself gets a worker id that nobody else has.
//!
//! Invariant: while the command runs, the clock is below the registry's ceiling of its worker id,
//! so that nobody else can claim it. Three mechanisms ensure this: this process ends the command
//! before the ceiling; the guard, a separate process, ends it if this process is frozen or killed;
//! and the kernel kills the command when this process ends. The next holder's floor is above the
//! last moment at which the command ran.

mod child;
mod guard;

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use child::Child;
use guard::Guard;
use leaf_core::{Clock as _, UnixMillis, WorkerId};
use leaf_node::config::{Config, ConfigError};
use leaf_registry::RegistryKind;
use leaf_snowflake::{
    Identity, RegistryError, RegistryErrorKind, SnowflakeError, SnowflakeErrorKind,
    SnowflakeGenerator, SnowflakeView, SystemClock,
};
use rustix::process::Signal;
use tokio::time::{Instant, MissedTickBehavior};

pub(crate) use child::exec;
pub(crate) use guard::guard;

use crate::Done;
use crate::cli::Run;

/// How often the clock is compared with the ceiling.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause between two attempts to claim.
const CLAIM_AGAIN: Duration = Duration::from_secs(1);
/// The bounds of the margin, which is a tenth of the lease: a command that still runs is killed
/// this long before the ceiling, since the machine may be busy.
const MARGIN: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(5));

/// The exit code of a command that was killed.
const KILLED: u8 = 128 + 9;

/// When to end a command whose lease is not extended any more.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// How long before the ceiling the command is killed.
    margin: Duration,
    /// The time from when the command is asked to end until it is killed.
    grace: Duration,
}

/// Claims a worker id, runs the command with it, and gives it back.
///
/// # Errors
/// [`ConfigError`]; the registry refuses the claim; the lease was lost, so the command was ended.
pub(crate) async fn run(config: &Config, run: Run) -> Result<Done> {
    // Nobody who does not read what is written here may stop it.
    crate::stderr::detach().context("start a thread")?;
    let rules = rules(config, &run)?;
    let identity = identity(config, run.name.as_deref())?;
    let generator = leaf_node::prepare_lease(config, &identity).await?;
    let mut signals = child::Signals::new()?;
    let claimed = tokio::select! {
        claimed = claim(&generator) => Some(claimed),
        () = signals.wait_for_an_end() => None,
    };
    let done = match claimed {
        Some(Ok(claimed)) => hold(&generator, claimed, &run, rules, &mut signals).await,
        Some(Err(error)) => Err(error),
        None => Err(anyhow!("ended by a signal while it waited for a worker id")),
    };
    generator.close().await;
    done
}

/// Checks that the registry gives out worker ids, and that leases are long enough for `--grace`.
fn rules(config: &Config, run: &Run) -> Result<Rules, ConfigError> {
    if config.registry().is_in_state_file() {
        return Err(ConfigError::new(format!(
            "the registry `{}` gives out no worker ids: set snowflake.registry, like sqlite:/var/lib/leaf/workers.db for \
             one host, etcd://… or postgres://… for several",
            config.registry()
        )));
    }
    let lease = config.snowflake.offline_for.duration();
    let rules =
        Rules { margin: (lease / 10).clamp(MARGIN.0, MARGIN.1), grace: run.grace.duration() };
    let used = rules.grace + rules.margin + 2 * config.snowflake.report_interval.duration();
    if used >= lease {
        return Err(ConfigError::new(format!(
            "--grace: snowflake.offline_for is {lease:?}, of which two reports and {:?} at the end are no grace: \
             shorten --grace, or lengthen snowflake.offline_for",
            rules.margin
        )));
    }
    Ok(rules)
}

/// The name of the holder. A registry that binds worker ids to names for good needs a given name,
/// which must not change.
fn identity(config: &Config, name: Option<&str>) -> Result<Identity, ConfigError> {
    let refuse = |error| ConfigError::new(format!("--name: {error}"));
    if let Some(name) = name {
        return Identity::parse(name).map_err(refuse);
    }
    if matches!(config.registry().kind(), RegistryKind::ZkNormal | RegistryKind::Mysql) {
        return Err(ConfigError::new(
            "this registry binds a worker id to a name for good: give a lasting one of this instance by --name, like \
             10.0.0.7:8080",
        ));
    }
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let host: String = host.chars().filter(char::is_ascii_graphic).take(64).collect();
    let host = host.replace('/', "-");
    let (pid, at) = (std::process::id(), SystemClock.wall().as_nanos());
    Identity::parse(&format!("{host}.{pid}.{at}")).map_err(refuse)
}

/// A worker id as it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claimed {
    worker: WorkerId,
    term: u64,
}

/// The worker id and the term of the generator's lease; `None` if it holds none.
fn held(view: &SnowflakeView) -> Option<Claimed> {
    view.worker.map(|worker| Claimed { worker, term: view.term })
}

/// Claims a worker id, however long it takes until one is free. Then waits until the clock has
/// passed every timestamp that its last holder may have used.
async fn claim(generator: &SnowflakeGenerator) -> Result<Claimed> {
    let mut told = String::new();
    loop {
        match generator.claim().await {
            Ok(_) => {
                let view = generator.view();
                let claimed = held(&view);
                wait_for(view.next_free, view.term).await;
                // It may have been lost meanwhile, and another one claimed.
                match claimed.filter(|_| held(&generator.view()) == claimed) {
                    Some(claimed) => return Ok(claimed),
                    None => continue,
                }
            }
            Err(error) if may_pass(&error) => {
                let text = error.to_string();
                if text != told {
                    crate::complain(&format_args!("waiting for a worker id: {text}"));
                    told = text;
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(CLAIM_AGAIN).await;
    }
}

/// Whether a later claim may succeed: also where all worker ids are held now, where somebody else
/// holds this node's, or where the clock has not reached the floor yet.
fn may_pass(error: &SnowflakeError) -> bool {
    use RegistryErrorKind::{FloorAhead, InUse, NoWorkerId};
    let of_registry = |error: &RegistryError| {
        matches!(error.kind(), FloorAhead { .. } | InUse { .. } | NoWorkerId(_))
    };
    error.retryable()
        || matches!(error.kind(), SnowflakeErrorKind::Registry(error) if of_registry(error))
}

/// Waits until the clock has reached the floor. If the worker id had a holder before, the floor is
/// rounded up to a whole second: generators that count in seconds use the whole of their last
/// second.
async fn wait_for(floor: UnixMillis, term: u64) {
    let floor = match term {
        0 | 1 => floor,
        _ => UnixMillis::new(floor.get().next_multiple_of(1000)),
    };
    while SystemClock.wall_millis() < floor {
        tokio::time::sleep(floor - SystemClock.wall_millis()).await;
    }
}

/// Runs the command while the worker id is held.
async fn hold(
    generator: &SnowflakeGenerator,
    claimed: Claimed,
    run: &Run,
    rules: Rules,
    signals: &mut child::Signals,
) -> Result<Done> {
    let clock = (SystemClock.boot(), SystemClock.wall_millis());
    let mut lease = Lease { generator, claimed, rules, clock, latest: UnixMillis::EPOCH };
    let mut guard = Guard::default();
    let worker = claimed.worker;
    let mut child = Child::start(&run.command, worker)?;
    let mut stage = Stage::Holds;
    // From here on nothing returns before the command has ended.
    if child.is_prepared().await {
        guard.tell(&child, lease.kill_at());
        stage = lease.look(stage);
        if stage == Stage::Holds {
            let command = run.command[0].to_string_lossy();
            crate::complain(&format_args!("{command} has worker id {worker}"));
            child.begin();
        } else {
            child.kill();
        }
    }
    let mut looks = tokio::time::interval_at(Instant::now(), LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let status = loop {
        if let Some(status) = child.ended() {
            break status;
        }
        tokio::select! {
            _ = looks.tick() => {}
            signal = signals.next() => signal.into_iter().for_each(|signal| child.pass_on(signal)),
        }
        let before = stage;
        stage = lease.look(before);
        match stage {
            Stage::Holds => {}
            Stage::Ends if before == Stage::Holds => {
                crate::complain(
                    &"the lease of the worker id is not extended any more: the command is asked to end",
                );
                child.pass_on(Signal::TERM);
            }
            Stage::Ends => {}
            Stage::Over => child.kill(),
        }
        guard.tell(&child, lease.kill_at());
    };
    guard.dismiss();
    child.group_is_gone().await;
    // It ran until now, perhaps. The guard may have been the one that ended it.
    let is_over = lease.look(stage) == Stage::Over && status == KILLED;
    if stage == Stage::Holds && !is_over {
        return Ok(Done { code: status, ..String::new().into() });
    }
    let why = lease.why_lost();
    Err(anyhow!("the lease of worker id {worker} was lost, and the command was ended: {why}"))
}

/// The state of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It is held.
    Holds,
    /// The lease is about to end: the command is asked to end.
    Ends,
    /// The command must not run any more.
    Over,
}

/// The lease of the worker id while the command runs.
struct Lease<'a> {
    generator: &'a SnowflakeGenerator,
    claimed: Claimed,
    rules: Rules,
    /// The boot clock and the wall clock at the last look.
    clock: (Duration, UnixMillis),
    /// The latest moment at which the command may have made an id.
    latest: UnixMillis,
}

impl Lease<'_> {
    /// Why the lease was lost, as far as that is known.
    fn why_lost(&self) -> &'static str {
        match self.kill_at() {
            UnixMillis::EPOCH => {
                "it was released or taken by somebody else, or is in doubt after a failover"
            }
            _ => "it could not be extended: is the registry reachable? Was the clock set ahead?",
        }
    }

    /// Records that the command may have made ids until now, so that the next holder's floor is
    /// later.
    fn note(&mut self) {
        let (boot, wall) = (SystemClock.boot(), SystemClock.wall_millis());
        let (boot_before, wall_before) = self.clock;
        // What the clock showed just before it was set back, where it was.
        let shown = wall_before + boot.saturating_sub(boot_before);
        self.clock = (boot, wall);
        self.latest = self.latest.max(wall).max(shown);
        self.generator.skip_to(self.latest + Duration::from_millis(1));
    }

    /// Determines the state of the lease; it is never better than `before`.
    fn look(&mut self, before: Stage) -> Stage {
        self.note();
        let left = self.kill_at() - self.latest;
        let now = match left {
            Duration::ZERO => Stage::Over,
            left if left <= self.rules.grace => Stage::Ends,
            _ => Stage::Holds,
        };
        now.max(before)
    }

    /// The time from which on the command must not run; [`UnixMillis::EPOCH`] if the lease was
    /// lost.
    fn kill_at(&self) -> UnixMillis {
        let view = self.generator.view();
        match held(&view) == Some(self.claimed) {
            true => view.registry_ceiling - self.rules.margin,
            false => UnixMillis::EPOCH,
        }
    }
}
