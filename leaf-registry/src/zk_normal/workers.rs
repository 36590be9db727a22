//! The worker registry `zk_normal`. Invariant: a znode is made for an identity only if the identity
//! has none, or only retired ones; only that identity uses the znode's number. If a creation gets
//! no answer, the next listing shows whether the znode was made: within a session ZooKeeper never
//! carries out a request after a later one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::WorkerId;
use leaf_snowflake::{
    ClaimRequest, FenceState, FenceStore, Identity, JavaMirror, Peer, Purpose, RegistryError,
    RegistryErrorKind, Stored, StoredWorker, WorkerRecord,
};
use zookeeper_client::{Error, MultiWriteError};

use super::mirror;
use crate::zookeeper::{Connected, Fences, Session, Znode, version};

/// Used in the path of a worker id that has no znode: no znode has this name, so nothing is found.
const NO_NAME: &str = "-";

/// Worker ids in the tree of the original Java Leaf.
///
/// A worker id's znode is found by the number behind the last hyphen of its name. Since that name
/// never changes, the one that was found last is cached.
#[derive(Debug)]
pub(crate) struct ZkNormal {
    fences: Fences,
    /// `/snowflake/{name}/forever`.
    forever: String,
    /// The znode of the worker id that was looked for last.
    cached_name: Mutex<Option<(WorkerId, String)>>,
}

/// Versions of fence and mirror; the mirror's name.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    fence: Option<i32>,
    mirror: Option<i32>,
    name: Option<String>,
}

impl ZkNormal {
    /// Worker ids of the cluster `name`. The session begins when it is first used.
    pub(crate) fn new(session: Arc<Session>, name: &str, report_interval: Duration) -> Self {
        let fences = Fences::new(session, name, report_interval);
        let forever = format!("{}/forever", fences.root);
        Self { fences, forever, cached_name: Mutex::default() }
    }

    /// The worker id that was looked for last, and its znode.
    fn cached_name(&self) -> std::sync::MutexGuard<'_, Option<(WorkerId, String)>> {
        self.cached_name.lock().expect("no holder of this lock panics")
    }

    /// The name of a worker id's znode; `None` if it has none.
    async fn name_of(
        &self,
        connected: &Connected,
        worker: WorkerId,
    ) -> Result<Option<String>, Error> {
        if let Some((_, name)) = self.cached_name().as_ref().filter(|(known, _)| *known == worker) {
            return Ok(Some(name.clone()));
        }
        let names = connected.children(&self.forever).await?;
        let has_number =
            |name: &String| mirror::parse(name).is_some_and(|(_, number)| number == worker);
        let name = names.into_iter().find(has_number);
        *self.cached_name() = name.clone().map(|name| (worker, name));
        Ok(name)
    }

    /// Makes the folder of the znodes if there is none, and uses up its number 0. A Java Leaf that
    /// finds no folder takes worker id 0, whatever number its znode gets. It may do so just before
    /// Leaf makes the folder, so no node of Leaf may get worker id 0.
    async fn make_tree(&self, connected: &Connected) -> Result<(), Error> {
        connected.client.mkdir(&self.fences.root, &connected.persistent()).await?;
        // In one multi, so that nobody sees the folder before number 0 is used. Any child will do:
        // a sequence number counts all children ever created.
        let unused = format!("{}/unused-0000000000", self.forever);
        let mut multi = connected.client.new_multi_writer();
        multi.add_create(&self.forever, b"", &connected.persistent())?;
        multi.add_create(&unused, b"", &connected.persistent())?;
        multi.add_delete(&unused, None)?;
        match multi.commit().await {
            Ok(_)
            | Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {
                Ok(())
            }
            Err(MultiWriteError::OperationFailed { source, .. })
            | Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }

    /// Makes a znode for `who`, and returns its number. If ZooKeeper's next number is above
    /// `greatest`, makes nothing and returns that number.
    ///
    /// ZooKeeper numbers the znodes of a folder one after the other and never uses a number again.
    /// Once as many znodes were made, over the years, as there are worker ids, none is left. (The
    /// tree of `zk_recycle` gives worker ids out again.)
    async fn make(
        &self,
        connected: &Connected,
        who: &Identity,
        greatest: WorkerId,
    ) -> Result<WorkerId, Error> {
        self.make_tree(connected).await?;
        let stat = connected.client.check_stat(&self.forever).await?;
        // `cversion` is creations plus deletions, `num_children` is creations minus deletions. Half
        // of their sum is the creations, which is ZooKeeper's next number.
        let next = stat.map_or(0, |stat| (stat.cversion + stat.num_children) / 2);
        let next = u32::try_from(next).unwrap_or(u32::MAX);
        if next > greatest.get() {
            return Ok(WorkerId::new(next));
        }
        let path = format!("{}/{who}-", self.forever);
        let content = mirror::content(who, 0);
        let (_, number) = connected.client.create(&path, &content, &connected.sequential()).await?;
        Ok(WorkerId::new(u32::try_from(number.into_i64()).unwrap_or(u32::MAX)))
    }
}

/// What is stored of a worker id: its fence, and what a Java Leaf sees of it.
fn found(name: Option<String>, fence: &Znode, java: &Znode) -> Stored<Version> {
    let record = crate::zookeeper::recorded(fence);
    let mirror = match (&name, java) {
        (Some(name), Some((content, _))) => {
            let holder = mirror::parse(name).map_or(name.as_str(), |(who, _)| who);
            mirror::judge(holder, content, record.written()).unwrap_or_else(JavaMirror::Damaged)
        }
        _ => JavaMirror::Missing,
    };
    let version = Version { fence: version(fence), mirror: version(java), name };
    Stored { record, mirror, version, failed_over_at: None }
}

impl FenceStore for ZkNormal {
    type Version = Version;

    fn name(&self) -> &'static str {
        "ZooKeeper"
    }

    fn check_identity(&self, who: &Identity) -> Result<(), RegistryErrorKind> {
        mirror::check(who)
    }

    async fn list(&self, _purpose: Purpose) -> Result<Vec<StoredWorker<Version>>, RegistryError> {
        self.fences
            .session
            .run("read the worker ids in ZooKeeper", async |connected| {
                let names = connected.children(&self.forever).await?;
                let mut named: BTreeMap<_, _> = names
                    .into_iter()
                    .filter_map(|name| Some((mirror::parse(&name)?.1, name)))
                    .collect();
                let mut workers = self.fences.workers(connected).await?;
                workers.extend(named.keys());
                workers.sort_unstable();
                workers.dedup();
                let path = |worker| {
                    let name = named.get(&worker).map_or(NO_NAME, String::as_str);
                    [format!("{}/{name}", self.forever)]
                };
                let read = self.fences.read(connected, &workers, path).await?;
                let known = read.into_iter().map(|(worker, fence, [node])| {
                    (worker, found(named.remove(&worker), &fence, &node))
                });
                Ok(known.collect())
            })
            .await
    }

    fn admin_may_create_record(&self) -> bool {
        false
    }

    async fn unused(
        &self,
        _listed: &[StoredWorker<Version>],
        _greatest: WorkerId,
    ) -> Result<Vec<WorkerId>, RegistryError> {
        Ok(Vec::new())
    }

    async fn read(
        &self,
        worker: WorkerId,
        _purpose: Purpose,
    ) -> Result<Stored<Version>, RegistryError> {
        let operation = format!("read worker id {worker} in ZooKeeper");
        self.fences
            .session
            .run(&operation, async |connected| {
                let name = self.name_of(connected, worker).await?;
                let path = format!("{}/{}", self.forever, name.as_deref().unwrap_or(NO_NAME));
                let (fence, [node]) = self.fences.read_one(connected, worker, [path]).await?;
                if node.is_none() {
                    *self.cached_name() = None;
                }
                Ok(found(name, &fence, &node))
            })
            .await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let content = mirror::of(record);
        self.fences
            .write(worker, read.version.fence, record, |connected, multi| {
                match read.version.mirror {
                    Some(version) => {
                        let name = read.version.name.as_deref().unwrap_or_default();
                        let path = format!("{}/{name}", self.forever);
                        multi.add_set_data(&path, &content, Some(version))
                    }
                    // It was deleted by hand: it gets its own name again.
                    None => {
                        let path =
                            format!("{}/{}", self.forever, mirror::name(&record.holder, worker));
                        multi.add_create(&path, &content, &connected.persistent())
                    }
                }
            })
            .await
    }

    async fn assigned(
        &self,
        who: &Identity,
        request: &ClaimRequest,
        listed: &[StoredWorker<Version>],
    ) -> Result<Option<WorkerId>, RegistryError> {
        let operation = format!("look for {who} in ZooKeeper");
        let belongs = |stored: &Stored<Version>| {
            let name = stored.version.name.as_deref().and_then(mirror::parse);
            name.is_some_and(|(name, _)| name == who.as_str())
        };
        // If several znodes have this name: the one that this instance holds, else one that is
        // free.
        let rank = |found: &Stored<Version>| match (found.record.written(), &found.mirror) {
            (Some(record), _) if record.fence.instance == request.instance => 0,
            (None, JavaMirror::Agrees) => 1,
            (Some(record), JavaMirror::Agrees)
                if record.fence.ceiling <= request.now + request.tolerance =>
            {
                2
            }
            _ => 3,
        };
        let state =
            |found: &Stored<Version>| found.record.written().map(|record| record.fence.state);
        let (retired, own): (Vec<_>, Vec<_>) = listed
            .iter()
            .filter(|(_, found)| belongs(found))
            .partition(|(_, found)| state(found) == Some(FenceState::Retired));
        let retired: Vec<_> = retired.iter().map(|(worker, _)| *worker).collect();
        let own = own.into_iter();
        if let Some((worker, _)) = own.min_by_key(|(_, found)| rank(found)) {
            return Ok(Some(*worker));
        }
        let greatest = request.layout.max_worker();
        let make = async |connected: &Connected| {
            let made = self.make(connected, who, greatest).await?;
            // Another process of this identity may have made a znode at the same time: both list
            // them all now, and both take the lowest number.
            let names = connected.children(&self.forever).await?;
            let number = |name: &String| match mirror::parse(name) {
                Some((name, worker)) if name == who.as_str() => Some(worker),
                _ => None,
            };
            let numbers = names.iter().filter_map(number);
            match numbers.filter(|number| !retired.contains(number)).min() {
                Some(first) if first < made => {
                    let own = format!("{}/{}", self.forever, mirror::name(who, made));
                    // Deleted only at version 0, as it was made: if somebody has claimed it since,
                    // it stays.
                    match connected.client.delete(&own, Some(0)).await {
                        Ok(()) | Err(Error::NoNode | Error::BadVersion) => Ok(first),
                        Err(error) => Err(error),
                    }
                }
                _ => Ok(made),
            }
        };
        self.fences.session.run(&operation, make).await.map(Some)
    }

    fn announce(&self, who: &Identity, address: &Identity) {
        self.fences.liveness.announce(who, address);
    }

    async fn withdraw(&self) {
        self.fences.liveness.withdraw().await;
    }

    async fn other_clusters(&self) -> Result<Vec<String>, RegistryError> {
        self.fences.other_clusters().await
    }

    async fn peers(&self) -> Result<Vec<Peer>, RegistryError> {
        self.fences.liveness.peers().await
    }
}
