//! The servers of a client, and which of them to ask.
//!
//! Names are looked up in DNS regularly, since their addresses change. Servers in the client's own
//! zone come first, ejected ones last; among servers of the same rank one is drawn at random, by
//! weight.

use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::endpoint::{Endpoint, Mode, Place, Rank};
use crate::failure::Failure;

/// How long the addresses of a name are used before it is looked up again.
const BELIEVED: Duration = Duration::from_secs(30);
/// How soon a look-up that failed is made again.
const AGAIN: Duration = Duration::from_secs(1);
/// The most addresses of all names together.
const MOST: usize = 256;
/// How often a request without a known server checks whether an address was found.
const FOUND_LOOK: Duration = Duration::from_millis(10);
/// How long the look-up of one name may take.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The servers behind the configured URLs.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The URLs.
    places: Vec<Place>,
    /// The client's own zone.
    zone: Option<String>,
    /// A server for each address that was found.
    known: RwLock<Vec<Arc<Endpoint>>>,
    /// When the next look-up of each name in DNS is due. Locked during a look-up.
    look_up: tokio::sync::Mutex<Vec<Instant>>,
}

impl Pool {
    /// Creates the pool. The first request, or the task that follows names, looks the names up.
    pub(crate) fn new(places: Vec<Place>, zone: Option<String>) -> Self {
        let look_up = tokio::sync::Mutex::new(vec![Instant::now(); places.len()]);
        Self { places, zone, known: RwLock::default(), look_up }
    }

    /// The servers that are known now, in no order.
    fn known(&self) -> Vec<Arc<Endpoint>> {
        self.known.read().expect("no holder of this lock panics").clone()
    }

    /// Chooses the server to ask next, among those not in `tried`. Servers without the mode come
    /// last. If no server is known yet, waits for the look-up of names.
    pub(crate) async fn choose(
        &self,
        tried: &[Arc<Endpoint>],
        mode: Option<Mode>,
    ) -> Result<Arc<Endpoint>, Failure> {
        if self.known().is_empty() {
            // One name that hangs must not hold up those that are found.
            let found = async {
                while self.known().is_empty() {
                    tokio::time::sleep(FOUND_LOOK).await;
                }
            };
            tokio::select! {
                looked_up = self.look_names_up() => looked_up?,
                () = found => {}
            }
        }
        let mut fresh = self.known();
        fresh.retain(|endpoint| !tried.iter().any(|one| Arc::ptr_eq(one, endpoint)));
        let zone = self.zone.as_deref();
        let worth = |one: &Arc<Endpoint>| (one.is_without(mode), one.rank(zone));
        let best = fresh.iter().map(worth).min();
        fresh.retain(|endpoint| Some(worth(endpoint)) == best);
        by_weight(&fresh).ok_or_else(|| Failure::of_names("every server was asked"))
    }

    /// Whether a server is left that has the mode, is not ejected and is not in `tried`.
    pub(crate) fn has_another(&self, tried: &[Arc<Endpoint>], mode: Option<Mode>) -> bool {
        self.known().iter().any(|endpoint| {
            let sound =
                !matches!(endpoint.rank(None), Rank::Ejected(_)) && !endpoint.is_without(mode);
            sound && !tried.iter().any(|one| Arc::ptr_eq(one, endpoint))
        })
    }

    /// The servers for which a health probe is due.
    pub(crate) fn to_probe(&self) -> Vec<Arc<Endpoint>> {
        let mut known = self.known();
        let wants_told = self.zone.is_some() || known.len() > 1;
        known.retain(|endpoint| endpoint.probe_due(wants_told));
        known
    }

    /// Looks up the names that are due; all names if no server is known. Fails only if no server is
    /// known afterwards.
    pub(crate) async fn look_names_up(&self) -> Result<(), Failure> {
        let mut due = self.look_up.lock().await;
        let mut look_ups = JoinSet::new();
        let all = self.known().is_empty();
        for (at, place) in self.places.iter().cloned().enumerate() {
            if !all && Instant::now() < due[at] {
                continue;
            }
            look_ups.spawn(async move {
                let asked = tokio::net::lookup_host(place.authority.clone());
                let found: Result<Vec<SocketAddr>, String> =
                    match tokio::time::timeout(LOOK_UP, asked).await {
                        Ok(Ok(found)) => Ok(found.collect()),
                        Ok(Err(error)) => Err(error.to_string()),
                        Err(_) => Err(format!("no answer within {LOOK_UP:?}")),
                    };
                (at, place, found)
            });
        }
        let mut failure = None;
        while let Some(Ok((at, place, found))) = look_ups.join_next().await {
            match found {
                Ok(addresses) => {
                    due[at] = Instant::now() + BELIEVED;
                    self.keep(&place, addresses);
                }
                // What was known of it stays.
                Err(why) => {
                    due[at] = Instant::now() + AGAIN;
                    let text = format!("the address of {}: {why}", place.authority);
                    failure = Some(Failure::of_names(text));
                }
            }
        }
        match failure {
            Some(failure) if self.known().is_empty() => Err(failure),
            Some(failure) => {
                tracing::debug!("{failure}");
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Replaces the addresses of a name. Servers whose address stays keep their state.
    fn keep(&self, place: &Place, addresses: Vec<SocketAddr>) {
        let mut known = self.known.write().expect("no holder of this lock panics");
        known.retain(|endpoint| endpoint.place != *place || addresses.contains(&endpoint.address));
        for address in addresses {
            // One that several names stand for is one.
            let is_known = known.iter().any(|endpoint| endpoint.address == address);
            if !is_known && known.len() < MOST {
                known.push(Arc::new(Endpoint::new(place.clone(), address)));
            }
        }
    }
}

/// Draws one of these servers at random, in proportion to their weights; evenly if all weights are
/// 0. `None` if there are no servers.
fn by_weight(equals: &[Arc<Endpoint>]) -> Option<Arc<Endpoint>> {
    let weights: Vec<u32> = equals.iter().map(|one| one.weight()).collect();
    let all: u32 = weights.iter().sum();
    if all == 0 {
        return fastrand::choice(equals).cloned();
    }
    let mut left = fastrand::u32(..all);
    for (one, weight) in equals.iter().zip(weights) {
        match left.checked_sub(weight) {
            Some(rest) => left = rest,
            None => return Some(Arc::clone(one)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn equals_are_asked_by_their_weights() {
        let urls = ["http://127.0.0.1:1", "http://127.0.0.2:1", "http://127.0.0.3:1"];
        let pool = pool(&urls, None);
        pool.look_names_up().await.unwrap();
        let known = pool.known();
        for (endpoint, weight) in known.iter().zip([300, 100, 0]) {
            endpoint.told(None, weight);
        }
        let mut asked = [0; 3];
        for _ in 0..4000 {
            let one = pool.choose(&[], None).await.unwrap();
            asked[known.iter().position(|it| Arc::ptr_eq(it, &one)).unwrap()] += 1;
        }
        assert!((2600..3400).contains(&asked[0]) && asked[2] == 0, "{asked:?}");
        // The one that should get nothing gets what nobody else takes.
        let last = pool.choose(&known[..2], None).await.unwrap();
        assert!(Arc::ptr_eq(&last, &known[2]));
        known[0].told(None, 0);
        known[1].told(None, 0);
        assert!(pool.choose(&[], None).await.is_ok());
    }

    fn pool(urls: &[&str], zone: Option<&str>) -> Pool {
        let places = urls.iter().map(|url| Place::parse(url).unwrap()).collect();
        Pool::new(places, zone.map(Into::into))
    }

    #[tokio::test]
    async fn all_servers_are_asked_and_the_sound_and_near_ones_first() {
        let urls = [
            "http://127.0.0.1:1",
            "http://127.0.0.2:1",
            "http://127.0.0.3:1",
            "http://127.0.0.1:1",
        ];
        let pool = pool(&urls, Some("a"));
        let first = pool.choose(&[], None).await.unwrap();
        assert_eq!(pool.known().len(), 3, "one that is given twice is one");
        for endpoint in pool.known() {
            let zone = if endpoint.address.ip().to_string() == "127.0.0.2" { "a" } else { "b" };
            endpoint.told(Some(zone.into()), 100);
        }
        for _ in 0..20 {
            assert_eq!(pool.choose(&[], None).await.unwrap().address.ip().to_string(), "127.0.0.2");
        }
        let near = pool.choose(&[], None).await.unwrap();
        (0..3).for_each(|_| near.failed());
        let mut tried = Vec::new();
        while let Ok(endpoint) = pool.choose(&tried, None).await {
            tried.push(endpoint);
        }
        assert_eq!(tried.len(), 3);
        assert!(Arc::ptr_eq(&tried[2], &near), "the ejected one last");
        assert!(!pool.has_another(&tried[..2], None) && pool.has_another(&tried[..1], None));
        drop(first);
    }

    #[tokio::test]
    async fn a_server_without_the_mode_comes_last() {
        let pool = pool(&["http://127.0.0.1:1", "http://127.0.0.2:1"], Some("a"));
        let near = pool.choose(&[], None).await.unwrap();
        near.told(Some("a".into()), 100);
        near.has_not(Some(Mode::Snowflake));
        for _ in 0..20 {
            let of_tags = pool.choose(&[], Some(Mode::Segment)).await.unwrap();
            assert!(Arc::ptr_eq(&of_tags, &near));
            let of_flakes = pool.choose(&[], Some(Mode::Snowflake)).await.unwrap();
            assert!(!Arc::ptr_eq(&of_flakes, &near));
            assert!(!pool.has_another(&[of_flakes], Some(Mode::Snowflake)));
        }
    }

    /// A name that is not found is looked up again soon, the others when it is their time.
    #[tokio::test(start_paused = true)]
    async fn names_are_looked_up_one_by_one() {
        let pool = pool(&["http://127.0.0.1:1", "http://no-such-host.invalid:8080"], None);
        pool.look_names_up().await.unwrap();
        let due = pool.look_up.lock().await.clone();
        assert!(due[0] > Instant::now() + AGAIN * 2 && due[1] <= Instant::now() + AGAIN);
        assert_eq!(pool.known().len(), 1);
    }

    #[tokio::test]
    async fn a_name_without_an_address_says_so() {
        let pool = pool(&["http://no-such-host.invalid:8080"], None);
        let failure = pool.choose(&[], None).await.unwrap_err();
        assert!(failure.to_string().contains("no-such-host.invalid:8080"), "{failure}");
    }
}
