//! Sends a client's requests: to one server after the other, until one answers or the deadline is
//! over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::budget::RetryBudget;
use crate::calls::{Ask, AskServer};
use crate::endpoint::Endpoint;
use crate::failure::{AskError, Failure, Fault};
use crate::pool::Pool;
use crate::transport::Transport;
use crate::wire::usual_weight;

/// The pause between two rounds of health probes, and between two rounds of DNS look-ups.
const LOOK: Duration = Duration::from_millis(500);
/// The first pause between two rounds over all servers.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. Pauses double up to it, and each is multiplied by a random factor
/// from 0.5 to 1.5.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Sends a client's requests to its servers.
#[derive(Debug)]
pub(crate) struct Api {
    /// The servers.
    pub(crate) pool: Pool,
    /// The connections to the servers, over HTTP and gRPC.
    pub(crate) transport: Transport,
    /// Limits the retries of all requests together.
    pub(crate) budget: RetryBudget,
    /// How long one server may take.
    pub(crate) attempt: Duration,
}

impl Api {
    /// Asks one server after the other, each once, until one serves or refuses the request. Ends
    /// early when the deadline is over or the budget has no retry left. Also returns the server
    /// that answered.
    pub(crate) async fn ask<A: Ask>(
        &self,
        ask: &A,
        deadline: Instant,
    ) -> Result<(A::Answer, Arc<Endpoint>), AskError> {
        self.budget.earn();
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut told = None;
        loop {
            let chosen =
                tokio::time::timeout_at(deadline, self.pool.choose(&tried, ask.mode())).await;
            let chosen = chosen.unwrap_or_else(|_| {
                Err(Failure::of_names("the servers' addresses were not found in time"))
            });
            let endpoint = chosen?;
            let within = self.attempt.min(deadline.saturating_duration_since(Instant::now()));
            let failure = match self.transport.ask(&endpoint, ask, within, self.attempt).await {
                Err(AskError::Failed(failure)) => failure,
                answered => {
                    endpoint.succeeded();
                    return answered.map(|answer| (answer, endpoint));
                }
            };
            match failure.fault {
                Fault::Server => endpoint.failed(),
                Fault::Trouble | Fault::CutShort => endpoint.refused(),
                Fault::NoSuchMode => endpoint.has_not(ask.mode()),
                Fault::None => {}
            }
            let failure = failure.or(told);
            tried.push(endpoint);
            let again = Instant::now() < deadline
                && self.pool.has_another(&tried, ask.mode())
                && self.budget.spend();
            if !again {
                return Err(AskError::Failed(failure));
            }
            tracing::debug!("{failure}; another server is asked");
            told = Some(failure);
        }
    }

    /// Asks servers like [`Self::ask`], round after round, until one serves or refuses the request
    /// or the deadline is over. Each further round costs one retry of the budget.
    pub(crate) async fn ask_on<A: Ask>(
        &self,
        ask: &A,
        deadline: Instant,
    ) -> Result<A::Answer, AskError> {
        let mut pause = PAUSE;
        let mut told = None;
        loop {
            let failure = match self.ask(ask, deadline).await {
                Err(AskError::Failed(failure)) => failure.or(told),
                answer => return answer.map(|(answer, _)| answer),
            };
            loop {
                let rest = pause.mul_f64(0.5 + fastrand::f64());
                if Instant::now() + rest >= deadline {
                    return Err(AskError::Failed(failure));
                }
                tokio::time::sleep(rest).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                if self.budget.spend() {
                    break;
                }
            }
            told = Some(failure);
        }
    }

    /// Asks this server alone, once.
    pub(crate) async fn ask_only<A: Ask>(
        &self,
        endpoint: &Endpoint,
        ask: &A,
    ) -> Result<A::Answer, AskError> {
        self.transport.ask(endpoint, ask, self.attempt, self.attempt).await
    }

    /// Looks up the names of the servers when they are due, until the task is aborted.
    pub(crate) async fn follow_names(self: Arc<Self>) {
        loop {
            if let Err(failure) = self.pool.look_names_up().await {
                tracing::debug!("{failure}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends health probes to the servers that need one, until the task is aborted.
    pub(crate) async fn look_after(self: Arc<Self>) {
        loop {
            let probes = self.pool.to_probe().into_iter().map(|endpoint| {
                let api = Arc::clone(&self);
                tokio::spawn(async move { api.probe(&endpoint).await })
            });
            for probe in probes.collect::<Vec<_>>() {
                // It tells the endpoint.
                let _ = probe.await;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks a server for its health, zone and weight, and stores them in its [`Endpoint`]. A probe
    /// costs no retry of the budget: no caller waits for it.
    async fn probe(&self, endpoint: &Endpoint) {
        match self.ask_only(endpoint, &AskServer).await {
            Ok(server) => {
                endpoint.told(server.zone, server.weight);
                if server.ready { endpoint.succeeded() } else { endpoint.not_ready() }
            }
            // An older server, or one that wants another token: it answers.
            Err(AskError::Refused { .. }) => {
                endpoint.told(None, usual_weight());
                endpoint.succeeded();
            }
            Err(AskError::Failed(_)) => endpoint.failed(),
        }
    }
}
