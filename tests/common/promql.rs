//! Just enough of OpenMetrics text and of PromQL to compare names: which metrics there are with which
//! labels and values, and which an expression uses.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers of tests.
#![allow(dead_code)] // Each test file uses a part of it.

use std::collections::{BTreeMap, BTreeSet};

/// A metric family as it is served.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) unit: Option<String>,
    pub(crate) labels: BTreeSet<String>,
    /// The values that a label had.
    pub(crate) values: BTreeMap<String, BTreeSet<String>>,
}

/// One sample.
#[derive(Debug)]
pub(crate) struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Everything that was served.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    pub(crate) families: BTreeMap<String, Family>,
    samples: Vec<Sample>,
}

/// Suffixes of the samples of a family, by its type.
fn suffixes(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["_total"],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => &[""],
    }
}

impl Family {
    /// The name under which people know it.
    pub(crate) fn shown(&self, name: &str) -> String {
        match self.kind.as_str() {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        }
    }
}

impl Exposition {
    /// Reads it; panics where it is not well formed.
    pub(crate) fn parse(text: &str) -> Exposition {
        let mut all = Exposition::default();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                if comment == "EOF" {
                    continue;
                }
                let mut words = comment.splitn(3, ' ');
                let (what, name) = (words.next().unwrap(), words.next().unwrap());
                let rest = words.next().unwrap_or_default().to_owned();
                let family = all.families.entry(name.to_owned()).or_default();
                match what {
                    "HELP" => family.help = rest,
                    "TYPE" => family.kind = rest,
                    "UNIT" => family.unit = Some(rest),
                    other => panic!("{other}: {line}"),
                }
                current = name.to_owned();
                continue;
            }
            let sample = sample(line);
            let family = all.families.get_mut(&current).expect(line);
            let names = suffixes(&family.kind)
                .iter()
                .map(|s| format!("{current}{s}"));
            assert!(
                names.into_iter().any(|n| n == sample.name),
                "{line} is not of {current}"
            );
            for (label, value) in &sample.labels {
                family.labels.insert(label.clone());
                family
                    .values
                    .entry(label.clone())
                    .or_default()
                    .insert(value.clone());
            }
            all.samples.push(sample);
        }
        all
    }

    /// The family that is known under this name.
    pub(crate) fn family(&self, shown: &str) -> Option<&Family> {
        let found = self
            .families
            .iter()
            .find(|(name, f)| f.shown(name) == shown);
        found.map(|(_, family)| family)
    }

    /// The family of a sample's name, as expressions use it.
    pub(crate) fn of_sample(&self, sample: &str) -> Option<&Family> {
        let found = self.families.iter().find(|(name, family)| {
            suffixes(&family.kind)
                .iter()
                .any(|s| format!("{name}{s}") == sample)
        });
        found.map(|(_, family)| family)
    }

    /// The value of the one sample that has exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: BTreeMap<_, _> = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let found = self
            .samples
            .iter()
            .find(|s| s.name == name && s.labels == wanted);
        found.map(|s| s.value)
    }

    /// Panics if a family lacks what OpenMetrics asks for.
    pub(crate) fn check(&self) {
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            assert!(
                seen.insert((&sample.name, &sample.labels)),
                "twice: {sample:?}"
            );
            assert!(
                sample.value.is_finite() && sample.value >= 0.0,
                "{sample:?}"
            );
        }
        for (name, family) in &self.families {
            assert!(!family.help.is_empty() && !family.kind.is_empty(), "{name}");
            if let Some(unit) = &family.unit {
                assert!(name.ends_with(&format!("_{unit}")), "{name} is in {unit}");
            }
            assert!(
                self.samples.iter().any(|s| s.name.starts_with(name)),
                "{name} has no sample"
            );
            if family.kind == "histogram" {
                self.check_histogram(name);
            }
        }
    }

    fn check_histogram(&self, name: &str) {
        let buckets = format!("{name}_bucket");
        let mut of: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in self.samples.iter().filter(|s| s.name == buckets) {
            let mut labels = sample.labels.clone();
            let le = labels.remove("le").expect("a bucket has a bound");
            let le = if le == "+Inf" {
                f64::INFINITY
            } else {
                le.parse().unwrap()
            };
            of.entry(labels).or_default().push((le, sample.value));
        }
        for (labels, buckets) in of {
            let rises = |w: &[(f64, f64)]| w[0].0 < w[1].0 && w[0].1 <= w[1].1;
            assert!(
                buckets.windows(2).all(rises),
                "{name} {labels:?}: {buckets:?}"
            );
            let last = buckets.last().unwrap();
            assert!(last.0.is_infinite(), "{name} {labels:?} has no last bucket");
            let count = format!("{name}_count");
            let count = self
                .samples
                .iter()
                .find(|s| s.name == count && s.labels == labels);
            assert_eq!(count.unwrap().value, last.1, "{name} {labels:?}");
        }
    }
}

fn sample(line: &str) -> Sample {
    let (head, value) = line.rsplit_once(' ').expect(line);
    let (name, labels) = match head.split_once('{') {
        None => (head, BTreeMap::new()),
        Some((name, rest)) => {
            let inside = rest.strip_suffix('}').expect(line);
            let labels = matchers(inside).into_iter().map(|(k, _, v)| (k, v));
            (name, labels.collect())
        }
    };
    Sample {
        name: name.to_owned(),
        labels,
        value: value.parse().expect(line),
    }
}

/// `a="x",b=~"y"` as label, operator, value.
fn matchers(inside: &str) -> Vec<(String, String, String)> {
    let mut rest = inside.trim();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_once('"').expect(inside);
        let (value, tail) = tail.split_once('"').expect(inside);
        let name = head.trim_end_matches(['=', '~', '!']);
        let operator = &head[name.len()..];
        found.push((
            name.trim().to_owned(),
            operator.to_owned(),
            value.to_owned(),
        ));
        rest = tail.trim_start_matches(',').trim();
    }
    found
}

/// What an expression uses of one metric.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) metric: String,
    /// In its selector, and in `by (…)` of the whole expression.
    pub(crate) labels: BTreeSet<String>,
    /// Values that its selector names.
    pub(crate) values: BTreeMap<String, BTreeSet<String>>,
}

impl Use {
    /// All metrics of kvroom in an expression.
    pub(crate) fn all(expr: &str) -> Vec<Use> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut found: Vec<Use> = Vec::new();
        let mut at = 0;
        while let Some(start) = expr[at..].find("kvroom_").map(|i| at + i) {
            let end = expr[start..]
                .find(|c| !is_word(c))
                .map_or(expr.len(), |i| start + i);
            at = end;
            let mut used = Use {
                metric: expr[start..end].to_owned(),
                labels: BTreeSet::new(),
                values: BTreeMap::new(),
            };
            if let Some(inside) = expr[end..].strip_prefix('{') {
                let inside = inside.split_once('}').expect(expr).0;
                for (label, _, value) in matchers(inside) {
                    if !value.starts_with('$') {
                        let values = value.split('|').map(str::to_owned);
                        used.values.entry(label.clone()).or_default().extend(values);
                    }
                    used.labels.insert(label);
                }
            }
            found.push(used);
        }
        // A metric in an aggregation must have what it is aggregated by.
        for (i, _) in expr.match_indices("by (") {
            let inside = expr[i + 4..].split_once(')').expect(expr).0;
            let by = inside.split(',').map(|l| l.trim().to_owned());
            // The metrics that follow it, up to the next aggregation.
            let next = expr[i + 4..].find("by (").map_or(expr.len(), |n| i + 4 + n);
            for label in by {
                for used in found
                    .iter_mut()
                    .filter(|u| expr[i..next].contains(&u.metric))
                {
                    used.labels.insert(label.clone());
                }
            }
        }
        found
    }
}

#[test]
fn an_expression_says_which_metrics_labels_and_values_it_uses() {
    let expr = r#"sum by (instance, lane) (rate(kvroom_a_total{why=~"x|y"}[5m])) / sum by (peer) (kvroom_b)"#;
    let uses = Use::all(expr);
    let labels = |u: &Use| u.labels.iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(uses.len(), 2);
    assert_eq!(
        (uses[0].metric.as_str(), labels(&uses[0]).as_str()),
        ("kvroom_a_total", "instance lane why")
    );
    assert_eq!(uses[0].values["why"].len(), 2);
    assert_eq!(
        (uses[1].metric.as_str(), labels(&uses[1]).as_str()),
        ("kvroom_b", "peer")
    );
}
