//! What can be set about health.

use std::time::Duration;

/// The table `health` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthSettings {
    /// Whether a canary room runs through each lane and fabric on reserved pages.
    pub(crate) canary: bool,
    /// How often.
    pub(crate) canary_interval: Duration,
    /// A canary that is not done after so long has failed.
    pub(crate) canary_deadline: Duration,
    /// A part with something to do that makes no turn for so long is blocked.
    pub(crate) blocked_after: Duration,
}

impl Default for HealthSettings {
    fn default() -> Self {
        HealthSettings {
            canary: true,
            canary_interval: Duration::from_secs(1),
            canary_deadline: Duration::from_secs(2),
            blocked_after: Duration::from_secs(2),
        }
    }
}
