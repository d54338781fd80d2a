//! Families of samples, one after the other, into an encoder.

use kvroom::metrics::Durations;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::borrow::Cow;
use std::fmt;

/// Labels of one sample, in the order in which they are written.
pub(super) type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// A family's name without prefix, unit and suffix; its unit; and what it is, in a sentence without
/// its full stop.
pub(super) struct Family(
    pub(super) &'static str,
    pub(super) Option<Unit>,
    pub(super) &'static str,
);

/// Writes families.
pub(super) struct Writer<'a>(pub(super) DescriptorEncoder<'a>);

impl Writer<'_> {
    /// Counters; the encoder adds `_total`.
    pub(super) fn counters<V: EncodeCounterValue>(
        &mut self,
        Family(name, unit, help): Family,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in samples {
            let mut sample = family.encode_family(&labels)?;
            sample.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Gauges.
    pub(super) fn gauges<V: EncodeGaugeValue>(
        &mut self,
        Family(name, unit, help): Family,
        samples: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Histograms of durations, in seconds.
    pub(super) fn durations(
        &mut self,
        Family(name, unit, help): Family,
        samples: impl IntoIterator<Item = (Labels, Durations)>,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, durations) in samples {
            let bound =
                |to: Option<std::time::Duration>| to.map_or(f64::INFINITY, |to| to.as_secs_f64());
            let buckets: Vec<_> = durations.buckets().map(|(to, n)| (bound(to), n)).collect();
            let (sum, count) = (durations.sum().as_secs_f64(), durations.count());
            let mut sample = family.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    /// What never changes in the life of a process; the encoder adds `_info`.
    pub(super) fn info(&mut self, Family(name, _, help): Family, labels: &Labels) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Info)?;
        family.encode_info(labels)
    }
}
