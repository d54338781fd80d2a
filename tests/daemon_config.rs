//! `kvroom config` and the errors of a configuration, as a user meets them.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A file of this test, removed at its end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("kvroom-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn kvroom(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroom"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVROOM_") {
            command.env_remove(name);
        }
    }
    command.args(args).envs(variables.iter().copied());
    command
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn the_effective_configuration_says_where_each_value_is_from_and_can_be_used_again() {
    let file = File::new(
        "effective",
        b"name = 'decode-0'\n\n[node]\nlanes = 2\nshards = 2\n",
    );
    let variables = [("KVROOM_NODE_LANES", "3"), ("KVROOM_CONFIG", file.path())];
    let args = ["config", "--node-shards", "4", "--http", "127.0.0.1:0"];
    let text = stdout(&kvroom(&args, &variables));
    for line in [
        format!("name = \"decode-0\" # {}:1", file.path()),
        "lanes = 3 # KVROOM_NODE_LANES".to_owned(),
        "shards = 4 # --node-shards".to_owned(),
        "listen = [\"127.0.0.1:0\"] # --http-listen".to_owned(),
        "stall = \"15s\" # default".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let again = File::new("again", text.as_bytes());
    let from_text = stdout(&kvroom(
        &["config", "--config", again.path(), "--json"],
        &[],
    ));
    let from_text: Value = serde_json::from_str(&from_text).unwrap();
    let mut args = args.to_vec();
    args.push("--json");
    let json: Value = serde_json::from_str(&stdout(&kvroom(&args, &variables))).unwrap();
    let mut keys = 0;
    for (table, all) in json.as_object().unwrap() {
        for (key, entry) in all.as_object().into_iter().flatten() {
            if let Some(value) = entry.get("value") {
                assert_eq!(*value, from_text[table][key]["value"], "{table}.{key}");
                keys += 1;
            }
        }
    }
    assert!(keys > 50, "{keys}");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_place_and_nothing_is_started() {
    let text = b"[http]\nlisen = '127.0.0.1:1'\n[deadlines]\nstall = '5'\nping = '9s'\n";
    let file = File::new("wrong", text);
    for command in ["config", "serve"] {
        let args = [command, "--config", file.path(), "--http-tls-cert", "c"];
        let output = kvroom(&args, &[("KVROOM_NODE_LANES", "65")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let path = file.path();
        let wanted = format!(
            "kvroom: error: the configuration has 5 errors\n\
             \x20 {path}:2: [http] has no key \"lisen\"; did you mean \"listen\"?\n\
             \x20 {path}:4: deadlines.stall: \"5\" has no unit; write a whole number with us, ms, s, min, h or d, \
             for example \"5s\"\n\
             \x20 {path}:5: deadlines.ping (9s) must be less than deadlines.liveness (5s): a peer must be asked \
             before it is given up; lower the one or raise the other\n\
             \x20 KVROOM_NODE_LANES: 65 is not within 1 to 64\n\
             \x20 --http-tls-cert: http.tls_cert needs http.tls_key, the private key of the certificate\n"
        );
        assert_eq!(stderr(&output), wanted);
    }
}

const ON_A_DEVICE: &str = "name=kv,layers=2,pages=8,page_bytes=4KiB,device=0";

#[test]
fn a_pool_on_a_device_is_shown_with_where_it_was_said_by_the_file_the_environment_or_a_flag() {
    let text = b"[devices]\nordinals = [0]\n[[pool]]\nname = 'kv'\nlayers = 2\npages = 8\n\
        page_bytes = '4KiB'\ndevice = 0\n";
    let file = File::new("device", text);
    let may = ("KVROOM_DEVICES_ORDINALS", "0");
    let at = format!("{}:3", file.path());
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let sources: [(&[&str], Variables<'_>, &str); 3] = [
        (&["--config", file.path()], &[], &at),
        (&[], &[may, ("KVROOM_POOL", ON_A_DEVICE)], "KVROOM_POOL"),
        (&["--pool", ON_A_DEVICE], &[may], "--pool"),
    ];
    for (args, variables, from) in sources {
        let args = |more: &'static str| [&["config"], args, &[more]].concat();
        let json = stdout(&kvroom(&args("--json"), variables));
        let json: Value = serde_json::from_str(&json).unwrap();
        let pool = &json["pool"][0];
        assert_eq!(pool["from"], from, "{pool}");
        assert_eq!(pool["value"]["device"], 0, "{pool}");
        assert_eq!(pool["value"]["backing"], "device", "{pool}");
    }
    let text = stdout(&kvroom(&["config", "--config", file.path()], &[]));
    let again = File::new("device-again", text.as_bytes());
    let again = kvroom(&["config", "--config", again.path()], &[]);
    assert!(stdout(&again).contains("\ndevice = 0\n"), "{text}");
}

#[test]
fn a_pool_on_a_device_that_may_not_be_used_is_refused_before_anything_is_started() {
    for command in ["config", "serve"] {
        let output = kvroom(&[command, "--pool", ON_A_DEVICE], &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let wanted = "kvroom: error: the configuration has an error\n  --pool: pool \"kv\": device 0 may not be \
            used; add it to devices.ordinals (ordinals = [0])\n";
        assert_eq!(stderr(&output), wanted);
    }
}

#[test]
fn a_file_that_is_not_there_or_no_text_is_named() {
    let output = kvroom(&["config", "--config", "/nonexistent/k.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent/k.toml: the file cannot be opened"));
    let file = File::new("latin", b"name = 'a'\n# \xe9\n");
    let output = kvroom(&["config", "--config", file.path()], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("line 2 is not UTF-8"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn no_secret_is_printed() {
    let variables = [("KVROOM_CLUSTER_KEY", "a-key-that-nobody-sees")];
    for args in [vec!["config"], vec!["config", "--json"]] {
        let text = stdout(&kvroom(&args, &variables));
        assert!(!text.contains("nobody-sees"), "{text}");
    }
    assert!(stdout(&kvroom(&["config"], &variables)).contains("KVROOM_CLUSTER_KEY is set"));
}

#[test]
fn the_example_is_the_file_of_the_repository() {
    let text = stdout(&kvroom(&["config", "--example"], &[]));
    assert_eq!(text, include_str!("../kvroom.example.toml"));
}

#[test]
fn every_key_is_a_flag_in_the_help() {
    let help = stdout(&kvroom(&["serve", "--help"], &[]));
    let json = stdout(&kvroom(&["config", "--json"], &[]));
    let json: Value = serde_json::from_str(&json).unwrap();
    let mut flags = vec![
        "--name".to_owned(),
        "--pool".to_owned(),
        "--config".to_owned(),
    ];
    for (table, all) in json.as_object().unwrap() {
        for (key, entry) in all.as_object().into_iter().flatten() {
            if entry.get("value").is_some() {
                flags.push(format!("--{table}-{key}").replace('_', "-"));
            }
        }
    }
    for flag in flags {
        let found = help.lines().any(|line| {
            let words = line.split(|c: char| c.is_whitespace() || c == ',');
            words.into_iter().any(|word| word == flag)
        });
        assert!(found, "{flag} is missing\n{help}");
    }
}
