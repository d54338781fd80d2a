//! `deploy/`: what is there runs the program of this build, with keys, flags, routes and deadlines that
//! it has.
#![allow(clippy::unwrap_used, clippy::expect_used)] // Tests and their helpers.

#[path = "common/daemon.rs"]
mod daemon;
#[path = "common/yaml.rs"]
mod yaml;

use daemon::{Daemon, kvroom};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TOKEN: &str = "a-secret-of-many-letters";
/// Variables that are no keys of the configuration.
const OTHER_VARIABLES: &[&str] = &["KVROOM_CONFIG", "KVROOM_LOG_FORMAT", "KVROOM_CLUSTER_KEY"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The only document of a file.
fn document(path: &str) -> Value {
    let mut all = yaml::documents(&text(path));
    assert_eq!(all.len(), 1, "{path}");
    all.remove(0)
}

/// Every file below `deploy/`, by its path from there.
fn all_files() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("deploy")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

/// `kvroom config --json` of these arguments.
fn effective(args: &[&str]) -> Value {
    let output = kvroom(&["config", "--json"]).args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Of a configuration of `deploy/`.
fn effective_of(path: &str) -> Value {
    effective(&["--config", root().join(path).to_str().unwrap()])
}

fn value<'a>(of: &'a Value, table: &str, key: &str) -> &'a Value {
    let found = &of[table][key]["value"];
    assert!(!found.is_null(), "{table}.{key} of {of}");
    found
}

/// `10s`, `250ms`, or a number of seconds as systemd and Kubernetes have it.
fn seconds(value: &Value) -> Duration {
    let text = match value {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().expect(&text);
    match &text[digits.len()..] {
        "" | "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        "min" => Duration::from_secs(60 * number),
        unit => panic!("{unit} of {text}"),
    }
}

fn shutdown(of: &Value) -> Duration {
    seconds(value(of, "deadlines", "shutdown"))
}

/// The settings of one section of a unit, each with its values.
fn settings(unit: &str, section: &str) -> Vec<(String, String)> {
    let mut now = "";
    let mut found = Vec::new();
    for line in unit.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            now = name;
        } else if let Some((key, value)) = line.split_once('=') {
            if now == section {
                found.push((key.to_owned(), value.to_owned()));
            }
        } else {
            assert!(line.trim().is_empty(), "no setting: {line}");
        }
    }
    found
}

struct Unit(Vec<(String, String)>);

impl Unit {
    fn read() -> Unit {
        Unit(settings(&text("deploy/systemd/kvroom.service"), "Service"))
    }

    /// The value of a setting that is there once.
    fn of(&self, key: &str) -> &str {
        let all: Vec<_> = self.0.iter().filter(|(k, _)| k == key).collect();
        assert_eq!(all.len(), 1, "{key}: {all:?}");
        &all[0].1
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }
}

#[test]
fn every_configuration_is_one_that_the_program_takes() {
    let files = all_files().into_iter();
    let configurations: Vec<PathBuf> = files
        .map(|(path, _)| path)
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    assert_eq!(configurations.len(), 2, "{configurations:?}");
    for path in configurations {
        let read = effective(&["--config", path.to_str().unwrap()]);
        let from = read["deadlines"]["shutdown"]["from"].as_str().unwrap();
        assert!(from.starts_with(path.to_str().unwrap()), "{from}");
    }
}

#[test]
fn every_key_and_variable_that_is_named_is_one_of_the_program() {
    let schema = effective(&[]);
    let tables: BTreeSet<&str> = schema.as_object().unwrap().keys().map(|k| &**k).collect();
    let mut keys = 0;
    for (path, text) in all_files() {
        let path = path.display();
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.' || c == '-';
        for named in text.split(|c| !word(c)) {
            let named = named.trim_end_matches('.');
            if let Some(rest) = named.strip_prefix("KVROOM_") {
                // Named as what goes wrong: variables that Kubernetes makes.
                let known = OTHER_VARIABLES.contains(&named)
                    || named == "KVROOM_HTTP_SERVICE_HOST"
                    || rest.is_empty();
                assert!(
                    known || is_variable(&schema, rest),
                    "{path}: {named} is no variable"
                );
            }
            let Some((table, key)) = named.split_once('.') else {
                continue;
            };
            // Names of files, and of labels of others, begin as tables do.
            let other = ["http.sock", "node.sock"].contains(&named);
            if tables.contains(table) && !other {
                assert!(!schema[table][key].is_null(), "{path}: no key {named}");
                keys += 1;
            }
        }
    }
    assert!(keys >= 6, "only {keys} were found");
}

/// Whether `HTTP_LISTEN` is a key's.
fn is_variable(schema: &Value, name: &str) -> bool {
    let of = |table: &str, keys: &Value| {
        let prefix = format!("{table}_");
        let keys = keys.as_object().into_iter().flatten();
        keys.map(|(key, _)| format!("{prefix}{key}").to_uppercase())
            .any(|variable| variable == name)
    };
    name.to_lowercase() == "name" || schema.as_object().unwrap().iter().any(|(t, k)| of(t, k))
}

/// The program takes these words of a command line. `serve` is asked as `config`, which takes the same.
fn takes(words: &[&str]) {
    let (first, rest) = words.split_first().expect("a subcommand");
    let subcommand = if *first == "serve" { "config" } else { first };
    let flags = rest.iter().filter(|word| word.starts_with("--"));
    let help = kvroom(&[subcommand, "--help"]).output().unwrap();
    assert!(help.status.success(), "there is no kvroom {subcommand}");
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in flags {
        let flag = flag.split('=').next().unwrap();
        let known = help
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .any(|word| word == flag);
        assert!(known, "kvroom {first} has no {flag}");
    }
}

#[test]
fn every_command_line_is_one_that_the_program_takes() {
    let unit = Unit::read();
    let start: Vec<&str> = unit.of("ExecStart").split(' ').collect();
    assert_eq!(start[0], "/usr/local/bin/kvroom");
    takes(&start[1..]);
    let args = strings(&container(&deployment())["args"]);
    takes(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let image = text("deploy/container/Containerfile");
    assert!(image.contains("\nCMD [\"serve\"]\n") && image.contains("\nENTRYPOINT ["));
    let page = text("deploy/README.md");
    let mut commands = 0;
    for line in page.lines() {
        let line = line.split(" # ").next().unwrap().trim();
        let of_image = line
            .strip_prefix("podman run ")
            .and_then(|line| line.split_once(concat!("kvroom:", env!("CARGO_PKG_VERSION"), " ")));
        let command = match of_image {
            Some((_, command)) => Some(command),
            None => line.strip_prefix("kvroom "),
        };
        if let Some(command) = command {
            takes(&command.split_whitespace().collect::<Vec<_>>());
            commands += 1;
        }
    }
    assert_eq!(commands, 4);
}

#[test]
fn the_unit_gives_the_daemon_what_it_needs_and_waits_for_its_end() {
    let unit = Unit::read();
    let (own, default) = (
        effective_of("deploy/systemd/kvroom.toml"),
        effective(&["--config", "/dev/null"]),
    );
    let stop = seconds(&unit.of("TimeoutStopSec").into());
    assert!(stop > shutdown(&own) && stop > shutdown(&default));
    // It says that it lives when it was not blocked; one look late is no reason to kill it.
    let watchdog = seconds(&unit.of("WatchdogSec").into());
    assert!(watchdog >= 3 * seconds(value(&own, "health", "blocked_after")));
    let start = seconds(&unit.of("TimeoutStartSec").into());
    assert!(start > 2 * seconds(value(&own, "health", "canary_deadline")));
    for (key, wanted) in [
        ("Type", "notify"),
        ("KillSignal", "SIGTERM"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("User", "kvroom"),
        ("RuntimeDirectory", "kvroom"),
        ("StateDirectory", "kvroom"),
        ("LimitMEMLOCK", "infinity"),
        ("ReadWritePaths", "/dev/shm"),
        // Otherwise pools go with the service, or their owners are not seen.
        ("RemoveIPC", "no"),
        ("ProtectProc", "default"),
        ("ProcSubset", "all"),
        ("PrivateUsers", "no"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("SystemCallFilter", "@system-service"),
    ] {
        assert_eq!(unit.of(key), wanted, "{key}");
    }
    for removes in [
        "DynamicUser",
        "PrivateIPC",
        "InaccessiblePaths",
        "TemporaryFileSystem",
    ] {
        assert!(!unit.has(removes), "{removes}");
    }
    assert!(
        unit.of("ExecStart")
            .ends_with("--config /etc/kvroom/kvroom.toml")
    );
    // What the configuration names lies where the unit lets it write.
    let may = ["/run/kvroom/", "/var/lib/kvroom", "/dev/shm/"];
    let path = |table, key| value(&own, table, key).as_str().unwrap().to_owned();
    for path in [path("recorder", "dump_dir"), path("status_page", "path")] {
        assert!(may.iter().any(|m| path.starts_with(m)), "{path}");
    }
    for listen in [value(&own, "http", "listen"), value(&own, "node", "listen")] {
        for place in strings(listen) {
            let socket = place.strip_prefix("unix://");
            assert!(
                socket.is_none_or(|s| s.starts_with("/run/kvroom/")),
                "{place}"
            );
        }
    }
    assert!(text("deploy/systemd/kvroom.sysusers").contains("\nu kvroom "));
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        let why = "systemd-analyze is not there (apt-get install systemd)";
        assert!(std::env::var_os("KVROOM_REQUIRE_ALL").is_none(), "{why}");
        eprintln!("SKIPPED: {why}: systemd was NOT asked about the unit");
        return;
    }
    let folder = std::env::temp_dir().join(format!("kvroom-unit-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let verify = |name: &str, unit: &str| {
        let path = folder.join(name);
        // It looks whether the program is there.
        let program = env!("CARGO_BIN_EXE_kvroom");
        fs::write(&path, unit.replace("/usr/local/bin/kvroom", program)).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&path)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), errors)
    };
    let unit = text("deploy/systemd/kvroom.service");
    let (good, errors) = verify("kvroom.service", &unit);
    let about = |errors: &str| errors.lines().any(|line| line.contains("kvroom"));
    assert!(good && !about(&errors), "{errors}");
    // It can say so.
    let (_, errors) = verify(
        "kvroom-bad.service",
        &unit.replace("WatchdogSec", "WatchDogSeconds"),
    );
    assert!(about(&errors), "{errors}");
    fs::remove_dir_all(folder).unwrap();
}

fn deployment() -> Value {
    let all = document("deploy/kubernetes/deployment.yaml");
    assert_eq!(all["kind"], "Deployment");
    all
}

fn pod(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]
}

/// The daemon's.
fn container(deployment: &Value) -> &Value {
    let all = pod(deployment)["containers"].as_array().unwrap();
    all.iter().find(|c| c["name"] == "kvroom").unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    match list {
        Value::Array(all) => all.iter().map(|v| v.as_str().unwrap().to_owned()).collect(),
        one => vec![one.as_str().unwrap().to_owned()],
    }
}

#[test]
fn the_pod_shares_memory_and_processes_and_is_not_killed_before_it_has_drained() {
    let deployment = deployment();
    let (pod, own) = (
        pod(&deployment),
        effective_of("deploy/kubernetes/kvroom.toml"),
    );
    let grace = seconds(&pod["terminationGracePeriodSeconds"]);
    assert!(grace > shutdown(&own) && grace > shutdown(&effective(&[])));
    assert_eq!(pod["shareProcessNamespace"], true);
    assert_eq!(pod["enableServiceLinks"], false);
    let security = &pod["securityContext"];
    assert_eq!(security["runAsNonRoot"], true);
    let container = container(&deployment);
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(
        container["securityContext"]["allowPrivilegeEscalation"],
        false
    );
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(container["image"], format!("kvroom:{version}"));

    // Every mount has its volume, and what the configuration writes has a mount.
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = |name: &Value| volumes.iter().find(|v| v["name"] == *name);
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mounted = |path: &str| {
        let of = mounts.iter().find(|m| {
            let at = m["mountPath"].as_str().unwrap();
            path.strip_prefix(at)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        let of = of.unwrap_or_else(|| panic!("{path} is not mounted"));
        (
            of,
            volume(&of["name"]).unwrap_or_else(|| panic!("no volume for {path}")),
        )
    };
    assert_eq!(volumes.len(), mounts.len());
    assert_eq!(mounted("/dev/shm").1["emptyDir"]["medium"], "Memory");
    for (table, key) in [("recorder", "dump_dir"), ("status_page", "path")] {
        let (mount, volume) = mounted(value(&own, table, key).as_str().unwrap());
        assert!(mount["readOnly"].is_null() && volume["emptyDir"].is_object());
    }
    let args = strings(&container["args"]);
    let file = args.iter().skip_while(|a| *a != "--config").nth(1).unwrap();
    let map = &mounted(file).1["configMap"]["name"];
    let kustomization = document("deploy/kubernetes/kustomization.yaml");
    let made = &kustomization["configMapGenerator"][0];
    assert_eq!(*map, made["name"]);
    assert_eq!(strings(&made["files"]), [file.rsplit('/').next().unwrap()]);
    for resource in strings(&kustomization["resources"]) {
        assert!(document(&format!("deploy/kubernetes/{resource}"))["kind"].is_string());
    }

    // Secrets: named by the configuration, made by the command of the page.
    let page = text("deploy/README.md");
    for (table, key) in [("http", "token_file"), ("node", "cluster_key_file")] {
        let path = value(&own, table, key).as_str().unwrap();
        let name = mounted(path).1["secret"]["secretName"].as_str().unwrap();
        assert!(page.contains(&format!("secret generic {name} ")), "{name}");
        let key = path.rsplit('/').next().unwrap();
        assert!(page.contains(&format!("--from-literal={key}=")), "{key}");
    }
    let monitor = document("deploy/kubernetes/podmonitor.yaml");
    let secret = &monitor["spec"]["podMetricsEndpoints"][0]["authorization"]["credentials"];
    assert_eq!(secret["name"], "kvroom-secrets");
    let token = value(&own, "http", "token_file").as_str().unwrap();
    assert!(token.ends_with(&format!("/{}", secret["key"].as_str().unwrap())));
}

#[test]
fn ports_and_labels_are_the_same_everywhere() {
    let deployment = deployment();
    let own = effective_of("deploy/kubernetes/kvroom.toml");
    let container = container(&deployment);
    let ports = container["ports"].as_array().unwrap();
    let port = |name: &str| {
        let port = ports.iter().find(|p| p["name"] == *name);
        port.unwrap_or_else(|| panic!("no port {name}"))["containerPort"].to_string()
    };
    for (table, name) in [("http", "http"), ("node", "node")] {
        let listen = strings(value(&own, table, "listen"));
        assert!(
            listen[0].ends_with(&format!(":{}", port(name))),
            "{listen:?}"
        );
    }
    let service = document("deploy/kubernetes/service.yaml");
    for of in service["spec"]["ports"].as_array().unwrap() {
        assert_eq!(
            of["port"].to_string(),
            port(of["targetPort"].as_str().unwrap())
        );
    }
    let monitor = document("deploy/kubernetes/podmonitor.yaml");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    port(endpoint["port"].as_str().unwrap());
    let template = &deployment["spec"]["template"]["metadata"];
    assert_eq!(template["annotations"]["prometheus.io/port"], port("http"));
    assert_eq!(
        template["annotations"]["prometheus.io/path"],
        endpoint["path"]
    );
    let labels = &template["labels"];
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(service["spec"]["selector"], *labels);
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], *labels);
    // The alerts and the dashboard ask for this job.
    let job = &labels[monitor["spec"]["jobLabel"].as_str().unwrap()];
    let scrape = document("deploy/prometheus/scrape.yml");
    assert_eq!(*job, scrape["scrape_configs"][0]["job_name"]);
    let exposed = format!("\nEXPOSE {} {}\n", port("http"), port("node"));
    assert!(
        text("deploy/container/Containerfile").contains(&exposed),
        "{exposed}"
    );
}

#[test]
fn probes_ask_routes_that_a_daemon_so_configured_serves_without_a_token() {
    let folder = std::env::temp_dir().join(format!("kvroom-deploy-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let secret = |name: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("{TOKEN}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let config = root().join("deploy/kubernetes/kvroom.toml");
    let page = format!("/dev/shm/kvroom-deploy-{}", std::process::id());
    // As deployed, but for what this machine has in other places.
    let mut daemon = Daemon::start(&[
        "--config",
        config.to_str().unwrap(),
        "--http-token-file",
        &secret("token"),
        "--node-cluster-key-file",
        &secret("cluster.key"),
        "--node-listen",
        "tcp://127.0.0.1:0",
        "--recorder-dump-dir",
        folder.to_str().unwrap(),
        "--status-page-path",
        &page,
    ]);
    let deployment = deployment();
    let container = container(&deployment);
    for (probe, path) in [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ] {
        let get = &container[probe]["httpGet"];
        assert_eq!(get["path"], path, "{probe}");
        assert_eq!(get["port"], "http", "{probe}");
        daemon.until(path, |answer| answer.status == 200);
    }
    // Nobody is restarted for less than what the watchdog calls blocked.
    let probe = &container["livenessProbe"];
    let red =
        probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
    assert!(red >= 10);
    assert_eq!(daemon.get("/metrics").status, 401);
    daemon.token = Some(TOKEN.to_owned());
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    let metrics = annotations["prometheus.io/path"].as_str().unwrap();
    assert_eq!(daemon.get(metrics).status, 200);
    let (status, _) = daemon.stop();
    assert!(status.success());
    let _ = fs::remove_file(page);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_kubernetes_would_say_of_a_service_in_the_environment_would_stop_the_daemon() {
    let mut config = kvroom(&["config"]);
    config.env("KVROOM_HTTP_SERVICE_HOST", "10.0.0.1");
    let output = config.output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "enableServiceLinks: false is needed for this"
    );
}

#[test]
fn the_image_is_built_by_the_compiler_and_from_the_files_that_are_needed() {
    let image = text("deploy/container/Containerfile");
    let toolchain = text("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|l| l.strip_prefix("channel = "));
    let channel = channel.unwrap().trim_matches('"');
    let of_image = image.lines().find_map(|l| l.strip_prefix("ARG RUST="));
    assert!(
        channel == of_image.unwrap() || channel.starts_with(&format!("{}.", of_image.unwrap()))
    );
    let stages = image.lines().filter(|l| l.starts_with("FROM ")).count();
    assert_eq!(stages, 2);
    let last = image.rsplit("\nFROM ").next().unwrap();
    let user = last.lines().find_map(|l| l.strip_prefix("USER ")).unwrap();
    let uid: u32 = user.split(':').next().unwrap().parse().expect("a number");
    let of_pod = pod(&deployment())["securityContext"]["runAsUser"].as_u64();
    assert!(uid > 0 && of_pod == Some(uid.into()));

    // Cargo finds all that the manifests name among what is sent to the builder.
    let folder = std::env::temp_dir().join(format!("kvroom-context-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let ignored = text(".dockerignore");
    let mut rules = ignored.lines().filter(|l| !l.starts_with('#'));
    assert_eq!(rules.next(), Some("*"), "nothing but what is named");
    for rule in rules.filter(|l| !l.is_empty()) {
        let name = rule.strip_prefix('!').expect("all else is ignored already");
        let copied = Command::new("sh")
            .arg("-c")
            .arg(format!("cp -r {name} \"$0\""))
            .arg(&folder)
            .current_dir(root())
            .status();
        assert!(copied.unwrap().success(), "{name}");
    }
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&metadata.stderr);
    assert!(metadata.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = found["packages"].as_array().unwrap().iter();
    let mut names: Vec<_> = packages.map(|p| p["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    // What tests need of their own goes with the crate that has it, and is not built.
    let own = names.iter().position(|n| *n == "kvroom-standin-libcuda");
    names.remove(own.unwrap());
    let ours = [
        "kvroom",
        "kvroom-actors",
        "kvroom-kernels",
        "kvroom-ucx-sys",
    ];
    assert_eq!(names, ours);
    fs::remove_dir_all(folder).unwrap();
}
