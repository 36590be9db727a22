//! Claiming a worker id: the last step of the start. Invariant: ids start at or above the floor of
//! the lease, and above every timestamp that this process, or an earlier one with the same state
//! file, may have used. Each claim has a nonce, which is written down before the claim is sent
//! (unless the state file is the registry's record): a process that crashed before it saved the
//! answer recognizes its own claim after a restart.

use super::*;
use crate::fence::{Evidence, check_range, first_timestamp};
use crate::{ClaimRequest, java_cache};

/// How long a state file must stay unchanged before this process treats it as its own again.
const WATCH_FILE: Duration = Duration::from_secs(2);

impl Keeper {
    /// Claims a worker id and lets ids flow. After a retryable error it may be called again.
    ///
    /// Returns a boxed future, because an `async fn` would be compiled again in every crate that
    /// calls it.
    pub(crate) fn claim(&mut self) -> BoxFuture<'_, Result<Held, SnowflakeError>> {
        Box::pin(async {
            let claimed = self.try_claim().await;
            match &claimed {
                Ok(_) => self.shared.note_claim(None),
                Err(error) => self.shared.note_claim(Some(error)),
            }
            claimed
        })
    }

    async fn try_claim(&mut self) -> Result<Held, SnowflakeError> {
        self.config.check_against(self.shared.clock.wall())?;
        self.watch_file().await?;
        self.watch_java_cache().await?;
        // Refuse at once what no answer of the registry could allow.
        self.registry.check(&self.config.identity, self.config.layout)?;
        // A node that cannot list its peers must not claim, since its clock may be wrong; it may
        // only go on from a usable saved lease, see below. The peers confirm the clock as it was
        // before they were asked, so the doubt is read first.
        let in_doubt = self.shared.clock.in_doubt(self.config.not_before);
        let claimed = match self.compare_clocks().await {
            Ok(confirmed) => {
                self.believed = in_doubt.filter(|_| confirmed);
                self.warn_of_a_new_cluster().await;
                self.take_worker_id().await
            }
            Err(error) => Err(error),
        };
        match claimed {
            Ok(lease) => self.start(Some(lease)).await,
            Err(error) => match error.kind() {
                SnowflakeErrorKind::Registry(away)
                    if *away.kind() == RegistryErrorKind::Unavailable
                        && self.usable_saved_lease().is_some() =>
                {
                    self.shared.set_trouble(Trouble::Registry, away.to_string());
                    self.start(None).await
                }
                // Also a clock that the peers refuse: no saved lease overrides that.
                _ => Err(error),
            },
        }
    }

    /// Watches the state file before the first write if another process may use it: after a reboot,
    /// or on another device, the lock may not exclude others. A live process writes the file
    /// several times a second.
    async fn watch_file(&mut self) -> Result<(), SnowflakeError> {
        let uncertain = matches!(
            &self.state.saved_lease,
            Some(SavedLease { provenance: Provenance::Uncertain, .. })
        );
        let (true, false, Some(file)) = (uncertain, self.file_unshared, &self.file) else {
            return Ok(());
        };
        tracing::info!(
            "the machine was rebooted, or the file is on another device: watching the state file for \
             {WATCH_FILE:?}"
        );
        tokio::time::sleep(WATCH_FILE).await;
        file.lock().expect("no holder of this lock panics").check_untouched()?;
        self.file_unshared = true;
        Ok(())
    }

    /// Refuses the claim while a community fork on this machine is alive: a live one rewrites its
    /// cache file every 3 s. If the file is recent, waits until a live fork would have rewritten
    /// it; if the file has changed then, the fork is alive. A file that has disappeared counts as
    /// unused.
    async fn watch_java_cache(&mut self) -> Result<(), SnowflakeError> {
        let Some(directory) = &self.config.java_cache else { return Ok(()) };
        let now = self.shared.clock.wall();
        let silent_at = self.java.and_then(|before| before.silent_at());
        // A file that is dated in the future is not watched: the claim waits for its floor.
        let left = silent_at.map_or(Duration::ZERO, |silent| silent - now);
        if !left.is_zero() && left <= java_cache::WATCH {
            tracing::info!("watching the cache file of a Java Leaf for {left:?}");
            tokio::time::sleep(left).await;
        }
        let after = JavaCache::read(directory).map_err(SnowflakeErrorKind::BadConfig)?;
        let Some(written) = after.filter(|_| after != self.java) else { return Ok(()) };
        // The next attempt watches for a further change.
        self.java = after;
        self.least_floor = self.least_floor.max(written.floor.unwrap_or(UnixMillis::EPOCH));
        let holder = format!("the one that writes {}", directory.display());
        let alive = RegistryErrorKind::JavaAlive { holder };
        Err(RegistryError::new(alive, "claim a worker id").into())
    }

    /// Compares this node's clock with the peers' clocks. Returns `true` if they agree by the
    /// configured rule, `false` if none answers.
    ///
    /// # Errors
    /// The peers refuse this clock, or cannot be listed.
    async fn compare_clocks(&self) -> Result<bool, SnowflakeError> {
        let compared = self.config.compare_clocks().await?;
        match compared {
            None => tracing::debug!("no peer answers: the clock is not compared"),
            Some((agreeing, reached)) => {
                tracing::info!("the clock agrees with {agreeing} of {reached} peers");
            }
        }
        Ok(compared.is_some())
    }

    /// Warns an operator if no node of this cluster has used the registry before, but other
    /// clusters have: a misspelt cluster name creates a second cluster, whose ids repeat those of
    /// the first.
    async fn warn_of_a_new_cluster(&self) {
        if self.state.saved_lease.is_some() {
            return;
        }
        let warning = self.registry.warning_of_a_new_cluster();
        // Ignore a failure: if it matters, the claim fails, too.
        if let Ok(Ok(Some(warning))) = tokio::time::timeout(ATTEMPT, warning).await {
            tracing::warn!("{warning}");
        }
    }

    /// Claims until the registry grants a worker id, or refuses. Each attempt reads the clock
    /// again, because it may be set during a wait.
    async fn take_worker_id(&mut self) -> Result<Lease, SnowflakeError> {
        let mut watched = BTreeMap::new();
        // One deadline for all waits, also where a live holder raises its ceiling again and again.
        let mut deadline = self.shared.clock.wall() + self.config.startup_wait;
        loop {
            let now = self.shared.clock.settled(self.config.not_before, self.believed)?;
            self.config.check_against(now)?;
            let nonce = self.pending_claim().await?;
            let request =
                ClaimRequest { watched: watched.clone(), ..self.claim_request(now, nonce) };
            let claim = self.registry.claim(&self.config.identity, &request);
            let answer = tokio::time::timeout(ATTEMPT, claim).await;
            let error = match answer.unwrap_or_else(|_| Err(no_answer("claim a worker id"))) {
                Ok(lease) => return Ok(lease),
                Err(error) => error,
            };
            let pause = match *error.kind() {
                RegistryErrorKind::NotYet { at } if at > deadline => {
                    let in_use = RegistryErrorKind::InUse { last_report: None, until: at };
                    return Err(RegistryError::new(in_use, "claim a worker id").into());
                }
                RegistryErrorKind::NotYet { at } => (at - now).max(Duration::from_millis(1)),
                RegistryErrorKind::Watch { worker, fingerprint, during } => {
                    watched.insert(worker, fingerprint);
                    // The time of the watch does not count towards `startup_wait`.
                    deadline = deadline + during;
                    during
                }
                _ => return Err(error.into()),
            };
            tracing::info!("{error}; waiting {pause:?}");
            self.shared.note_claim(Some(&error.into()));
            tokio::time::sleep(pause).await;
            self.watch_java_cache().await?;
        }
    }

    fn claim_request(&self, now: UnixMillis, nonce: Uuid) -> ClaimRequest {
        ClaimRequest {
            now,
            instance: self.state.instance,
            nonce,
            layout: self.config.layout,
            saved: self.state.saved_lease.clone(),
            least_floor: self.least_floor,
            watched: BTreeMap::new(),
            offline_for: self.config.offline_for,
            report_interval: self.config.report_interval,
            tolerance: self.config.rollback_tolerance,
            startup_wait: self.config.startup_wait,
        }
    }

    /// Returns the nonce of the pending claim; if none is pending, draws one and writes it down.
    async fn pending_claim(&mut self) -> Result<Uuid, SnowflakeError> {
        if let Some(nonce) = self.state.pending_claim {
            return Ok(nonce);
        }
        let nonce = Uuid::new_v4();
        let state = State { pending_claim: Some(nonce), ..self.state.clone() };
        if self.registry.lives_in_state_file() {
            // The file is the record: no answer can be lost on the way.
            self.state = state;
        } else {
            self.write(state).await?;
        }
        Ok(nonce)
    }

    /// The saved lease and its floor, if this node may continue with it without asking the
    /// registry.
    fn usable_saved_lease(&self) -> Option<(SavedLease, UnixMillis)> {
        let saved = self.state.saved_lease.as_ref()?;
        // If the range of worker ids was reconfigured, this one may belong to the registry of
        // another data centre now.
        check_range(self.registry.policy().range, &saved.fence).ok()?;
        let request = self.claim_request(self.shared.clock.wall(), Uuid::nil());
        let worker = WorkerId::new(saved.worker);
        let floor = first_timestamp(worker, Evidence::SavedLease, &request).ok()?;
        Some((saved.clone(), floor))
    }

    /// Lets ids flow under `lease`; with `None`, under the lease that the state file remembers.
    pub(super) async fn start(&mut self, lease: Option<Lease>) -> Result<Held, SnowflakeError> {
        // The clock may have been set since the claim was sent. Nothing is recorded before this
        // check: the next claim has the same nonce, by which the registry recognizes it.
        self.shared.clock.anchor_settled(self.config.not_before, self.believed)?;
        let (saved, floor) = match &lease {
            Some(lease) => {
                let saved = SavedLease {
                    worker: lease.worker.get(),
                    fence: lease.fence.clone(),
                    local_ceiling: lease.fence.floor,
                    lost: false,
                    provenance: Provenance::Proven,
                };
                (saved, lease.fence.floor)
            }
            None => {
                // The claim that confirms this lease later has one nonce for all its attempts.
                self.pending_claim().await?;
                self.usable_saved_lease().ok_or(SnowflakeErrorKind::Starting)?
            }
        };
        let term = saved.fence.term;
        let worker = WorkerId::new(saved.worker);
        self.state.saved_lease = Some(saved);
        if lease.is_some() {
            self.state.pending_claim = None;
        }
        let layout = self.config.layout;
        let now = self.shared.clock.wall();
        let request = self.claim_request(now, Uuid::nil());
        let floor = first_timestamp(worker, Evidence::Granted(floor), &request);
        let floor = floor.map_err(|kind| RegistryError::new(kind, "start the lease"))?;
        let sequencer = Sequencer::new(layout, worker, floor, now, self.config.sequence_start);
        let sequencer = Arc::new(LeaseSequencer::new(sequencer));
        let ids_clock = self.shared.clock.now().unwrap_or(UnixMillis::EPOCH);
        self.raise(&sequencer, Urgency::CallersWait, ids_clock).await?;
        match lease {
            Some(_) => tracing::info!(%worker, term, "worker id claimed"),
            None => {
                tracing::warn!(%worker, term, "the registry is away: going on from the state file; the clock is not compared")
            }
        }
        self.shared.start(Arc::clone(&sequencer));
        self.publish(lease.is_some());
        Ok(Held { sequencer, lease })
    }

    /// Claims again the lease that the state file remembers, while ids flow under it. `next_free`
    /// is the first instant above the ids issued so far, `now` the ids' clock, or `next_free` if
    /// that is later.
    pub(super) fn confirm(&self, now: UnixMillis, next_free: UnixMillis) -> PendingRequest {
        let nonce = self.state.pending_claim.expect("`start` writes one down before ids flow");
        let mut request = self.claim_request(now, nonce);
        let ended = self.pending_watches.iter().filter(|(_, (_, until))| *until <= Instant::now());
        request.watched = ended.map(|(worker, (fingerprint, _))| (*worker, *fingerprint)).collect();
        if let Some(saved) = &mut request.saved {
            saved.local_ceiling = next_free;
        }
        let (registry, identity) = (self.registry.clone(), self.config.identity.clone());
        Box::pin(async move {
            let claim = registry.claim(&identity, &request);
            let answer = tokio::time::timeout(ATTEMPT, claim).await;
            Answer::Claimed(answer.unwrap_or_else(|_| Err(no_answer("claim the worker id again"))))
        })
    }

    /// Whether `lease` directly follows the saved lease (same worker id, next term) and its floor
    /// is not above `next_free`: then ids can go on without a break.
    pub(super) fn continues(&self, lease: &Lease, next_free: UnixMillis) -> bool {
        self.state.saved_lease.as_ref().is_some_and(|saved| {
            (saved.worker, saved.fence.term + 1) == (lease.worker.get(), lease.fence.term)
                && lease.fence.floor <= next_free
        })
    }

    /// Begins to watch a record if `refusal` asks for it and no watch of that record is under way.
    /// Replaces a watch that is over.
    pub(super) fn watch(&mut self, refusal: &RegistryErrorKind) {
        let RegistryErrorKind::Watch { worker, fingerprint, during } = *refusal else { return };
        let now = Instant::now();
        let watch = self.pending_watches.entry(worker).or_insert((fingerprint, now + during));
        if watch.1 <= now {
            *watch = (fingerprint, now + during);
        }
    }

    /// Stores the saved lease for the view.
    pub(super) fn publish(&self, confirmed: bool) {
        let Some(saved) = &self.state.saved_lease else { return };
        let mut saved = saved.clone();
        if self.file.is_none() {
            // Nothing but the registry's ceiling bounds the ids.
            saved.local_ceiling = saved.fence.ceiling;
        }
        self.shared.publish(saved, confirmed);
    }
}
