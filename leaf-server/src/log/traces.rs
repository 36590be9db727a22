//! Traces over OTLP: spans of requests that wait, of operators' requests, and of queries to stores
//! and to the registry.
//!
//! Everything is set by the variables that OpenTelemetry defines: `OTEL_EXPORTER_OTLP_ENDPOINT`
//! switches traces on; `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`
//! are read by the SDK. Spans wait in a queue of bounded length for a thread that sends them: if
//! the collector does not answer, spans are lost and nothing else suffers.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use leaf_node::config::ConfigError;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::registry::LookupSpan;

/// The variables that name a collector, either of which switches traces on.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The name of the service where the environment has none.
const SERVICE: &str = "leaf-server";
/// The header in which a client names its trace (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";
/// How long the process waits at its end until the last spans are sent.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Sends spans. Set when the log starts, if a collector is named.
static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// The layer of the log that makes OpenTelemetry spans; `None` if no collector is named. Call this
/// in a tokio runtime: it runs the connections to the collector.
///
/// # Errors
/// The collector's address is invalid.
pub(super) fn layer<S>() -> Result<Option<impl Layer<S>>, ConfigError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let mut names = ENDPOINTS.iter();
    let Some(name) = names.find(|name| std::env::var_os(name).is_some_and(|it| !it.is_empty()))
    else {
        return Ok(None);
    };
    let exporter = SpanExporter::builder().with_tonic().build();
    // The error may repeat the address, and that a password.
    let exporter = exporter.map_err(|_| {
        ConfigError::new(format!("{name}: give the URL of a collector, as http://127.0.0.1:4317"))
    })?;
    // The environment goes before the name here.
    let resource = match std::env::var_os("OTEL_SERVICE_NAME") {
        Some(_) => Resource::builder(),
        None => Resource::builder().with_service_name(SERVICE),
    };
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    let tracer = provider.tracer(SERVICE);
    let _ = PROVIDER.set(provider);
    Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer)))
}

/// Sends the spans that are still queued, and ends the traces.
pub(crate) fn end() {
    if let Some(provider) = PROVIDER.get() {
        let _ = provider.shutdown_with_timeout(LAST_SPANS);
    }
}

/// The header in which the client names its trace; `None` if it has none, or traces are off.
pub(crate) fn parent(headers: &HeaderMap) -> Option<HeaderValue> {
    PROVIDER.get().and_then(|_| headers.get(TRACEPARENT).cloned())
}

/// Makes a span part of the client's trace.
pub(crate) fn join(span: &Span, parent: Option<&HeaderValue>) {
    if let Some(parent) = parent.and_then(|parent| parent.to_str().ok()) {
        let parent = HashMap::from([(TRACEPARENT.to_owned(), parent.to_owned())]);
        // It fails for a span that nobody wants.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&parent));
    }
}
