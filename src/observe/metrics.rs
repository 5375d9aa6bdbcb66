//! The `/metrics` page: every metric's name in one place.
//!
//! In: numbers as plain values. Out: OpenMetrics text. Invariant: names and labels are stable; label values come from
//! the route table and HTTP statuses only, so their number is bounded.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::throttling::Throttling;

/// The page's content type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// In front of every name.
const PREFIX: &str = "edge_deploy";

/// Requests by route and status.
#[derive(Clone, Debug, Default)]
pub struct HttpCounters(Family<HttpLabels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    route: String,
    status: u16,
}

impl HttpCounters {
    /// Counts one answered request. `route` is the route's pattern, not the path as sent.
    pub fn count(&self, route: String, status: u16) {
        self.0.get_or_create(&HttpLabels { route, status }).inc();
    }
}

/// A histogram as counted elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramNumbers {
    /// Upper bounds, rising.
    pub bounds_seconds: Vec<f64>,
    /// Observations by bucket, not cumulative; one more than bounds.
    pub counts: Vec<u64>,
    /// Sum of observations.
    pub sum_seconds: f64,
}

/// The engine's numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each field's meaning is its metric's help text below")]
pub struct EngineNumbers {
    pub queued: usize,
    pub running: usize,
    pub accepted: u64,
    pub refused: u64,
    pub finished: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub passes: u64,
    pub prompt_tokens_per_second: f64,
    pub completion_tokens_per_second: f64,
    pub time_to_first_token: HistogramNumbers,
    pub time_between_tokens: HistogramNumbers,
    pub queue_time: HistogramNumbers,
}

/// The page: HTTP counters, the engine's numbers once it is loaded, throttling where the system tells.
///
/// # Errors
/// None in practice: writing to a text does not fail.
pub fn page(
    http: &HttpCounters,
    engine: Option<EngineNumbers>,
    throttling: Option<Throttling>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register(
        "http_requests",
        "Requests answered, by route and status",
        http.0.clone(),
    );
    registry.register_collector(Box::new(Numbers { engine, throttling }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Numbers {
    engine: Option<EngineNumbers>,
    throttling: Option<Throttling>,
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn seconds(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: &HistogramNumbers,
) -> fmt::Result {
    let bounds = value.bounds_seconds.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(value.counts.iter().copied()).collect();
    let count = value.counts.iter().sum();
    encoder
        .encode_descriptor(name, help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(value.sum_seconds, count, &buckets, None)
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut encoder;
        gauge(
            out,
            "ready",
            "1 when the engine is loaded",
            f64::from(u8::from(self.engine.is_some())),
        )?;
        if let Some(engine) = &self.engine {
            gauge(
                out,
                "requests_queued",
                "Requests that wait for a sequence",
                engine.queued as f64,
            )?;
            gauge(
                out,
                "requests_running",
                "Requests with a sequence",
                engine.running as f64,
            )?;
            counter(out, "requests_accepted", "Requests accepted", engine.accepted)?;
            counter(
                out,
                "requests_rejected",
                "Requests refused because the queue was full",
                engine.refused,
            )?;
            counter(
                out,
                "requests_finished",
                "Requests that ended with an answer",
                engine.finished,
            )?;
            counter(
                out,
                "requests_failed",
                "Requests that ended with a problem",
                engine.failed,
            )?;
            counter(
                out,
                "requests_cancelled",
                "Requests whose caller left",
                engine.cancelled,
            )?;
            counter(
                out,
                "prompt_tokens",
                "Prompt tokens processed",
                engine.prompt_tokens,
            )?;
            counter(
                out,
                "completion_tokens",
                "Tokens generated",
                engine.completion_tokens,
            )?;
            counter(out, "passes", "Passes of the network", engine.passes)?;
            let help = "Prompt tokens a second over the last ten seconds";
            gauge(
                out,
                "prompt_tokens_per_second",
                help,
                engine.prompt_tokens_per_second,
            )?;
            let help = "Generated tokens a second over the last ten seconds";
            gauge(
                out,
                "completion_tokens_per_second",
                help,
                engine.completion_tokens_per_second,
            )?;
            let help = "From submission to the first token";
            histogram(
                out,
                "time_to_first_token_seconds",
                help,
                &engine.time_to_first_token,
            )?;
            let help = "Between two tokens of one answer";
            histogram(
                out,
                "time_between_tokens_seconds",
                help,
                &engine.time_between_tokens,
            )?;
            histogram(
                out,
                "queue_seconds",
                "From submission to a free sequence",
                &engine.queue_time,
            )?;
        }
        if let Some(throttling) = &self.throttling {
            let help = "Periods in which the CPU quota stopped this control group";
            counter(out, "cpu_throttled_periods", help, throttling.throttled_periods)?;
            counter(out, "cpu_periods", "Periods of the CPU quota", throttling.periods)?;
            let help = "Time the CPU quota kept this control group stopped";
            seconds(out, "cpu_throttled_seconds", help, throttling.throttled_seconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_number_once() {
        let http = HttpCounters::default();
        http.count("/v1/models".to_owned(), 200);
        http.count("/v1/models".to_owned(), 200);
        let engine = EngineNumbers {
            queued: 3,
            refused: 2,
            time_to_first_token: HistogramNumbers {
                bounds_seconds: vec![0.1, 1.0],
                counts: vec![1, 2, 4],
                sum_seconds: 9.5,
            },
            ..EngineNumbers::default()
        };
        let throttling = Throttling {
            periods: 10,
            throttled_periods: 4,
            throttled_seconds: 0.25,
        };
        let page = page(&http, Some(engine), Some(throttling)).unwrap();
        for line in [
            "edge_deploy_http_requests_total{route=\"/v1/models\",status=\"200\"} 2",
            "edge_deploy_requests_queued 3.0",
            "edge_deploy_requests_rejected_total 2",
            "edge_deploy_time_to_first_token_seconds_sum 9.5",
            "edge_deploy_time_to_first_token_seconds_count 7",
            "edge_deploy_time_to_first_token_seconds_bucket{le=\"0.1\"} 1",
            "edge_deploy_time_to_first_token_seconds_bucket{le=\"1.0\"} 3",
            "edge_deploy_time_to_first_token_seconds_bucket{le=\"+Inf\"} 7",
            "edge_deploy_cpu_throttled_periods_total 4",
            "edge_deploy_cpu_throttled_seconds_total 0.25",
            "# EOF",
        ] {
            assert_eq!(
                page.lines().filter(|found| *found == line).count(),
                1,
                "{line} in\n{page}"
            );
        }
    }

    #[test]
    fn without_an_engine_it_says_so() {
        let page = page(&HttpCounters::default(), None, None).unwrap();
        assert!(
            page.contains("edge_deploy_ready 0.0") && !page.contains("queued"),
            "{page}"
        );
    }
}
