//! Tests which configurations are accepted, and the errors of all others.

mod java;

use super::*;
use leaf_core::Layout;

fn merged(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, String)],
) -> Result<Loaded, ConfigError> {
    let known = keys::Known::new();
    let file = FileSource::toml(file, Path::new("leaf.toml"), &known)?;
    let environment =
        environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    merge(&known, vec![file], environment, flags, false)
}

fn load(file: &str, environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    merged(file, environment, &[])
}

fn refusal(file: &str) -> String {
    load(file, &[]).err().map(|error| error.to_string()).expect("refused")
}

#[test]
fn nothing_configured_is_the_embedded_default() {
    let config = load("", &[]).unwrap().config;

    assert_eq!(config.http.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.redis.listen.unwrap().to_string(), "127.0.0.1:6380");
    assert_eq!(config.ops.listen.to_string(), "127.0.0.1:8081");
    assert_eq!(config.segment.store.to_string(), "sqlite:leaf.db");
    assert_eq!(config.snowflake.layout(), Layout::LEAF);
}

#[test]
fn the_redis_listener_can_be_switched_off() {
    for (file, environment) in
        [("[redis]\nlisten = 'off'", &[][..]), ("", &[("LEAF_REDIS__LISTEN", "off")])]
    {
        assert_eq!(load(file, environment).unwrap().config.redis.listen, None);
    }
}

#[test]
fn of_each_kind_one_file_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        std::fs::write(directory.path().join(name), "").unwrap();
        directory.path().join(name)
    };
    let load = |files: &[&str]| {
        let files = files.iter().map(|name| file(name)).collect();
        Sources { files, flags: Vec::new(), stores_only: false }.load_without_environment()
    };
    for two in [["a.toml", "b.toml"], ["a.properties", "b.properties"]] {
        let refused = load(&two).unwrap_err().to_string();
        assert!(refused.contains("two configuration files of one kind"), "{refused}");
    }
    // Read, and judged by what is in them.
    let read = load(&["a.properties", "b.toml"]).unwrap_err().to_string();
    assert!(read.contains("leaf.jdbc.url is missing"), "{read}");
}

#[test]
fn the_environment_outranks_the_file_and_flags_outrank_both() {
    let file = "data_dir = 'file'\n[http]\nlisten = '127.0.0.1:1'";
    let environment = [("LEAF_DATA_DIR", "env"), ("LEAF_HTTP__LISTEN", "127.0.0.1:2")];
    let from_environment = load(file, &environment).unwrap().config;
    assert_eq!(from_environment.data_dir, Path::new("env"));
    assert_eq!(from_environment.http.listen.port(), 2);

    let loaded = merged(file, &environment, &[("data_dir", "flag".into())]).unwrap();
    assert_eq!(loaded.config.data_dir, Path::new("flag"));
    assert_eq!(loaded.config.http.listen.port(), 2);
    let origin = |key: &str| loaded.origins[key].as_str();
    assert_eq!(origin("data_dir"), "the command line");
    assert_eq!(origin("http.listen"), "LEAF_HTTP__LISTEN");
    assert_eq!(origin("ops.listen"), "default");
    assert_eq!(load(file, &[]).unwrap().origins["http.listen"], "leaf.toml");
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let cases = [
        ("dat_dir = 'x'", "unknown key `dat_dir`: did you mean `data_dir`?"),
        ("[segment]\nstor = 'x'", "unknown key `segment.stor`: did you mean `segment.store`?"),
        ("[http]\nlisten.port = 1", "http.listen: expected a single value"),
        ("zzzzzzzzzzzz = 1", "unknown key `zzzzzzzzzzzz`"),
    ];
    for (file, expected) in cases {
        assert!(refusal(file).starts_with(expected), "{}", refusal(file));
    }
    let error = load("", &[("LEAF_SEGMENT__STOR", "x")]).err().unwrap().to_string();
    assert!(error.starts_with("unknown key LEAF_SEGMENT__STOR"), "{error}");
    assert!(error.contains("LEAF_SEGMENT__STORE"), "{error}");
}

#[test]
fn every_key_is_documented_and_somebody_needs_it() {
    let documented = include_str!("../../../../docs/configuration.md");
    let (_, needed) = documented.split_once("## Who sets what").unwrap();
    let (needed, _) = needed.split_once("\n## ").unwrap();
    for key in keys::Known::new().iter() {
        let variable = format!("`{}`", keys::variable(key));
        let row = documented.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("{key} is missing in docs/configuration.md"));
        let file_only = ["snowflake.worker_ids", "segment.shard"].contains(&key);
        assert!(file_only || row.contains(&variable), "{row}");
        let is_told = needed.contains(&format!("`{key}`")) || key.ends_with("_file");
        assert!(is_told, "who sets {key} is missing in docs/configuration.md");
    }
}

/// Every key in docs/configuration.md exists and is documented with its default.
#[test]
fn every_documented_key_exists_with_its_default() {
    let documented = include_str!("../../../../docs/configuration.md");
    let defaults: BTreeMap<String, Value> =
        keys::flat(&serde_json::to_value(Config::default()).unwrap()).into_iter().collect();
    let table = documented.lines().skip_while(|line| !line.starts_with("| key |")).skip(2);
    let rows: Vec<_> = table.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), defaults.len());
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let key = cells[1].trim_matches('`');
        let default = defaults.get(key).unwrap_or_else(|| panic!("{key} does not exist"));
        let written = match default {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        };
        if let Some(written) = written {
            assert_eq!(cells[4], format!("`{written}`"), "{key}");
        }
    }
}

#[test]
fn the_keys_documented_as_live_are_those_that_a_reload_takes_over() {
    let documented = include_str!("../../../../docs/configuration.md").lines();
    let live = documented.filter(|line| {
        line.starts_with("| `") && line.split(|c: char| !c.is_alphanumeric()).any(|w| w == "Live")
    });
    let mut live: Vec<_> = live.map(|row| row.split('`').nth(1).unwrap()).collect();
    live.sort_unstable();
    let mut taken_over = live_keys();
    taken_over.sort_unstable();
    assert_eq!(live, taken_over);
}

#[test]
fn variables_that_kubernetes_makes_are_one_warning() {
    let environment = [
        ("LEAF_PORT", "tcp://10.0.0.1:8080"),
        ("LEAF_SERVICE_HOST", "10.0.0.1"),
        ("LEAF_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    let loaded = load("", &environment).unwrap();

    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("LEAF_PORT"), "{}", loaded.warnings[0]);
}

#[test]
fn a_bad_value_is_named() {
    let cases = [
        ("[http]\nlisten = 'localhost:80'", "http.listen: write it with an IP address"),
        ("[http]\nthreads = 1025", "http.threads: give 0 to 1024"),
        ("[http]\nmax_connections = 0", "http.max_connections: give 1 to 1000000"),
        ("[http]\nmax_count = 0", "http.max_count: give 1 to 1000000"),
        ("[http]\nmax_waiting = 'wrong'", "http.max_waiting: expected a whole number"),
        ("[redis]\nlisten = 'wrong'", "redis.listen: write it with an IP address"),
        ("[redis]\nmax_connections = 0", "redis.max_connections: give 1 to 1000000"),
        ("[redis]\npassword = 'canary'", "redis.password: give 16 to 1024 printable"),
        ("[ops]\nlisten = 'wrong'", "ops.listen: write it with an IP address"),
        ("[ops]\ntoken = 'canary'", "ops.token: give 16 to 1024 printable"),
        ("[ops]\ntoken_file = '/none'", "ops.token_file: /none: "),
        ("[log]\nlevel = 'wrong'", "log.level: give error, warn, info"),
        ("[log]\nformat = 'wrong'", "log.format: give text or json"),
        ("advertise_port = 0", "advertise_port: give 1 to 65535"),
        ("stop_grace = '2h'", "stop_grace: give 0 ms to 3600 s"),
        ("[[segment.shard]]\ntags = ['a']", "shard 1: `store` is missing"),
        (
            "[[segment.shard]]\nstore_file = '/none'\ntags = ['a']",
            "segment.shard 1: store_file: /none: ",
        ),
        ("[segment]\nenabled = 'wrong'", "segment.enabled: expected true or false"),
        ("segment = 'canary'", "`segment` is a section"),
        ("[segment]\n'mysql://u:canary@h' = 1", "unknown key in `segment`"),
        ("'mysql://u:canary@h' = 1", "unknown key: it is no name"),
        ("[ops]\ntoken = { canary = 1 }", "ops.token: expected a single value"),
        ("[ops]\ntoken_file = \"a\\nb\"", "ops.token_file: a?b: "),
        (
            "[segment]\nstore_file = 'mysql://u:canary@h/d'",
            "segment.store_file: (this is no file name)",
        ),
        (
            "[segment]\nstore = 'mysql://u:***@h/d'",
            "segment.store: the URL has *** in place of the password",
        ),
        ("data_dir = ''", "data_dir is empty"),
        ("[segment]\nstore = 'redis://canary'", "unknown kind of store"),
        ("[segment]\nstore = 'mysql://u:canary@'", "not a MySQL URL"),
        ("[segment]\nmin_step = 0", "segment.min_step is 0: give 1 to 2147483647"),
        ("[segment]\nmax_step = 2147483648", "segment.max_step is 2147483648"),
        ("[segment]\nmin_step = 9\nmax_step = 8", "min_step 9 is above segment.max_step 8"),
        ("[segment]\nwait = '1ms'", "segment.wait: give 10 ms to 60 s"),
        ("[segment]\nrefresh = '0s'", "segment.refresh: give 1000 ms to 3600 s"),
        ("[segment]\nconcurrent_fetches = 0", "concurrent_fetches: give 1 to 10000"),
        ("[segment]\nfailover_guard = 3", "segment.failover_guard: expected true or false"),
        ("[segment]\nfailover_margin = 999999", "failover_margin 999999 is below"),
        ("[segment]\nshard = 'canary'", "segment.shard: "),
        ("[[segment.shard]]\nstore = 'sqlite:a.db'", "tags"),
        ("[[segment.shard]]\nstore = 'sqlite:a.db'\ntags = []", "shard 1: `tags` is empty"),
        ("[[segment.shard]]\nstore = 'canary'\ntags = ['a']", "unknown kind of store"),
        ("[[segment.shard]]\nstore = 'sqlite:a.db'\ntags = ['']", "1 to 128 characters"),
        (
            "[[segment.shard]]\nstore = 'sqlite:a.db'\ntags = ['a']\ncanary = 1",
            "`store`, `store_file`, `tags`",
        ),
        ("[[segment.shard]]\nstore = 'sqlite:a.db'\ntags = 'canary'", "segment.shard"),
        (
            "[[segment.shard]]\n'mysql://u:canary@db.example]/x' = 'x'",
            "segment.shard[0]: expected one of",
        ),
        ("[[segment.shard]]\nstore = [ 'canary' ]\ntags = ['a']", "segment.shard"),
        ("[snowflake]\nworker_ids = 'wrong'", "snowflake.worker_ids: expected"),
        ("[snowflake]\nenabled = 2", "snowflake.enabled: expected true or false"),
        ("[snowflake]\nworker_id = 1024", "worker id 1024 of worker_id is above 1023"),
        ("[snowflake]\nworker_id = -1", "snowflake.worker_id"),
        ("[snowflake]\nworker_id = 'wrong'", "snowflake.worker_id: expected a whole number"),
        ("[snowflake]\nworker_id = 1.5", "snowflake.worker_id: expected a whole number"),
        ("[snowflake]\nworker_id = true", "snowflake.worker_id: expected a whole number"),
        ("[snowflake]\nworker_range = 'wrong'", "worker_range: give the first and the last"),
        ("[snowflake]\nworker_range = '5..1024'", "worker_range ends at 1024, above 1023"),
        (
            "[snowflake]\nworker_range = '5..10'",
            "worker id 0 is outside snowflake.worker_range 5..10",
        ),
        ("[snowflake]\nepoch = 1e12", "snowflake.epoch: expected a whole number"),
        ("[snowflake]\nregistry = 'zk'", "snowflake.registry: unknown registry"),
        ("name = 'can/not'", "name: give 1 to 64 letters"),
        ("[snowflake]\nregistry = 'zk_normal'", "snowflake.registry: unknown registry"),
        ("[snowflake]\nregistry = 'zk-normal://u:canary@'", "not a list of ZooKeeper servers"),
        ("[snowflake]\nregistry = 'etcd://canary'", "snowflake.registry: not an etcd URL"),
        ("[snowflake]\nregistry = 'mysql://canary'", "snowflake.registry: not a MySQL URL"),
        ("[snowflake]\nregistry_file = '/none'", "snowflake.registry_file: /none: "),
        ("[snowflake]\nregistry = 'store'", "give an absolute path"),
        ("[snowflake]\nregistry = 'sqlite:workers.db'", "give an absolute path"),
        ("[snowflake]\nsession_timeout = '1ms'", "session_timeout: give 1000 ms to 600 s"),
        ("[snowflake]\nrecycle_after = '8000h'", "recycle_after: give 0 ms to 604800 s"),
        ("[snowflake]\nadopt_java_ids = 'wrong'", "adopt_java_ids: expected true or false"),
        ("[snowflake]\nordinal_offset = -1", "snowflake.ordinal_offset"),
        ("[snowflake]\nclock_check = 'wrong'", "clock_check: give majority, mean or off"),
        ("[snowflake]\nmax_offset = '0s'", "max_offset: give 1 ms to 3600 s"),
        ("[snowflake]\nreport_interval = '1ms'", "report_interval: give 100 ms to 60 s"),
        ("[snowflake]\nstartup_wait = '2h'", "startup_wait: give 0 ms to 3600 s"),
        ("[segment]\nstore_file = '/none'", "segment.store_file: /none: "),
        ("[snowflake]\nlayout = 'x'", "snowflake.layout: unknown layout"),
        ("[snowflake]\nlayout = 't42-w10-s12/1ms'", "layout: the fields have 64 bits"),
        ("[snowflake]\nlayout = 't41-w22/1ms'", "layout: a layout needs timestamp"),
        ("[snowflake]\nlayout = 'javascript'\nworker_id = 32", "is above 31"),
        ("[snowflake]\ndatacenter_id = 1", "layout names no datacenter"),
        ("[snowflake]\nlayout = 'twitter'\ndatacenter_id = 32", "datacenter 32 is above 31"),
        (
            "[snowflake]\nlayout = 'twitter'\ndatacenter_id = 1\nworker_id = 32",
            "worker id 32 of worker_id is above 31",
        ),
        ("[snowflake]\nsequence_start = -1", "snowflake.sequence_start"),
        ("[snowflake]\nmax_step_forward = 'far'", "snowflake.max_step_forward"),
        ("[snowflake]\nrollback_tolerance = 'wrong'", "snowflake.rollback_tolerance"),
        ("[snowflake]\noffline_for = '-1s'", "snowflake.offline_for"),
        (
            "advertise = 'b'\n[snowflake]\nworker_ids = { a = 1 }",
            "advertise: this name is not in snowflake.worker_ids",
        ),
        ("advertise = 'a'\n[snowflake]\nworker_ids = { a = 5, b = 5 }", "a and b both have 5"),
        ("advertise = 'a b'", "advertise: not an identity"),
        ("time_zone = 'wrong'", "time_zone is unknown"),
        ("zone = 'a b'", "zone: give 1 to 64"),
        ("zone = ''", "zone: give 1 to 64"),
        ("segment.enabled = false\nsnowflake.enabled = false", "nothing to serve"),
    ];
    // What was written and where: of what may hold no secret.
    let address = refusal("[http]\nlisten = 'localhost:80'");
    assert!(address.ends_with(r#"(it is "localhost:80", from leaf.toml)"#), "{address}");
    let url = refusal("[segment]\nstore = 'canary'");
    assert!(url.ends_with("(from leaf.toml)"), "{url}");
    for (file, expected) in cases {
        let error = refusal(file);
        assert!(error.contains(expected), "{file}: {error}");
        assert!(!error.contains('\n'), "one line: {error}");
        assert!(!error.contains("canary"), "no values: {error}");
    }
}

#[test]
fn a_syntax_error_names_the_line_and_quotes_nothing() {
    let error = refusal("[segment]\nstore = \"mysql://u:canary@db/leaf\nx = 1\n");

    assert!(error.contains("leaf.toml, line 2: "), "{error}");
    assert!(!error.contains("canary"), "{error}");
}

#[test]
fn a_layout_brings_its_epoch_and_may_be_named_by_datacenter() {
    let layout = |file: &str| load(file, &[]).unwrap().config.snowflake.layout();
    assert_eq!(layout("[snowflake]\nlayout = 'sonyflake'"), Layout::SONYFLAKE);
    let moved = layout("[snowflake]\nlayout = 'uid-generator'\nepoch = 1700000000000");
    assert_eq!(moved.epoch().get(), 1_700_000_000_000);
    assert_eq!(layout("[snowflake]\nlayout = 't31-w10-s20/1s'").max_worker().get(), 1023);

    let file = "[snowflake]\nlayout = 'twitter'\ndatacenter_id = 3\nworker_id = 7";
    let snowflake = load(file, &[]).unwrap().config.snowflake;
    assert_eq!(snowflake.worker_id().get(), 3 << 5 | 7);
}

#[test]
fn shards_are_found_by_tag() {
    let file = "[segment]\nstore = 'sqlite:main.db'\n\
                [[segment.shard]]\nstore = 'sqlite:orders.db'\ntags = ['order*', 'pay*']";
    let segment = load(file, &[]).unwrap().config.segment;

    let store = |tag: &str| segment.stores().of(tag).to_string();
    assert_eq!(store("payments"), "sqlite:orders.db");
    assert_eq!(store("users"), "sqlite:main.db");
}

#[test]
fn worker_ids_are_by_identity() {
    let file = "advertise = '10.1.46.33:8080'\n\
                [snowflake]\nworker_ids = { \"10.1.46.33:8080\" = 1, \"10.1.46.33:8081\" = 2 }";
    let config = load(file, &[]).unwrap().config;

    assert_eq!(config.snowflake.worker_ids.unwrap()["10.1.46.33:8081"], 2);
}

#[test]
fn of_a_value_and_the_file_that_holds_it_the_higher_source_counts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "from-a-file-0123456789\n").unwrap();
    let file = file.display().to_string();
    let toml = format!("[ops]\ntoken_file = '{file}'");
    let token = |toml: &str, environment: &[(&str, &str)]| {
        load(toml, environment).unwrap().config.ops.token.unwrap().expose().to_owned()
    };
    let value = ("LEAF_OPS__TOKEN", "from-a-value-0123456789");
    let in_file = ("LEAF_OPS__TOKEN_FILE", file.as_str());
    assert_eq!(token(&toml, &[]), "from-a-file-0123456789");
    assert_eq!(token(&toml, &[value]), "from-a-value-0123456789");
    for both in [[value, in_file], [in_file, value]] {
        assert_eq!(token("", &both), "from-a-file-0123456789");
    }
    let known = keys::Known::new();
    let toml = |text: &str| FileSource::toml(text, Path::new("leaf.toml"), &known).unwrap();
    let second = "[ops]\ntoken = 'from-a-second-file-012345'";
    let files = vec![toml(&format!("[ops]\ntoken_file = '{file}'")), toml(second)];
    let loaded = merge(&known, files, Vec::new(), &[], false).unwrap();
    assert_eq!(loaded.config.ops.token.unwrap().expose(), "from-a-second-file-012345");
}

#[test]
fn a_reload_tells_what_it_takes_over_from_what_needs_a_restart() {
    let before = load("[log]\nlevel = 'info'", &[]).unwrap();
    let token = "[ops]\ntoken = '0123456789abcdef'\n";
    let after = load(&format!("{token}[log]\nlevel = 'debug'\n[http]\nthreads = 2"), &[]).unwrap();
    let (live, rest) = before.changes(&after);
    assert_eq!(
        (live, rest),
        (vec!["log.level".into(), "ops.token".into()], vec!["http.threads".to_owned()])
    );
    assert!(!format!("{after:?}").contains("0123456789abcdef"));
    let mut counts = before;
    counts.take_live(&after);
    assert_eq!((counts.config.log.level.as_str(), counts.config.http.threads), ("debug", 0));
    assert!(counts.config.ops.token.is_some());
    let known = keys::Known::new();
    assert!(live_keys().iter().all(|key| known.check_key(key).is_ok()));

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("store");
    let config = format!("[segment]\nstore_file = '{}'", file.display());
    std::fs::write(&file, "mysql://u:one@h/d").unwrap();
    let before = load(&config, &[]).unwrap();
    std::fs::write(&file, "mysql://u:two@h/d").unwrap();
    let (live, rest) = before.changes(&load(&config, &[]).unwrap());
    assert_eq!((live, rest), (vec![], vec!["segment.store".to_owned()]));

    let config = format!("[[segment.shard]]\nstore_file = '{}'\ntags = ['a']", file.display());
    let before = load(&config, &[]).unwrap();
    std::fs::write(&file, "mysql://u:three@h/d").unwrap();
    let (_, rest) = before.changes(&load(&config, &[]).unwrap());
    assert_eq!(rest, ["segment.shard"]);
}

/// S-11: the text that `expect` or a log line would print of a structure holds no secret.
#[test]
fn debug_texts_of_a_configuration_hold_no_secret() {
    let file = "[segment]\nstore = 'mysql://leaf:canary@db/leaf'\n\
                [[segment.shard]]\nstore = 'postgres://leaf:canary@db/leaf'\ntags = ['a*']\n\
                [snowflake]\nregistry = 'zk-normal://leaf:canary@zk:2181'\n\
                [ops]\ntoken = 'canary-canary-canary'\n";
    assert!(file.contains("canary"), "the control");

    let known = keys::Known::new();
    let source = FileSource::toml(file, Path::new("leaf.toml"), &known).unwrap();
    let loaded = load(file, &[]).unwrap();

    for text in [format!("{source:?}"), format!("{:#?}", loaded.config), format!("{loaded:?}")] {
        assert!(!text.contains("canary"), "{text}");
    }
}
