//! What is read from the three sources, what is refused, and what is printed.

use super::schema::{POOL_ROWS, ROWS, TABLES};
use super::source::{Origin, Origins};
use super::value::{Bytes, Raw, Setting, Shown};
use super::*;
use crate::cli::settings::{DEADLINES, LIMITS};
use kvroom::{Deadlines, Limits};
use std::path::Path;
use std::time::Duration;

fn read(text: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Effective {
    match try_read(text, variables, flags) {
        Ok(effective) => effective,
        Err(error) => panic!("{error}"),
    }
}

fn try_read(
    text: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Effective, ConfigError> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    Effective::read_text(Some(("k.toml", text)), variables, &given(flags))
}

/// As if these had been flags: paths of keys, with a word for each.
fn given(words: &[(&str, &str)]) -> Given {
    let words = words.iter();
    Given::of(words.map(|(path, word)| ((*path).to_owned(), vec![(*word).to_owned()])))
}

/// What is wrong, each as "where: what".
fn complaints(
    text: &str,
    variables: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Vec<String> {
    match try_read(text, variables, flags) {
        Ok(effective) => panic!("taken: {:?}", effective.config),
        Err(error) => {
            let all = error.complaints().iter();
            all.map(|c| format!("{}: {}", c.at, c.what)).collect()
        }
    }
}

/// The only complaint about this file.
fn complaint(text: &str) -> String {
    let all = complaints(text, &[], &[]);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.concat()
}

const POOL_OF_KV: &str = "[[pool]]\nname='kv'\nlayers=2\npages=8\npage_bytes=4096\n";

#[test]
fn without_any_source_everything_has_its_default() {
    let effective = Effective::read(None, [], &Given::default()).unwrap();
    assert_eq!(effective.config, Config::default());
    assert_eq!(effective.config.limits, Limits::default());
    assert_eq!(effective.config.deadlines, Deadlines::default());
    assert_eq!(
        effective.config.http.listen[0].to_string(),
        "127.0.0.1:7480"
    );
}

#[test]
fn the_environment_goes_before_the_file_and_a_flag_before_both() {
    let text = "[node]\nlanes=2\nshards=2\n\n[http]\nmax_connections=7\n";
    let variables = [("KVROOM_NODE_LANES", "3"), ("KVROOM_NODE_SHARDS", "3")];
    let effective = read(text, &variables, &[("node.lanes", "4")]);
    let config = &effective.config;
    assert_eq!(
        (
            config.node.lanes,
            config.node.shards,
            config.http.max_connections
        ),
        (4, Some(3), 7)
    );
    let origin = |path| effective.origins.of(path).to_string();
    assert_eq!(origin("node.lanes"), "--node-lanes");
    assert_eq!(origin("node.shards"), "KVROOM_NODE_SHARDS");
    assert_eq!(origin("http.max_connections"), "k.toml:6");
    assert_eq!(origin("http.max_concurrent"), "default");
}

#[test]
fn a_list_of_a_flag_or_variable_takes_the_place_of_the_files() {
    let text = "[node]\nlisten = ['tcp://a:1', 'tcp://b:2']\n";
    let listen = |effective: Effective| {
        let listen = effective.config.node.listen.into_iter();
        listen.map(|address| address.0).collect::<Vec<_>>()
    };
    assert_eq!(listen(read(text, &[], &[])), ["tcp://a:1", "tcp://b:2"]);
    let variables = [("KVROOM_NODE_LISTEN", "tcp://c:3,unix:///d")];
    assert_eq!(
        listen(read(text, &variables, &[])),
        ["tcp://c:3", "unix:///d"]
    );
    let one = listen(read(text, &variables, &[("node.listen", "tcp://e:5")]));
    assert_eq!(one, ["tcp://e:5"]);
    assert_eq!(
        listen(read("[node]\nlisten='tcp://f:6'", &[], &[])),
        ["tcp://f:6"]
    );
}

#[test]
fn every_limit_and_deadline_is_a_key() {
    for field in LIMITS {
        let path = format!("limits.{}", field.name);
        assert!(ROWS.iter().any(|row| row.path() == path), "{path}");
    }
    for field in DEADLINES {
        let path = format!("deadlines.{}", field.name);
        assert!(ROWS.iter().any(|row| row.path() == path), "{path}");
    }
    // The lists themselves are whole: see `cli::settings`.
    let of = |table| ROWS.iter().filter(|row| row.table == table).count();
    let count = |text: String| text.matches(": ").count();
    assert_eq!(of("limits"), count(format!("{:?}", Limits::default())));
    assert_eq!(
        of("deadlines"),
        count(format!("{:?}", Deadlines::default()))
    );
}

#[test]
fn every_key_is_of_a_table_and_has_words_and_a_name_of_its_own() {
    let mut names = std::collections::BTreeSet::new();
    for row in ROWS.iter() {
        assert!(
            TABLES.iter().any(|(table, _)| *table == row.table),
            "{}",
            row.path()
        );
        assert!(
            row.doc.trim().ends_with(['.', ')']),
            "{}: {}",
            row.path(),
            row.doc
        );
        // Two paths could give one variable: a_b.c and a.b_c.
        assert!(names.insert(row.variable()), "{}", row.variable());
        assert!(names.insert(row.flag()), "{}", row.flag());
        let none = row.show(&Config::default()) == Shown::Nothing;
        assert!(
            !none || row.example.is_some(),
            "{} has no example",
            row.path()
        );
    }
}

#[test]
fn a_key_is_read_the_same_from_each_source() {
    for row in ROWS.iter() {
        let shown = match row.example {
            Some(example) => example.to_owned(),
            None => row.show(&Config::default()).to_string(),
        };
        let path = row.path();
        let text = match row.table {
            "" => format!("{} = {shown}\n", row.key),
            table => format!("[{table}]\n{} = {shown}\n", row.key),
        };
        // What needs another key to stand with it is read alone here.
        let mut from_file = Config::default();
        let wrong = file::read("k.toml", &text, &mut from_file, &mut Origins::default());
        assert!(wrong.is_empty(), "{path}: {wrong:?}");
        let word = shown.trim_matches(['[', ']']).replace('"', "");
        let mut from_word = Config::default();
        let result = row.read(&mut from_word, &Raw::Word(word));
        assert_eq!(result, Ok(()), "{path}");
        assert_eq!(from_file, from_word, "{path}");
        // A default cannot show that it was read at all; an example can.
        if row.example.is_some() {
            assert_ne!(from_file, Config::default(), "{path}");
        }
    }
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_that_there_is() {
    assert_eq!(
        complaint("# first\n[http]\nlisen = '127.0.0.1:1'\n"),
        "k.toml:3: [http] has no key \"lisen\"; did you mean \"listen\"?"
    );
    assert_eq!(
        complaint("\n[htp]\n"),
        "k.toml:2: there is no key \"htp\"; did you mean \"http\"?"
    );
    let pool = format!("{POOL_OF_KV}pagebytes=1\n");
    assert_eq!(
        complaint(&pool),
        "k.toml:6: a pool has no key \"pagebytes\"; did you mean \"page_bytes\"?"
    );
    let all = complaints("", &[("KVROOM_HTTP_LISTN", "x")], &[]);
    assert_eq!(
        all,
        ["KVROOM_HTTP_LISTN: [http] has no such key; did you mean \"KVROOM_HTTP_LISTEN\"?"]
    );
    let all = complaints("", &[("KVROOM_HEALTH_CANERY", "false")], &[]);
    assert_eq!(
        all,
        ["KVROOM_HEALTH_CANERY: [health] has no such key; did you mean \"KVROOM_HEALTH_CANARY\"?"]
    );
    let all = complaints("", &[("KVROOM_HEALTH_BLOCKED_AFTER", "2")], &[]);
    assert!(all[0].contains("has no unit"), "{all:?}");
}

#[test]
fn variables_of_other_things_are_left_alone() {
    let others = [
        ("KVROOM_LOG_FORMAT", "json"),
        ("KVROOM_SERVICE_HOST", "10.0.0.1"),
        ("HTTP_LISTEN", "x"),
        // Of the clients, of the tests, and of builds for tests.
        ("KVROOM_URL", "http://127.0.0.1:7480"),
        ("KVROOM_TOKEN_FILE", "/run/token"),
        ("KVROOM_CONFIG", "k.toml"),
        ("KVROOM_REQUIRE_ALL", "1"),
        ("KVROOM_PYTHON", "python3"),
        ("KVROOM_TEST_UCX_LIBRARIES", "libucp.so.0"),
        ("KVROOM_TEST_UCX_INCLUDE", "/usr/include"),
        ("KVROOM_TEST_UCX_TLS", "tcp"),
        ("KVROOM_CHROMIUM", "chromium"),
        ("KVROOM_BIN", "kvroom"),
        ("KVROOM_BLESS", "1"),
        ("KVROOM_SOAK", "1"),
        ("KVROOM_TEST_DIR", "/tmp"),
        ("KVROOM_PLANT_WEDGE", "/tmp/wedges"),
    ];
    assert_eq!(read("", &others, &[]).config, Config::default());
}

#[test]
fn a_duration_has_a_unit_of_time() {
    for (text, words) in [
        ("5", "5 has no unit"),
        ("\"5\"", "\"5\" has no unit"),
        ("\"5 parsecs\"", "\"parsecs\" is no unit of time"),
        ("\"s\"", "\"s\" is no duration"),
        ("1.5", "a number with a fraction is no duration"),
        ("\"-1s\"", "is no duration"),
        ("\"1000d\"", "longer than 366d"),
        ("\"99999999999999999999s\"", "is no duration"),
        ("\"18446744073709551615h\"", "longer than 366d"),
    ] {
        let all = complaint(&format!("[deadlines]\nstall = {text}\n"));
        assert!(
            all.starts_with("k.toml:2: deadlines.stall: ") && all.contains(words),
            "{all}"
        );
    }
    for (text, wanted) in [
        ("5s", Duration::from_secs(5)),
        ("250 ms", Duration::from_millis(250)),
        ("2min", Duration::from_secs(120)),
        ("1h", Duration::from_secs(3600)),
        ("7us", Duration::from_micros(7)),
    ] {
        let read = Duration::read(&Raw::Text(text.to_owned())).unwrap();
        assert_eq!(read, wanted);
        let Shown::Text(shown) = read.show() else {
            panic!("{text}")
        };
        assert_eq!(Duration::read(&Raw::Text(shown)), Ok(wanted));
    }
}

#[test]
fn bytes_have_a_unit_or_are_a_number() {
    for (text, wanted) in [("8MiB", 8 << 20), ("1 KiB", 1024), ("7B", 7)] {
        assert_eq!(Bytes::read(&Raw::Text(text.to_owned())), Ok(Bytes(wanted)));
    }
    assert_eq!(Bytes::read(&Raw::Integer(3)), Ok(Bytes(3)));
    assert_eq!(Bytes::read(&Raw::Word("3".to_owned())), Ok(Bytes(3)));
    for wrong in ["8MB", "8 parsecs", "MiB", "8", "99999999999TiB"] {
        let error = Bytes::read(&Raw::Text(wrong.to_owned())).unwrap_err();
        assert!(error.contains("for example \"8MiB\""), "{error}");
    }
    assert!(Bytes::read(&Raw::Integer(-1)).is_err());
}

#[test]
fn a_value_of_another_type_or_beyond_its_bounds_is_refused_with_its_line() {
    for (text, words) in [
        (
            "[node]\nlanes = 0",
            "k.toml:2: node.lanes: 0 is not within 1 to 64",
        ),
        ("[node]\nlanes = 65", "65 is not within 1 to 64"),
        (
            "[node]\nlanes = '2'",
            "\"2\" is a string; write 2 without quotes",
        ),
        ("[node]\nlanes = true", "true is not a whole number"),
        ("[node]\nlanes = -1", "-1 is not within 0 to"),
        ("[node]\nshm = 1", "1 is not true or false"),
        ("[node]\nshm = 'true'", "write true without quotes"),
        (
            "[node]\nspin = '11ms'",
            "\"11ms\" is not within \"0s\" to \"10ms\"",
        ),
        (
            "[ucx]\nwhen = 'yes'",
            "is not \"off\", \"rdma\", \"prefer\" or \"always\"",
        ),
        ("[ucx]\nwhen = true", "true is not \"off\", \"rdma\""),
        ("[ucx]\none_sided = 'off'", "is not \"rdma\" or \"always\""),
        ("[ucx]\nlibrary = ''", "ucx.library: it is empty"),
        (
            "[ucx]\nwindow_bytes = 4095",
            "ucx.window_bytes: 4095 is not within \"4KiB\" to \"64MiB\"",
        ),
        ("[ucx]\nwindow_bytes = '65MiB'", "is not within"),
        ("[ucx]\nwindow_puts = 0", "0 is not within 1 to 4096"),
        ("[ucx]\nwindow_puts = 4097", "4097 is not within"),
        (
            "[ucx]\nwire_up = '9ms'",
            "\"9ms\" is not within \"10ms\" to \"600s\"",
        ),
        ("[ucx]\nflush = '601s'", "ucx.flush: \"601s\" is not within"),
        ("[ucx]\nclose = '0s'", "ucx.close: \"0s\" is not within"),
        (
            "[ucx]\nspin = '11ms'",
            "ucx.spin: \"11ms\" is not within \"0s\" to \"10ms\"",
        ),
        ("[ucx]\nretired = 65537", "65537 is not within 0 to 65536"),
        ("[http]\nlisten = 'localhost'", "write IP:PORT"),
        ("[http]\nlisten = 7480", "7480 is no address"),
        ("[node]\nconnect = ['h:7']", "write tcp://HOST:PORT"),
        (
            "[limits]\nsenders = 65536",
            "65536 is not within 1 to 65535",
        ),
        ("[limits]\nframe_bytes = '17MiB'", "is not within"),
        ("[limits]\nrooms = 0", "0 is not within 1 to"),
        ("name = ''", "name: it is empty"),
        ("http = 3", "http is a table; write [http]"),
        ("pool = 3", "write [[pool]]"),
        ("[pool]\nname='kv'", "write [[pool]]"),
        ("pool = [3]", "write [[pool]]"),
        ("[deadlines]\nstall = 'none'", "\"none\" is no duration"),
    ] {
        let all = complaint(text);
        assert!(all.contains(words), "{text}: {all}");
    }
}

#[test]
fn only_the_outcome_may_have_no_deadline() {
    let effective = read("[deadlines]\noutcome = 'none'", &[], &[]);
    assert_eq!(effective.config.deadlines.outcome, None);
}

#[test]
fn what_is_not_toml_is_named_with_its_line() {
    let all = complaint("[http]\nlisten = \n");
    assert!(all.starts_with("k.toml:2: this is not TOML"), "{all}");
    let all = complaint("[node]\nlanes = 1\nlanes = 2\n");
    assert!(
        all.starts_with("k.toml:3: ") && all.contains("duplicate"),
        "{all}"
    );
}

#[test]
fn contradictions_are_named_where_the_first_of_their_keys_is() {
    for (text, at, words) in [
        ("[http]\ntls_cert='c'", 2, "needs http.tls_key"),
        ("[http]\n\ntls_key='c'", 3, "needs http.tls_cert"),
        ("[http]\nlisten='0.0.0.0:1'", 2, "set http.token_file"),
        (
            "[http]\nlisten=['127.0.0.1:1', '[::]:1']",
            2,
            "other machines can reach [::]:1",
        ),
        ("[http]\nlisten=[]", 2, "name an address"),
        ("[http]\nlisten=['127.0.0.1:1','127.0.0.1:1']", 2, "twice"),
        ("[http]\nrate_burst=1", 2, "needs http.rate_per_second"),
        (
            "[deadlines]\nping='5s'",
            2,
            "less than deadlines.liveness (5s)",
        ),
        (
            "[deadlines]\nliveness='1s'",
            2,
            "deadlines.ping (1s) must be less",
        ),
        (
            "[deadlines]\nbackoff_first='3s'",
            2,
            "is more than deadlines.backoff_most",
        ),
        (
            "[health]\ncanary=false\ncanary_interval='1s'",
            3,
            "no meaning",
        ),
        (
            "[node]\npin_lanes=[1,2]",
            2,
            "names 2 processors and node.lanes is 1",
        ),
        ("[node]\nshards=1\npin_shards=[1,2]", 3, "node.shards is 1"),
        ("[node]\nshm=false\nshm_group=3", 3, "needs node.shm = true"),
        ("[node]\nlisten=['tcp://a:1','tcp://a:1']", 2, "twice"),
        (
            "[devices]\nordinals=[0,1,0]",
            2,
            "devices.ordinals names device 0 twice",
        ),
    ] {
        let all = complaint(text);
        assert!(
            all.starts_with(&format!("k.toml:{at}: ")) && all.contains(words),
            "{text}: {all}"
        );
    }
    let many: Vec<String> = (0..65).map(|n: u32| n.to_string()).collect();
    let many = format!("[devices]\nordinals=[{}]", many.join(","));
    assert!(complaint(&many).contains("devices.ordinals names 65 devices; 64"));
    let long = format!("name = '{}'", "x".repeat(65));
    assert!(complaint(&long).contains("65 bytes"));
    // A client's certificate is a way to know who asks, but only over TLS.
    let all = complaint("[http]\nlisten='0.0.0.0:1'\ntls_client_ca='ca'");
    assert!(
        all.starts_with("k.toml:3: http.tls_client_ca needs"),
        "{all}"
    );
    for right in [
        "[http]\nlisten='0.0.0.0:1'\ntoken_file='t'",
        "[http]\nlisten='unix:///s'",
        "[http]\nlisten=['127.0.0.1:0','127.0.0.1:0']",
        "[http]\nlisten='0.0.0.0:1'\ntls_client_ca='ca'\ntls_cert='c'\ntls_key='k'",
    ] {
        read(right, &[], &[]);
    }
}

#[test]
fn a_contradiction_of_two_sources_names_the_one_to_blame() {
    let all = complaints("[http]\nlisten='0.0.0.0:1'", &[], &[("http.tls_cert", "c")]);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].starts_with("k.toml:2: http.listen"), "{all:?}");
    assert!(all[1].starts_with("--http-tls-cert: "), "{all:?}");
}

#[test]
fn pools_that_cannot_be_are_named_with_their_line() {
    for (more, words) in [
        ("backing='file'", "needs a path"),
        ("path='/x'", "needs backing = \"file\""),
        ("create=true", "create is for files only"),
        ("pages=9", "duplicate"),
        ("kind='kvs'", "is not \"kv\" or \"aux\""),
        ("order='pages'", "pages_first"),
    ] {
        let all = complaint(&format!("{POOL_OF_KV}{more}\n"));
        assert!(
            all.starts_with("k.toml:") && all.contains(words),
            "{more}: {all}"
        );
    }
    let two = format!("{POOL_OF_KV}\n{POOL_OF_KV}");
    let all = complaint(&two);
    assert!(
        all.starts_with("k.toml:7: there is a pool \"kv\" already (k.toml:1)"),
        "{all}"
    );
    let all = complaints("[[pool]]\nname='kv'\n", &[], &[]);
    let missing: Vec<&str> = all.iter().map(|a| &a[..]).collect();
    assert_eq!(
        missing,
        [
            "k.toml:1: the pool has no layers",
            "k.toml:1: the pool has no page_bytes",
            "k.toml:1: the pool has no pages",
        ]
    );
    let huge = "[[pool]]\nname='kv'\nlayers=4294967295\npages=4294967295\npage_bytes='1TiB'\n";
    assert!(complaint(huge).contains("more than this machine can address"));
}

const UUID: &str = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";

#[test]
fn a_pool_is_on_a_device_by_its_number_or_its_uuid_from_each_source() {
    let may = "[devices]\nordinals=[0, 1]\n";
    let word = "name=kv,layers=2,pages=8,page_bytes=4KiB,device=";
    for (toml, text) in [("1", "1"), (&*format!("'{UUID}'"), UUID)] {
        let from_file = read(&format!("{may}{POOL_OF_KV}device={toml}\n"), &[], &[]);
        let pool = &from_file.config.pools[0];
        assert_eq!(pool.backing, Backing::Device, "it is what a device means");
        assert_eq!(
            pool.device
                .unwrap()
                .show()
                .to_json()
                .to_string()
                .trim_matches('"'),
            text
        );
        let word = format!("{word}{text}");
        for from_word in [
            read(may, &[], &[("pool", &word)]),
            read(may, &[("KVROOM_POOL", &word)], &[]),
        ] {
            assert_eq!(from_word.config, from_file.config, "{word}");
        }
        // It may be said, too, and what is printed says it.
        let printed = from_file.to_toml();
        assert!(printed.contains("\nbacking = \"device\"\n"), "{printed}");
        assert_eq!(read(&printed, &[], &[]).config, from_file.config);
        let json = from_file.to_json();
        assert_eq!(json["pool"][0]["value"]["backing"], "device");
    }
}

#[test]
fn what_cannot_be_of_a_pool_on_a_device_is_named_with_what_to_do() {
    let may = "[devices]\nordinals=[0, 1]\n";
    for (more, words) in [
        (
            "device=0\nbacking='shared'",
            "backing = \"shared\" is memory of the host",
        ),
        ("device=0\nbacking='private'", "leave one of them out"),
        (
            "device=0\nbacking='file'\npath='/x'",
            "backing = \"file\" is memory of the host",
        ),
        ("device=0\npath='/x'", "path is for files only"),
        ("device=0\ncreate=true", "create is for files only"),
        ("backing='device'", "backing = \"device\" needs a device"),
        (
            "device=-1",
            "-1 is no device; write its number, for example 0",
        ),
        ("device=4294967296", "4294967296 is no device"),
        ("device='0'", "\"0\" is a string; write 0 without quotes"),
        (
            "device='first'",
            "\"first\" is no device; write its number, for example 0, or its UUID as `nvidia-smi -L`",
        ),
        ("device=true", "true is no device"),
        (
            "device=3",
            "add it to devices.ordinals (ordinals = [0, 1, 3])",
        ),
    ] {
        let all = complaint(&format!("{may}{POOL_OF_KV}{more}\n"));
        assert!(
            all.starts_with("k.toml:") && all.contains(words),
            "{more}: {all}"
        );
    }
    // Without any device that may be used, each name of one is too much.
    let all = complaint(&format!("{POOL_OF_KV}device=0\n"));
    assert_eq!(
        all,
        "k.toml:1: pool \"kv\": device 0 may not be used; add it to devices.ordinals (ordinals = [0])"
    );
    let all = complaint(&format!("{POOL_OF_KV}device='{UUID}'\n"));
    assert!(
        all.contains(&format!("add the number of {UUID} to devices.ordinals")),
        "{all}"
    );
    // What may be used may be said anywhere, and blame is where the pool is.
    let word = "name=kv,layers=2,pages=8,page_bytes=4KiB,device=2";
    let all = complaints(may, &[], &[("pool", word)]);
    assert!(
        all[0].starts_with("--pool: pool \"kv\": device 2 may not be used"),
        "{all:?}"
    );
    read(may, &[("KVROOM_DEVICES_ORDINALS", "2")], &[("pool", word)]);
    let all = complaints(may, &[], &[("pool", &word.replace("=2", "=x"))]).join("\n");
    assert!(all.contains("device: \"x\" is no device"), "{all}");
    // If those could not be read, nobody knows.
    let text = format!("[devices]\nordinals='many'\n{POOL_OF_KV}device=0\n");
    assert!(complaint(&text).contains("devices.ordinals: "));
}

#[test]
fn a_pool_is_one_word_of_a_flag_or_a_variable() {
    let word = "name=kv,layers=2,pages=8,page_bytes=4KiB";
    let from_flag = read("", &[], &[("pool", word)]);
    assert_eq!(
        from_flag.config.pools,
        read(POOL_OF_KV, &[], &[]).config.pools
    );
    let two = format!("{word};name=aux,kind=aux,layers=1,pages=8,page_bytes=64");
    let effective = read(POOL_OF_KV, &[("KVROOM_POOL", &two)], &[]);
    assert_eq!(effective.config.pools.len(), 2);
    assert_eq!(effective.origins.of("pool 1").to_string(), "KVROOM_POOL");
    for (word, words) in [
        ("kv", "is not KEY=VALUE"),
        ("name=kv", "has no layers"),
        ("nam=kv", "did you mean \"name\""),
        ("name=kv,name=kw", "said twice"),
        ("name=kv,pages=x", "pages: \"x\" is not a whole number"),
    ] {
        let all = complaints("", &[], &[("pool", word)]).join("\n");
        assert!(
            all.starts_with("--pool: ") && all.contains(words),
            "{word}: {all}"
        );
    }
    let all = complaints(
        "",
        &[(
            "KVROOM_POOL",
            "name=kvroom-canary,layers=1,pages=1,page_bytes=4096",
        )],
        &[],
    );
    assert!(all[0].contains("is the daemon's own"), "{all:?}");
    let all = complaints("", &[("KVROOM_POOL_NAME", "kv")], &[]);
    assert!(all[0].contains("KVROOM_POOL"), "{all:?}");
}

#[test]
fn all_errors_of_all_sources_are_told_at_once_in_order() {
    let text = "nam = 'x'\n[node]\nlanes = 0\nlane = 1\n[deadlines]\nping = '5'\n";
    let variables = [
        ("KVROOM_NODE_SHARDS", "none of them"),
        ("KVROOM_HTTP_X", ""),
    ];
    let all = complaints(text, &variables, &[("http.max_body_bytes", "much")]);
    let at: Vec<&str> = all.iter().filter_map(|a| a.split(": ").next()).collect();
    assert_eq!(
        at,
        [
            "k.toml:1",
            "k.toml:3",
            "k.toml:4",
            "k.toml:6",
            "KVROOM_HTTP_X",
            "KVROOM_NODE_SHARDS",
            "--http-max-body-bytes",
        ]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_besides_all_others() {
    let given = given(&[("node.lanes", "0")]);
    let path = Path::new("/nonexistent/kvroom.toml");
    let error = Effective::read(Some(path), [], &given).unwrap_err();
    assert_eq!(error.complaints().len(), 2);
    let text = error.to_string();
    assert!(
        text.contains("/nonexistent/kvroom.toml: the file cannot be opened"),
        "{text}"
    );
    assert!(text.contains("--node-lanes: 0 is not within"), "{text}");
}

#[test]
fn what_is_printed_is_read_as_the_same_configuration() {
    // Each key in turn with its example, so that none is printed wrongly.
    for row in ROWS.iter() {
        let mut effective = Effective::default();
        if let Some(example) = row.example {
            let word = example.trim_matches('"').to_owned();
            row.read(&mut effective.config, &Raw::Word(word)).unwrap();
            assert!(
                effective.to_toml().contains(&format!("\n{} = ", row.key)),
                "{}",
                row.path()
            );
        }
        let mut again = Config::default();
        let text = effective.to_toml();
        let wrong = file::read("k.toml", &text, &mut again, &mut Origins::default());
        assert!(wrong.is_empty(), "{}: {wrong:?}\n{text}", row.path());
        assert_eq!(again, effective.config, "{}", row.path());
    }
    let text = format!("name = 'a\"\\\\\\t\u{e9}'\n[deadlines]\noutcome='none'\n{POOL_OF_KV}");
    let effective = read(&text, &[], &[]);
    let again = read(&effective.to_toml(), &[], &[]);
    assert_eq!(again.config, effective.config);
}

#[test]
fn what_is_printed_says_where_each_value_is_from() {
    let variables = [
        ("KVROOM_NODE_LANES", "2"),
        ("KVROOM_CLUSTER_KEY", "0123456789abcdef"),
    ];
    let effective = read("\nname = 'n'\n", &variables, &[("node.shards", "3")]);
    let text = effective.to_toml();
    for line in [
        "name = \"n\" # k.toml:2",
        "lanes = 2 # KVROOM_NODE_LANES",
        "shards = 3 # --node-shards",
        "listen = [\"127.0.0.1:7480\"] # default",
        "# token_file is not set",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let json = effective.to_json();
    assert_eq!(json["node"]["lanes"]["value"], 2);
    assert_eq!(json["node"]["lanes"]["from"], "KVROOM_NODE_LANES");
    assert_eq!(json["name"]["from"], "k.toml:2");
    assert_eq!(json["cluster_key_in_environment"], true);
    for text in [text, json.to_string()] {
        assert!(
            !text.contains("0123456789abcdef"),
            "a secret is printed: {text}"
        );
    }
}

#[test]
fn ucx_is_said_in_the_file_the_environment_and_flags_and_a_wrong_name_is_told() {
    let text = "[ucx]\nwhen='rdma'\ntransports='rc,sm'\ndevices='mlx5_0:1'\nwindow_bytes='64KiB'\n";
    let variables = [
        ("KVROOM_UCX_WHEN", "always"),
        ("KVROOM_UCX_LIBRARY", "/opt/ucx/libucp.so.0"),
        ("KVROOM_UCX_ONE_SIDED", "always"),
        ("KVROOM_UCX_SPIN", "0s"),
    ];
    let flags = [("ucx.when", "off"), ("ucx.retired", "0")];
    let effective = read(text, &variables, &flags);
    let options = effective.config.ucx.options();
    assert_eq!(
        options,
        kvroom::UcxOptions {
            one_sided: kvroom::OneSided::Always,
            library: Some("/opt/ucx/libucp.so.0".into()),
            transports: Some("rc,sm".into()),
            devices: Some("mlx5_0:1".into()),
            window_bytes: 64 << 10,
            spin: Duration::ZERO,
            retired: 0,
            ..kvroom::UcxOptions::default()
        }
    );
    let origin = |path| effective.origins.of(path).to_string();
    assert_eq!(origin("ucx.when"), "--ucx-when");
    assert_eq!(origin("ucx.library"), "KVROOM_UCX_LIBRARY");
    assert_eq!(origin("ucx.devices"), "k.toml:4");
    // What is printed is the same again.
    let printed = effective.to_toml();
    assert_eq!(read(&printed, &[], &[]).config, effective.config);
    let all = complaints("", &[("KVROOM_UCX_LIBRRY", "x")], &[]);
    assert_eq!(
        all,
        ["KVROOM_UCX_LIBRRY: [ucx] has no such key; did you mean \"KVROOM_UCX_LIBRARY\"?"]
    );
}

/// Without the comment signs in front of keys.
pub(super) fn uncommented(example: &str) -> String {
    let keys = example.lines().map(|line| {
        let rest = line.strip_prefix("# ").unwrap_or(line);
        let is_key = rest
            .split_once(" = ")
            .is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        let is_pool = rest == "[[pool]]";
        if is_key || is_pool { rest } else { line }
    });
    keys.map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_example_has_every_key_and_each_can_be_taken_as_it_stands() {
    let text = example();
    assert_eq!(
        read(&text, &[], &[]).config,
        Config::default(),
        "all of it is comments"
    );
    let keys = uncommented(&text);
    let mut config = Config::default();
    let mut origins = Origins::default();
    let wrong = file::read("k.toml", &keys, &mut config, &mut origins);
    assert!(wrong.is_empty(), "{wrong:?}\n{keys}");
    for row in ROWS.iter() {
        let said = origins.of(&row.path());
        assert!(
            matches!(said, Origin::File(..)),
            "{} is missing",
            row.path()
        );
        if row.example.is_none() {
            assert_eq!(
                row.show(&config),
                row.show(&Config::default()),
                "{}",
                row.path()
            );
        }
    }
    for row in POOL_ROWS.iter() {
        assert!(keys.contains(&format!("\n{} = ", row.key)), "{}", row.key);
    }
    assert_eq!(config.pools.len(), 1);
}

/// Compares a file with what it should be; writes it if KVROOM_BLESS=1.
fn kept(path: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("KVROOM_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not what the schema gives now: KVROOM_BLESS=1 writes it anew",
        path.display()
    );
}

#[test]
fn the_example_file_is_the_one_that_the_program_prints() {
    kept("kvroom.example.toml", &example());
}

#[test]
fn the_documentation_has_the_tables_of_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let begin = "<!-- The tables from here on are made from the schema. -->\n";
    let at = text.find(begin).expect("the mark before the tables");
    let before = &text[..at + begin.len()];
    kept(
        "docs/configuration.md",
        &format!("{before}\n{}", show::markdown()),
    );
}
