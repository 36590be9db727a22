//! Traces over OTLP: spans of requests that wait, of requests of operators, and of what stores and the
//! registry are asked.
//!
//! Everything is set by the variables that OpenTelemetry defines: `OTEL_EXPORTER_OTLP_ENDPOINT` switches
//! them on; `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are read by the
//! SDK. Spans wait in a queue of bounded length for a thread that sends them: a collector that is away
//! costs the spans and nothing else.

use std::sync::OnceLock;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use leaf_node::config::ConfigError;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
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
/// Where the trace of the client is named (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_millis(500);

/// Sends spans, once the log has started and a collector is named.
static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// The part of the log that makes spans of OpenTelemetry, where a collector is named. Call it in a
/// tokio runtime, on which connections to the collector live.
///
/// # Errors
/// The collector's address is none.
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

/// Sends the spans that wait, and stops.
pub(crate) fn end() {
    if let Some(provider) = PROVIDER.get() {
        let _ = provider.shutdown_with_timeout(LAST_SPANS);
    }
}

/// What a client says its trace is.
pub(crate) fn parent(headers: &HeaderMap) -> Option<HeaderValue> {
    PROVIDER.get().and_then(|_| headers.get(TRACEPARENT).cloned())
}

/// Makes a span part of the client's trace.
pub(crate) fn join(span: &Span, parent: Option<&HeaderValue>) {
    /// One header.
    struct Parent<'a>(&'a HeaderValue);

    impl Extractor for Parent<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            (key == TRACEPARENT).then(|| self.0.to_str().ok()).flatten()
        }

        fn keys(&self) -> Vec<&str> {
            vec![TRACEPARENT]
        }
    }

    if let Some(parent) = parent {
        // It fails for a span that nobody wants.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&Parent(parent)));
    }
}
