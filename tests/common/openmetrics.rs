//! OpenMetrics text 1.0.0, read as strictly as it is specified: what a scraper may refuse is refused
//! here, with the line.
//!
//! ```text
//!   # TYPE name type ┐
//!   # UNIT name unit ├ once each, before the samples; a family is in one piece and never comes again
//!   # HELP name text ┘
//!   name_suffix{label="value",…} number
//!   # EOF
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// Labels and their values.
type Labels = BTreeMap<String, String>;

#[derive(Default)]
struct Family {
    name: String,
    kind: Option<String>,
    unit: Option<String>,
    help: Option<String>,
    samples: Vec<(String, Labels, f64)>,
}

/// The number of samples of a text.
///
/// # Errors
/// What is wrong, and in which line.
pub(crate) fn read(text: &str) -> Result<usize, String> {
    let lines = text.strip_suffix("# EOF\n").ok_or("the end is not # EOF")?;
    if !lines.is_empty() && !lines.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    let mut reading = Reading::default();
    for line in lines.lines() {
        reading.line(line).map_err(|why| format!("{why}: {line}"))?;
    }
    reading.end()?;
    Ok(reading.count)
}

#[derive(Default)]
struct Reading {
    family: Family,
    over: BTreeSet<String>,
    /// Every name that samples of any family have or could have.
    names: BTreeSet<String>,
    count: usize,
}

impl Reading {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() || line.ends_with([' ', '\t', '\r']) {
            return Err("an empty line, or blanks at its end".into());
        }
        let Some(comment) = line.strip_prefix('#') else {
            return self.sample(line);
        };
        let mut words = comment.splitn(4, ' ').skip(1);
        let (Some(what), Some(name)) = (words.next(), words.next()) else {
            return Err("a comment that says nothing".into());
        };
        let rest = words.next().unwrap_or_default().to_owned();
        if name != self.family.name {
            self.end()?;
            is_name(name, true)?;
            if !self.over.insert(name.to_owned()) {
                return Err("the family was there before".into());
            }
            self.family.name = name.to_owned();
        }
        if !self.family.samples.is_empty() {
            return Err("said behind the samples of the family".into());
        }
        let place = match what {
            "TYPE" => &mut self.family.kind,
            "UNIT" => &mut self.family.unit,
            "HELP" => &mut self.family.help,
            _ => return Err("neither TYPE, UNIT nor HELP".into()),
        };
        if place.replace(rest).is_some() {
            return Err("said twice".into());
        }
        Ok(())
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, mut rest) = line.split_at(end);
        is_name(name, true)?;
        let mut labels = Labels::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = read_labels(inside, &mut labels)?;
        }
        let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
        if value.contains(' ') {
            return Err("more than a value: times and exemplars are not written here".into());
        }
        let value = number(value)?;
        let family = &self.family;
        let suffix = name
            .strip_prefix(&*family.name)
            .ok_or("of another family")?;
        let kind = family.kind.as_deref().ok_or("the family has no TYPE")?;
        let fits = match kind {
            "counter" => suffix == "_total" && value >= 0.0 && value.is_finite(),
            "gauge" => suffix.is_empty() && !value.is_nan(),
            "info" => suffix == "_info" && value == 1.0,
            "histogram" => {
                let of_bucket = labels.contains_key("le");
                ["_bucket", "_sum", "_count"].contains(&suffix)
                    && of_bucket == (suffix == "_bucket")
                    && value >= 0.0
            }
            _ => return Err(format!("the type {kind} is not written here")),
        };
        if !fits {
            return Err(format!("no sample of a {kind}"));
        }
        let again = |(n, l, _): &(String, Labels, f64)| *n == name && *l == labels;
        if family.samples.iter().any(again) {
            return Err("the sample is there twice".into());
        }
        self.family.samples.push((name.to_owned(), labels, value));
        self.count += 1;
        Ok(())
    }

    /// The family is over.
    fn end(&mut self) -> Result<(), String> {
        let family = std::mem::take(&mut self.family);
        let name = &family.name;
        if name.is_empty() {
            return Ok(());
        }
        let wrong = |why: &str| Err(format!("{why}: {name}"));
        let kind = family.kind.as_deref().unwrap_or_default();
        if kind.is_empty() || family.help.as_deref().unwrap_or_default().is_empty() {
            return wrong("a family without TYPE or HELP");
        }
        if let Some(unit) = &family.unit
            && !name.ends_with(&format!("_{unit}"))
        {
            return wrong("the name does not end in its unit");
        }
        let reserved = ["_total", "_created", "_bucket", "_count", "_sum", "_info"];
        if reserved.iter().any(|suffix| name.ends_with(suffix)) {
            return wrong("a family's name ends in a suffix of samples");
        }
        for suffix in ["", "_total", "_bucket", "_sum", "_count", "_info"] {
            let is = family
                .samples
                .iter()
                .any(|(n, ..)| *n == format!("{name}{suffix}"));
            if is && !self.names.insert(format!("{name}{suffix}")) {
                return wrong("samples of two families have one name");
            }
        }
        if kind == "histogram" {
            histogram(&family)
        } else {
            Ok(())
        }
    }
}

fn histogram(family: &Family) -> Result<(), String> {
    let name = &family.name;
    let mut all: BTreeMap<Labels, Vec<(String, f64)>> = BTreeMap::new();
    for (sample, labels, value) in &family.samples {
        let mut labels = labels.clone();
        if sample.ends_with("_bucket") {
            let le = labels.remove("le").unwrap_or_default();
            all.entry(labels).or_default().push((le, *value));
        }
    }
    for (labels, buckets) in all {
        let of = |suffix: &str| {
            let name = format!("{name}{suffix}");
            let mut found = family
                .samples
                .iter()
                .filter(|(n, l, _)| *n == name && *l == labels);
            found.next().map(|(_, _, value)| *value)
        };
        let bounds: Result<Vec<f64>, String> = buckets.iter().map(|(le, _)| number(le)).collect();
        let rises = bounds?.windows(2).all(|two| two[0] < two[1])
            && buckets.windows(2).all(|two| two[0].1 <= two[1].1);
        let last = buckets.last().filter(|(le, _)| le == "+Inf");
        if !rises || last.map(|(_, n)| *n) != of("_count") || of("_sum").is_none() {
            return Err(format!("a histogram that cannot be: {name} {labels:?}"));
        }
    }
    Ok(())
}

fn is_name(name: &str, colons: bool) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    let first = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    if first && name.chars().all(fits) {
        Ok(())
    } else {
        Err(format!("{name:?} is no name"))
    }
}

/// Up to the closing brace; gives what is behind it.
fn read_labels<'a>(mut rest: &'a str, into: &mut Labels) -> Result<&'a str, String> {
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        is_name(name, false)?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().ok_or("a value that does not end")? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    _ => return Err("an escape that there is not".into()),
                },
                (_, c) => value.push(c),
            }
        };
        if into.insert(name.to_owned(), value).is_some() {
            return Err("a label twice".into());
        }
        match after.as_bytes().get(end) {
            Some(b'}') => return Ok(&after[end + 1..]),
            Some(b',') => rest = &after[end + 1..],
            _ => return Err("neither a comma nor a brace behind a label".into()),
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    let plain = |c: char| c.is_ascii_digit() || "+-.e".contains(c);
    let special = ["+Inf", "-Inf", "NaN"].contains(&text);
    match text.parse::<f64>() {
        Ok(value) if special || text.chars().all(plain) => Ok(value),
        _ => Err(format!("{text:?} is no number")),
    }
}

#[test]
fn what_is_no_openmetrics_is_refused() {
    let good = "# TYPE a counter\n# HELP a A.\na_total{b=\"x\\\"\\n\"} 1\n# TYPE h histogram\n\
        # HELP h H.\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 1.5\nh_count 2\n# EOF\n";
    assert_eq!(read(good), Ok(5));
    for (from, to) in [
        ("# EOF\n", "# EOF"),
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n# EOF\n"),
        ("# HELP a A.\n", ""),
        ("# HELP a A.\n", "# HELP a A.\n# HELP a A.\n"),
        ("# TYPE a counter", "# TYPE a number"),
        ("# TYPE a counter", "# TYPE a counter\n# UNIT a bytes"),
        ("a_total{", "a{"),
        ("a_total{", "c_total{"),
        ("b=\"x", "2b=\"x"),
        ("b=\"x", "b=\"y\",b=\"x"),
        ("\\n\"}", "\\t\"}"),
        ("\"} 1\n# TYPE h", "\"} -1\n# TYPE h"),
        ("\"} 1\n# TYPE h", "\"} 1 \n# TYPE h"),
        ("\"} 1\n# TYPE h", "\"} 0x1\n# TYPE h"),
        ("\"} 1\n# TYPE h", "\"} 1\n\n# TYPE h"),
        ("h_count 2", "h_count 3"),
        ("h_sum 1.5\n", ""),
        ("{le=\"0.5\"} 1", "{le=\"0.5\"} 3"),
        ("{le=\"+Inf\"}", "{le=\"0.1\"}"),
        (
            "h_count 2\n",
            "h_count 2\n# TYPE a counter\n# HELP a A.\na_total 1\n",
        ),
        ("h_count 2\n", "h_count 2\nh_count 2\n"),
    ] {
        assert!(good.contains(from), "{from}");
        let bad = good.replacen(from, to, 1);
        assert!(read(&bad).is_err(), "{from:?} as {to:?} was taken:\n{bad}");
    }
}
