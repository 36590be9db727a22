//! `/metrics`: everything that is counted and measured, in the OpenMetrics format.
//!
//! The page is made from memory alone, by the task of the request for it: it needs no query to a
//! store or to the registry, and delays no request for an id. Rules of the page: a name never
//! changes its meaning; a `_total` never falls while the process lives; units are base units; the
//! values of labels come from closed lists, except the names of tags, of which there are
//! [`NAMED`](super::tags::NAMED) at most. No value is an id: values are doubles, which are exact
//! only up to 2^53. The page shows distances instead.

use std::fmt;
use std::sync::Arc;

use leaf_core::{Clock as _, DurationCounts, Health, HealthCode, SystemClock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::process;
use super::requests::Operation;
use super::tags::TagCounts;
use crate::node::{Node, Snowflake, Store};
use crate::refusal::Face;
use crate::serve::{Handshake, Pressure, Tls};

/// The content type of the page.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The states of a health, each with its value of the label `state`.
const STATES: [(&str, &str); 3] =
    [("ready", "ready"), ("degraded", "degraded"), ("not ready", "not_ready")];

/// The page of this moment.
pub(crate) fn page(node: &Arc<Node>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(OfNode(Arc::clone(node))));
    let mut page = String::with_capacity(64 * 1024);
    // To a `String` it cannot fail.
    let _ = prometheus_client::encoding::text::encode(&mut page, &registry);
    page
}

/// Collects all metrics of a node.
struct OfNode(Arc<Node>);

impl fmt::Debug for OfNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfNode")
    }
}

impl Collector for OfNode {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (node, mut to) = (&*self.0, Page(encoder));
        of_server(node, &mut to)?;
        of_requests(node, &mut to)?;
        of_tags(node, &mut to)?;
        if let Some(stores) = node.ids.stores() {
            of_stores(&stores.iter().collect::<Vec<_>>(), &mut to)?;
        }
        if let Some(snowflake) = node.ids.snowflake() {
            of_snowflake(node, snowflake, &mut to)?;
        }
        of_pressure(node, &mut to)?;
        of_traffic(node, &mut to)?;
        of_tokens(node, &mut to)?;
        if let Some(tls) = &node.tls {
            of_tls(tls, &mut to)?;
        }
        of_process(&mut to)
    }
}

/// Writes metrics to the page. Each call adds one family of metrics.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Values that go up and down.
    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// One value that goes up and down.
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Counts since the start. `name` is the name of the series, with `_total` at its end.
    fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let name = name.trim_end_matches("_total");
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, V, f64>(&value, None)?;
        }
        Ok(())
    }

    /// A count since the start. `name` is the name of the series, with `_total` at its end.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let name = name.trim_end_matches("_total");
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    /// Durations in seconds.
    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, DurationCounts)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, counts) in samples {
            let bounds = DurationCounts::bounds().map(|bound| bound.as_secs_f64());
            let bounds = bounds.chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(counts.buckets).collect();
            let (sum, total) = (counts.sum.as_secs_f64(), counts.total());
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, total, &buckets, None)?;
        }
        Ok(())
    }
}

/// 1 for yes, 0 for no.
const fn flag(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

fn of_server(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    to.gauges(
        "leaf_build_info",
        "The version of this server; always 1.",
        [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
    )?;
    let health = node.health();
    to.gauges(
        "leaf_health",
        "1 for the state that this node is in: what /readyz answers.",
        STATES.map(|(state, word)| ([("state", word)], flag(state == health.state()))),
    )?;
    to.gauges(
        "leaf_health_reason",
        "1 for each reason why this node is not ready, or is degraded; the codes of /v1/status.",
        HealthCode::ALL.iter().map(|code| {
            let given = health.reasons().iter().any(|reason| reason.code == *code);
            ([("code", code.as_str())], flag(given))
        }),
    )?;
    let reload = node.live.last_reload();
    to.gauge(
        "leaf_config_last_reload_successful",
        "Whether the configuration that was read last is in force; 1 before the first reload.",
        flag(reload.successful),
    )?;
    to.gauge(
        "leaf_config_last_reload_success_timestamp_seconds",
        "When a configuration was last taken over.",
        reload.success_at.get() as f64 / 1e3,
    )
}

fn of_requests(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    let requests = &node.requests;
    let mut answered = Vec::new();
    for face in Face::ALL {
        for operation in face.operations() {
            answered.push((*face, *operation, requests.durations(*face, *operation)));
        }
    }
    let labels = |face: Face, operation: Operation| {
        [("protocol", face.name()), ("operation", operation.word())]
    };
    let ok = answered
        .iter()
        .map(|(face, operation, counts)| ([face.name(), operation.word(), "ok"], counts.total()));
    to.counters(
        "leaf_requests_total",
        "Requests that ended: code is ok, or why one was refused.",
        ok.chain(requests.refusals()).map(|([face, operation, code], count)| {
            ([("protocol", face), ("operation", operation), ("code", code)], count)
        }),
    )?;
    to.histograms(
        "leaf_request_duration_seconds",
        "From the arrival of a request's bytes to its answer, of requests that were answered.",
        // Most combinations never come, and each is two dozen lines.
        answered
            .iter()
            .filter(|(_, _, counts)| counts.total() > 0)
            .map(|(face, operation, counts)| (labels(*face, *operation), *counts)),
    )?;
    let waiting = |count: &std::sync::atomic::AtomicUsize| {
        count.load(std::sync::atomic::Ordering::Relaxed) as f64
    };
    to.gauges(
        "leaf_requests_waiting",
        "Requests that wait: for ids, or until it is known whether their tag exists.",
        [
            ([("for", "ids")], waiting(&node.waiting)),
            ([("for", "look_up")], waiting(&node.looking_up)),
        ],
    )?;
    to.gauges(
        "leaf_connections",
        "Open connections.",
        Face::ALL
            .iter()
            .map(|face| ([("protocol", face.name())], requests.connections(*face) as f64)),
    )
}

fn of_tags(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    let counts = node.ids.stores().map(|stores| node.tag_memory.follow(stores));
    let TagCounts { named, other } = counts.unwrap_or_default();
    let segment = |tag: &str| [("mode", "segment".to_owned()), ("tag", tag.to_owned())];
    let of_tags = named.iter().map(|tag| (segment(tag.tag.as_str()), tag.issued));
    let others = (node.ids.segments().is_some()).then(|| (segment("_other"), other));
    let snowflakes = (node.ids.snowflake().is_some()).then(|| {
        ([("mode", "snowflake".to_owned()), ("tag", String::new())], node.requests.snowflakes())
    });
    to.counters(
        "leaf_ids_issued_total",
        "Ids that left this node, leased ones included. Tags beyond the first 2,000 are _other.",
        of_tags.chain(others).chain(snowflakes),
    )?;
    let of = |value: &dyn Fn(&leaf_segment::view::TagView) -> Option<f64>| {
        let samples = named.iter().filter_map(|tag| {
            let view = tag.view.as_ref()?;
            Some(([("tag", tag.tag.as_str().to_owned())], value(view)?))
        });
        samples.collect::<Vec<_>>()
    };
    to.gauges(
        "leaf_segment_stock_ids",
        "Ids of a tag that this node hands out without its store.",
        of(&|view| Some(view.stock as f64)),
    )?;
    to.gauges(
        "leaf_segment_step_ids",
        "How many ids were fetched last of a tag: the step as it was adapted.",
        of(&|view| Some(view.fetches.last()?.amount as f64)),
    )?;
    to.gauges(
        "leaf_segment_remaining_ids",
        "Numbers that a tag has left until its end (of 63 bits, of its slice, of its text), or until the end of its period.",
        named.iter().filter_map(|tag| {
            let view = tag.view.as_ref()?;
            let until = if view.meaning.reset.is_some() { "period" } else { "end" };
            let labels = [("tag", tag.tag.as_str().to_owned()), ("until", until.to_owned())];
            Some((labels, view.remaining? as f64))
        }),
    )
}

fn of_stores(stores: &[&Store], to: &mut Page<'_>) -> fmt::Result {
    let label = |store: &Store| [("store", store.url.to_string())];
    let totals: Vec<_> =
        stores.iter().map(|store| (label(store), store.generator.totals())).collect();
    to.gauges(
        "leaf_store_up",
        "Whether a store of segments answered the last request.",
        stores.iter().map(|store| {
            let away = [HealthCode::StoreUnavailable, HealthCode::Starting];
            (label(store), flag(!has(&store.generator.health(), &away)))
        }),
    )?;
    to.counters(
        "leaf_store_requests_total",
        "Requests to a store: outcome is answered, or failed where it was away or refused.",
        totals.iter().flat_map(|(store, totals)| {
            let [(key, name)] = store;
            let labels = |outcome| [(*key, name.clone()), ("outcome", String::from(outcome))];
            [
                (labels("answered"), totals.store_answers.total()),
                (labels("failed"), totals.store_failures),
            ]
        }),
    )?;
    to.histograms(
        "leaf_store_request_duration_seconds",
        "How long a store took to answer.",
        totals.iter().map(|(store, totals)| (store.clone(), totals.store_answers)),
    )?;
    to.gauges(
        "leaf_segment_tags",
        "Tags that this node knows: those that it was asked for lately.",
        totals.iter().map(|(store, totals)| (store.clone(), totals.tags as f64)),
    )?;
    to.gauges(
        "leaf_segment_tags_gone_back",
        "Tags that get no new ids before an operator advances them: their records went back.",
        totals.iter().map(|(store, totals)| (store.clone(), totals.went_back.len() as f64)),
    )
}

/// Whether a health has one of these reasons.
fn has(health: &Health, codes: &[HealthCode]) -> bool {
    health.reasons().iter().any(|reason| codes.contains(&reason.code))
}

fn of_snowflake(node: &Node, snowflake: &Snowflake, to: &mut Page<'_>) -> fmt::Result {
    let view = snowflake.generator.view();
    let registry = node.config.registry().kind().to_string();
    let away = has(&view.health, &[HealthCode::Registry, HealthCode::Starting]);
    to.gauges(
        "leaf_registry_up",
        "Whether the registry of worker ids confirms the worker id.",
        [([("registry", registry.clone())], flag(view.confirmed && !away))],
    )?;
    to.gauges(
        "leaf_worker_info",
        "The worker id that this node holds; always 1. No two nodes of a cluster may have the same one.",
        view.worker.map(|worker| {
            let worker = worker.get().to_string();
            ([("worker", worker), ("registry", registry)], 1.0)
        }),
    )?;
    let now = SystemClock.wall_millis().get() as f64;
    let ahead = |ceiling: leaf_core::UnixMillis| (ceiling.get() as f64 - now) / 1e3;
    to.gauges(
        "leaf_snowflake_ceiling_distance_seconds",
        "How far ahead of the clock the instants are at which ids stop: the one of the state file, and the one of \
         the registry.",
        [
            ([("ceiling", "state_file")], ahead(view.local_ceiling)),
            ([("ceiling", "registry")], ahead(view.registry_ceiling)),
        ],
    )?;
    to.counters(
        "leaf_clock_steps_total",
        "How often the system's clock was set.",
        [
            ([("direction", "forward")], view.clock_steps.forward),
            ([("direction", "back")], view.clock_steps.back),
        ],
    )?;
    to.gauges(
        "leaf_snowflake_clock_ahead_seconds",
        "How far the ids' clock is ahead of the system's; absent while ids stand still because that went back.",
        view.ahead_of_wall.map(|ahead| ([] as [(&str, &str); 0], ahead as f64 / 1e3)),
    )?;
    of_peers(node, to)?;
    to.counter(
        "leaf_snowflake_leases_lost_total",
        "How often the lease of a worker id ended by itself.",
        view.leases_lost,
    )?;
    let end = node.layout.end();
    to.gauge(
        "leaf_snowflake_end_timestamp_seconds",
        "When the timestamps of the layout are used up.",
        end.get() as f64 / 1e3,
    )
}

/// Writes the metrics of the clocks of other nodes.
fn of_peers(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    let mut offsets: Vec<i64> = node.peer_clocks().iter().map(|peer| peer.offset).collect();
    offsets.sort_unstable();
    to.gauge(
        "leaf_peers_reached",
        "How many other nodes told their clocks within the last minute, of 32 at most that are asked.",
        offsets.len() as f64,
    )?;
    // Of two in the middle the one nearer to 0: one wrong node of three must not make the others wrong.
    let middles = [offsets.len().saturating_sub(1) / 2, offsets.len() / 2];
    let middles = middles.into_iter().filter_map(|at| offsets.get(at));
    let middle = middles.min_by_key(|offset| offset.unsigned_abs());
    let of = [("least", offsets.first()), ("median", middle), ("greatest", offsets.last())];
    to.gauges(
        "leaf_peer_clock_offset_seconds",
        "This node's clock minus those of other nodes; absent while none is reached.",
        of.into_iter().filter_map(|(of, offset)| Some(([("of", of)], *offset? as f64 / 1e3))),
    )
}

/// Writes how long a ready task waits for the processor, on the thread of the data plane where it
/// waits longest.
fn of_pressure(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    let longest = node.pressures.iter().map(Pressure::delay).max().unwrap_or_default();
    to.gauge(
        "leaf_run_queue_delay_seconds",
        "How long a task waits on the data plane's most loaded thread: above 0.005 it is overloaded.",
        longest.as_secs_f64(),
    )
}

/// Writes how many rules of traffic are in force, and whether the last ones that were read are
/// valid.
fn of_traffic(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    to.gauge(
        "leaf_traffic_rules",
        "Rules of traffic that are in force: tags and callers that are cut or limited.",
        node.traffic.rules() as f64,
    )?;
    to.gauge(
        "leaf_traffic_last_read_successful",
        "Whether the rules of traffic that stand in the store are in force, as far as they were read.",
        flag(node.traffic.last_read_successful()),
    )
}

/// Writes whether the file of tokens could be used when it was read last; nothing without a file.
fn of_tokens(node: &Node, to: &mut Page<'_>) -> fmt::Result {
    if node.live.config().tokens_file().is_none() {
        return Ok(());
    }
    to.gauge(
        "leaf_tokens_last_read_successful",
        "Whether the file of tokens could be used when it was read last.",
        flag(node.access.file.last_read_successful()),
    )
}

fn of_tls(tls: &Tls, to: &mut Page<'_>) -> fmt::Result {
    to.counters(
        "leaf_tls_handshakes_total",
        "Handshakes that ended: done, failed, or too-slow.",
        Face::ALL.iter().flat_map(|face| {
            Handshake::ALL.iter().map(|handshake| {
                let labels = [("protocol", face.name()), ("outcome", handshake.word())];
                (labels, tls.handshakes(*face, *handshake))
            })
        }),
    )?;
    to.gauge(
        "leaf_tls_certificate_end_timestamp_seconds",
        "When the certificate ends that is in force.",
        tls.end().as_secs_f64(),
    )?;
    to.gauge(
        "leaf_tls_last_read_successful",
        "Whether the files of certificate and key could be used when they were read last.",
        flag(tls.files.last_read_successful()),
    )
}

fn of_process(to: &mut Page<'_>) -> fmt::Result {
    let Some(process) = process::look() else { return Ok(()) };
    to.counter(
        "process_cpu_seconds_total",
        "Processor time that this process has used.",
        process.cpu_seconds,
    )?;
    to.gauge(
        "process_resident_memory_bytes",
        "Memory of this process that is in use.",
        process.resident_bytes as f64,
    )?;
    to.gauge(
        "process_virtual_memory_bytes",
        "Addresses that this process has reserved.",
        process.virtual_bytes as f64,
    )?;
    to.gauge("process_threads", "Threads of this process.", process.threads as f64)?;
    to.gauge("process_open_fds", "Files that this process has open.", process.open_files as f64)?;
    to.gauge(
        "process_max_fds",
        "Files that this process may have open.",
        process.most_files as f64,
    )?;
    to.gauge(
        "process_start_time_seconds",
        "When this process was started.",
        process.started_at_seconds,
    )
}
