//! The requests of a client: to one server after the other, under a deadline.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use leaf_core::Id;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::budget::RetryBudget;
use crate::endpoint::Endpoint;
use crate::error::ClientErrorKind;
use crate::pool::Pool;
use crate::transport::{self, Answer, Failure, Fault, Transport};
use crate::wire::{Ids, Problem, Server};

/// How often servers are looked after.
const LOOK: Duration = Duration::from_millis(500);
/// Answers that are no lists.
const SMALL: usize = 64 << 10;
/// Bytes of one id in a list: 19 digits, two quotes and a comma.
const PER_ID: usize = 24;
/// Pauses between rounds over all servers.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a client asks servers.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) pool: Pool,
    pub(crate) transport: Transport,
    pub(crate) budget: RetryBudget,
    /// How long one server may take.
    pub(crate) attempt: Duration,
}

/// Why a request failed.
#[derive(Debug, Clone)]
pub(crate) enum AskError {
    /// No server served it; another time one may.
    Failed(Failure),
    /// A server said no, and others will, too.
    Refused { kind: ClientErrorKind, text: String },
}

impl std::fmt::Display for AskError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::Refused { text, .. } => f.write_str(text),
        }
    }
}

impl std::error::Error for AskError {}

impl AskError {
    /// Whether fewer ids may be had.
    pub(crate) const fn is_too_many(&self) -> bool {
        use ClientErrorKind::{BadCount, Exhausted};
        matches!(self, Self::Refused { kind: BadCount | Exhausted, .. })
    }
}

/// The path of a tag's route.
pub(crate) fn path_of(tag: &str, rest: &str) -> String {
    format!("/v1/segments/{}{rest}", utf8_percent_encode(tag, NON_ALPHANUMERIC))
}

impl Api {
    /// Asks one server after the other, each once, as far as the deadline and the budget of retries reach, for an answer
    /// that is `sound`. Returns who answered as well.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        ids: usize,
        deadline: Instant,
        sound: impl Fn(&T) -> bool,
    ) -> Result<(T, Arc<Endpoint>), AskError> {
        self.budget.earn();
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        loop {
            let chosen = tokio::time::timeout_at(deadline, self.pool.choose(&tried)).await;
            let chosen = chosen.unwrap_or_else(|_| {
                Err(Failure::of_names("the servers' addresses were not found in time"))
            });
            let endpoint = chosen.map_err(AskError::Failed)?;
            let within = self.attempt.min(deadline.saturating_duration_since(Instant::now()));
            let limit = SMALL + ids * PER_ID;
            let asked = self
                .transport
                .ask(&endpoint, method.clone(), path, limit, within, self.attempt)
                .await;
            let failure = match asked {
                Ok(Answer::Body(body)) => match read(&endpoint, &body) {
                    Ok(answer) if sound(&answer) => {
                        endpoint.succeeded();
                        return Ok((answer, endpoint));
                    }
                    Ok(_) => Failure::of(&endpoint, "its answer is not what it was asked for"),
                    Err(failure) => failure,
                },
                Ok(Answer::Refusal(status, problem)) => {
                    endpoint.succeeded();
                    return Err(refusal(&endpoint, status, &problem));
                }
                Err(failure) => failure,
            };
            match failure.fault {
                Fault::Server => endpoint.failed(),
                Fault::Trouble => endpoint.refused(),
                Fault::None => {}
            }
            tried.push(endpoint);
            let again =
                Instant::now() < deadline && self.pool.has_another(&tried) && self.budget.spend();
            if !again {
                return Err(AskError::Failed(failure));
            }
            tracing::debug!("{failure}; another server is asked");
        }
    }

    /// As [`Self::ask`], round after round until the deadline. Each round is a retry.
    pub(crate) async fn ask_on<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        ids: usize,
        deadline: Instant,
        sound: impl Fn(&T) -> bool,
    ) -> Result<(T, Arc<Endpoint>), AskError> {
        let mut pause = PAUSE;
        loop {
            let failure = match self.ask(method.clone(), path, ids, deadline, &sound).await {
                Err(AskError::Failed(failure)) => failure,
                answer => return answer,
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
        }
    }

    /// Exactly so many ids of a route that lists them.
    pub(crate) async fn ids(
        &self,
        path: &str,
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<Id>, AskError> {
        let sound = |ids: &Ids| ids.parse().is_some_and(|ids| ids.len() == count);
        let (ids, _) = self.ask_on::<Ids>(Method::GET, path, count, deadline, sound).await?;
        Ok(ids.parse().unwrap_or_default())
    }

    /// Asks this server alone, once.
    pub(crate) async fn ask_only<T: DeserializeOwned>(
        &self,
        endpoint: &Endpoint,
        method: Method,
        path: &str,
    ) -> Result<T, AskError> {
        let answer =
            self.transport.ask(endpoint, method, path, SMALL, self.attempt, self.attempt).await;
        match answer.map_err(AskError::Failed)? {
            Answer::Body(body) => read(endpoint, &body).map_err(AskError::Failed),
            Answer::Refusal(status, problem) => Err(refusal(endpoint, status, &problem)),
        }
    }

    /// Looks names up until the client is gone.
    pub(crate) async fn follow_names(api: Weak<Self>) {
        loop {
            let Some(api) = api.upgrade() else { return };
            if let Err(failure) = api.pool.look_names_up().await {
                tracing::debug!("{failure}");
            }
            drop(api);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks servers how they are, where that is in doubt, until the client is gone.
    pub(crate) async fn look_after(api: Weak<Self>) {
        loop {
            let Some(api) = api.upgrade() else { return };
            let probes = api.pool.to_probe().into_iter().map(|endpoint| {
                let api = Arc::clone(&api);
                tokio::spawn(async move { api.probe(&endpoint).await })
            });
            for probe in probes.collect::<Vec<_>>() {
                // It tells the endpoint.
                let _ = probe.await;
            }
            drop(api);
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn probe(&self, endpoint: &Endpoint) {
        match self.ask_only::<Server>(endpoint, Method::GET, "/v1/server").await {
            Ok(server) => {
                endpoint.told_zone(server.zone);
                if server.ready { endpoint.succeeded() } else { endpoint.not_ready() }
            }
            // An older server, or one that wants another token: it answers.
            Err(AskError::Refused { .. }) => {
                endpoint.told_zone(None);
                endpoint.succeeded();
            }
            Err(AskError::Failed(_)) => endpoint.failed(),
        }
    }
}

fn read<T: DeserializeOwned>(endpoint: &Endpoint, body: &Bytes) -> Result<T, Failure> {
    transport::read(body)
        .ok_or_else(|| Failure::of(endpoint, "its answer is not that of a leaf-server"))
}

fn refusal(endpoint: &Endpoint, status: StatusCode, problem: &Problem) -> AskError {
    let kind = match (problem.kind(), status) {
        ("unknown-tag", _) => ClientErrorKind::UnknownTag,
        ("disabled", _) => ClientErrorKind::Disabled,
        ("exhausted", _) => ClientErrorKind::Exhausted,
        ("bad-request", _) => ClientErrorKind::BadCount,
        ("strict-order" | "no-ranges", _) => ClientErrorKind::NoRanges,
        (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => ClientErrorKind::Unauthorized,
        _ => ClientErrorKind::Refused,
    };
    let detail = problem.text();
    let text = match (kind, detail.is_empty()) {
        (ClientErrorKind::Unauthorized, _) => {
            format!("{endpoint}: {status}: give the token that it asks for to the client's builder")
        }
        (_, true) => format!("{endpoint}: {status}"),
        (_, false) => format!("{endpoint}: {detail}"),
    };
    AskError::Refused { kind, text }
}
