//! `leaf.properties`: the file of the Java Leaf and of its community fork, unchanged.
//!
//! Its keys are translated to those of Leaf. What the file leaves out has the Java Leaf's default:
//! both modes on, `zk_normal`, all addresses, port 8080. These defaults rank below a `leaf.toml`
//! beside the file. Parameters of its JDBC URL that have no effect here are ignored; unknown ones
//! are named in a warning.

use std::collections::BTreeMap;
use std::path::Path;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use url::Url;

use leaf_registry::RegistryKind;

use super::{Config, ConfigError};

/// The origin that is shown for a setting that the file leaves out.
pub(super) const DEFAULT_ORIGIN: &str = "default of a Java Leaf";

/// The defaults of a Java Leaf, as settings of Leaf.
pub(super) fn defaults() -> Value {
    json!({
        // What Java makes of a name that is missing: it works in /snowflake/null.
        "name": "null",
        "advertise_guess": "java",
        "http": { "listen": "0.0.0.0:8080" },
        "segment": { "enabled": true },
        "snowflake": { "enabled": true },
    })
}

/// All keys that the two Java programs read.
const KEYS: [&str; 10] = [
    "leaf.name",
    "leaf.segment.enable",
    "leaf.jdbc.url",
    "leaf.jdbc.username",
    "leaf.jdbc.password",
    "leaf.snowflake.enable",
    "leaf.snowflake.mode",
    "leaf.snowflake.zk.address",
    "leaf.snowflake.port",
    "leaf.snowflake.local.workIdMap",
];

/// Parameters of Connector/J without effect: they control what Leaf never does, or always does.
const WITHOUT_EFFECT: [&str; 32] = [
    "allowMultiQueries",
    "allowPublicKeyRetrieval",
    "autoReconnect",
    "autoReconnectForPools",
    "cachePrepStmts",
    "cacheServerConfiguration",
    "characterEncoding",
    "characterSetResults",
    "connectTimeout",
    "connectionCollation",
    "connectionTimeZone",
    "elideSetAutoCommits",
    "failOverReadOnly",
    "initialTimeout",
    "maintainTimeStats",
    "maxReconnects",
    "noAccessToProcedureBodies",
    "nullCatalogMeansCurrent",
    "prepStmtCacheSize",
    "prepStmtCacheSqlLimit",
    "rewriteBatchedStatements",
    "serverTimezone",
    "socketTimeout",
    "tcpKeepAlive",
    "tinyInt1isBit",
    "useJDBCCompliantTimezoneShift",
    "useLegacyDatetimeCode",
    "useLocalSessionState",
    "useOldAliasMetadataBehavior",
    "useServerPrepStmts",
    "useUnicode",
    "zeroDateTimeBehavior",
];

/// Translates the text of a file into settings in the form of a `leaf.toml`, and warnings for the
/// operator. `path` is for error texts.
pub(super) fn translate(text: &[u8], path: &Path) -> Result<(Value, Vec<String>), ConfigError> {
    let mut found = BTreeMap::new();
    let read = java_properties::PropertiesIter::new(text).read_into(|key, value| {
        found.insert(key, value);
    });
    if let Err(error) = read {
        let line = error.line_number().map_or(String::new(), |line| format!(", line {line}"));
        let text = format!("{}{line}: not a properties file", path.display());
        return Err(ConfigError::new(text));
    }
    // For Java a blank at the end belongs to the value: in a name it makes another path in
    // ZooKeeper.
    for (key, value) in &mut found {
        match key.as_str() {
            "leaf.jdbc.username" | "leaf.jdbc.password" => {}
            "leaf.jdbc.url" | "leaf.snowflake.local.workIdMap" => {
                value.truncate(value.trim_end().len());
            }
            key if KEYS.contains(&key) && value.trim_end() != value => {
                return Err(ConfigError::new(format!(
                    "{}: {key}: there is a blank at the end, which is a part of the value for a Java Leaf: \
                     remove it; where Java nodes ran with it, they used another path or address",
                    path.display()
                )));
            }
            _ => {}
        }
    }
    // What does not begin as a key of Leaf may be half a password.
    let (named, nameless): (Vec<_>, Vec<_>) = found
        .keys()
        .filter(|key| !KEYS.contains(&key.as_str()))
        .map(String::as_str)
        .partition(|key| key.starts_with("leaf."));
    let mut warnings = Vec::new();
    if let Some(ignored) = ignored(&named, nameless.len()) {
        warnings.push(format!("{}: unknown keys are ignored: {ignored}", path.display()));
    }
    let file = Java { found: &found, path };
    let settings = file.settings(&mut warnings)?;
    Ok((settings, warnings))
}

/// Lists the names that are ignored, for a warning. `nameless` is how many others are only counted,
/// because they may be part of a password.
fn ignored(named: &[&str], nameless: usize) -> Option<String> {
    match (named, nameless) {
        ([], 0) => None,
        (named, 0) => Some(named.join(", ")),
        ([], more) => Some(format!("{more} that are none of Leaf's")),
        (named, more) => Some(format!("{}, and {more} that are none of Leaf's", named.join(", "))),
    }
}

/// Returns a warning if snowflake mode is on and no source sets the name: this node then works in
/// `/snowflake/null`, as a Java Leaf does.
pub(super) fn warning(config: &Config, origins: &BTreeMap<String, String>) -> Option<String> {
    let nameless = config.snowflake.enabled && origins.get("name")? == DEFAULT_ORIGIN;
    nameless.then(|| {
        "leaf.properties: leaf.name is missing: like the Java Leaf this node works in /snowflake/null".into()
    })
}

/// Returns an error if a setting that a Java Leaf requires is set by no source. Leaf's own defaults
/// do not count as set: they apply only without a `leaf.properties`.
pub(super) fn check(
    config: &Config,
    origins: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    let given = |key: &str| origins.get(key).is_some_and(|origin| origin != "default");
    let (segment, snowflake) = (&config.segment, &config.snowflake);
    let names_itself = config.advertise.is_some();
    let missing = if segment.enabled && !given("segment.store") {
        "leaf.jdbc.url"
    } else if !snowflake.enabled {
        return Ok(());
    } else if !given("advertise_port") && !names_itself {
        "leaf.snowflake.port"
    } else {
        match snowflake.registry.kind() {
            _ if !given("snowflake.registry") => "leaf.snowflake.zk.address",
            RegistryKind::Local
                if !given("snowflake.worker_ids") && !given("snowflake.worker_id") =>
            {
                "leaf.snowflake.local.workIdMap"
            }
            RegistryKind::SegmentStore if !given("segment.store") => "leaf.jdbc.url",
            _ => return Ok(()),
        }
    };
    Err(ConfigError::new(format!("leaf.properties: {missing} is missing")))
}

/// A file of a Java Leaf whose keys are being translated.
struct Java<'a> {
    found: &'a BTreeMap<String, String>,
    path: &'a Path,
}

impl Java<'_> {
    /// The value of a key. An empty one counts as missing, as in Java.
    fn get(&self, key: &str) -> Option<&str> {
        self.found.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns an error about a key of this file, without the value of the key, which may be a
    /// password.
    fn refuse<T>(&self, key: &str, why: &str) -> Result<T, ConfigError> {
        Err(ConfigError::new(format!("{}: {key}: {why}", self.path.display())))
    }

    /// Sets `enabled` of a mode if the file has the key. As in Java, every value but `true` means
    /// off.
    fn enabled(&self, key: &str, mode: &mut Map<String, Value>, warnings: &mut Vec<String>) {
        let Some(value) = self.get(key) else { return };
        let enabled = value.eq_ignore_ascii_case("true");
        if !enabled && !value.eq_ignore_ascii_case("false") {
            let path = self.path.display();
            warnings
                .push(format!("{path}: {key} is neither true nor false: off, as in a Java Leaf"));
        }
        mode.insert("enabled".into(), enabled.into());
    }

    /// All settings of the file, as settings of Leaf. What the file does not set is left out, so
    /// that sources of lower rank apply.
    fn settings(&self, warnings: &mut Vec<String>) -> Result<Value, ConfigError> {
        let mut settings = Map::new();
        let mut segment = Map::new();
        let mut snowflake = Map::new();
        // Also where it is empty, to be refused.
        if let Some(name) = self.found.get("leaf.name") {
            settings.insert("name".into(), name.as_str().into());
        }

        self.enabled("leaf.segment.enable", &mut segment, warnings);
        if let Some(store) = self.store(warnings)? {
            segment.insert("store".into(), store.into());
        }

        self.enabled("leaf.snowflake.enable", &mut snowflake, warnings);
        self.snowflake(&mut settings, &mut snowflake)?;
        settings.insert("segment".into(), segment.into());
        settings.insert("snowflake".into(), snowflake.into());
        Ok(settings.into())
    }

    /// Translates the keys of snowflake mode.
    ///
    /// If the community fork left a cache file on this machine, it bounds the first id: it holds
    /// the time when the fork last issued ids. The cache file of the original holds no time.
    fn snowflake(
        &self,
        settings: &mut Map<String, Value>,
        snowflake: &mut Map<String, Value>,
    ) -> Result<(), ConfigError> {
        let name = self.get("leaf.name").unwrap_or("null");
        let key = "leaf.snowflake.port";
        if let Some(port) = self.get(key) {
            match port.parse::<u16>() {
                Ok(port @ 1..) => _ = settings.insert("advertise_port".into(), port.into()),
                _ => return self.refuse(key, "give a port, 1 to 65535"),
            }
            let cache = std::env::temp_dir().join(name).join("leafconf").join(port);
            // Only a node that runs where its Java Leaf ran has one.
            if cache.is_dir() {
                snowflake.insert("java_cache".into(), cache.display().to_string().into());
            }
        }
        let key = "leaf.snowflake.mode";
        let servers = self.get("leaf.snowflake.zk.address").map(encoded_login);
        let registry = match self.get(key).unwrap_or("zk_normal") {
            "zk_normal" => servers.map(|servers| format!("zk-normal://{servers}")),
            "zk_recycle" => servers.map(|servers| format!("zk-recycle://{servers}")),
            // The fork has the table in the database of its segments.
            "mysql" => Some("store".into()),
            "local" => Some("local".into()),
            _ => return self.refuse(key, "give zk_normal, zk_recycle, mysql or local"),
        };
        if let Some(registry) = registry {
            snowflake.insert("registry".into(), registry.into());
        }
        let key = "leaf.snowflake.local.workIdMap";
        if let Some(map) =
            self.get(key).filter(|_| self.get("leaf.snowflake.mode") == Some("local"))
        {
            match serde_json::from_str::<BTreeMap<String, u32>>(map) {
                Ok(map) => _ = snowflake.insert("worker_ids".into(), json!(map)),
                Err(_) => return self.refuse(key, r#"write it like {"10.0.0.7:8080":1}"#),
            }
        }
        Ok(())
    }

    /// Translates the JDBC URL, user and password into the URL of a store.
    ///
    /// Connector/J also takes user and password as parameters of the URL; `leaf.jdbc.username` and
    /// `leaf.jdbc.password` outrank these. Parameters about TLS become `ssl-mode`; those without
    /// effect here are ignored; all others are named in a warning.
    fn store(&self, warnings: &mut Vec<String>) -> Result<Option<String>, ConfigError> {
        let key = "leaf.jdbc.url";
        let Some(jdbc) = self.get(key) else { return Ok(None) };
        let rest = ["jdbc:mysql://", "jdbc:mariadb://"]
            .iter()
            .find_map(|scheme| jdbc.strip_prefix(scheme));
        let how = "write jdbc:mysql://host:3306/database";
        let Some(rest) = rest else { return self.refuse(key, how) };
        let place = rest.split(['/', '?']).next().unwrap_or_default();
        if place.contains([',', '(']) {
            return self.refuse(key, "give one host: a Leaf node has one database");
        }
        let Ok(mut url) = Url::parse(&format!("mysql://{rest}")) else {
            return self.refuse(key, how);
        };
        let given: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.set_query(None);
        let mut login = [self.get("leaf.jdbc.username"), self.get("leaf.jdbc.password")];
        let (mut unknown, mut nameless) = (Vec::new(), 0);
        let mut tls = Tls::default();
        for (name, value) in &given {
            match name.as_str() {
                "user" => login[0] = login[0].or(Some(value)),
                "password" => login[1] = login[1].or(Some(value)),
                name if tls.takes(name, value) => {}
                name if WITHOUT_EFFECT.contains(&name) => {}
                // Without a value it may be the rest of a password.
                _ if value.is_empty() => nameless += 1,
                name => unknown.push(name),
            }
        }
        if let Some(mode) = tls.mode() {
            url.query_pairs_mut().append_pair("ssl-mode", mode);
        }
        // Whole: a URL would take `%41` for a letter.
        let [user, password] = login
            .map(|part| part.map(|part| utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()));
        let fits = user.is_none_or(|user| url.set_username(&user).is_ok())
            && password.is_none_or(|password| url.set_password(Some(&password)).is_ok());
        if !fits {
            return self.refuse(key, how);
        }
        if let Some(ignored) = ignored(&unknown, nameless) {
            let path = self.path.display();
            warnings.push(format!("{path}: {key}: these parameters are ignored: {ignored}"));
        }
        Ok(Some(url.into()))
    }
}

/// Encodes the login in a list of ZooKeeper servers as a URL needs it. The file has it unencoded.
fn encoded_login(servers: &str) -> String {
    let encode = |part| utf8_percent_encode(part, NON_ALPHANUMERIC);
    match servers.rsplit_once('@').map(|(login, hosts)| (login.split_once(':'), hosts)) {
        Some((Some((user, password)), hosts)) => {
            format!("{}:{}@{hosts}", encode(user), encode(password))
        }
        _ => servers.to_owned(),
    }
}

/// The parameters of Connector/J about TLS: `sslMode` and the three older ones.
#[derive(Debug, Default)]
struct Tls {
    /// `sslMode`.
    mode: Option<String>,
    /// `useSSL`.
    wanted: Option<bool>,
    /// `requireSSL`.
    required: bool,
    /// `verifyServerCertificate`.
    verified: bool,
}

impl Tls {
    /// Takes over a parameter; returns `false` if it is not about TLS.
    fn takes(&mut self, name: &str, value: &str) -> bool {
        let yes = value.eq_ignore_ascii_case("true");
        match name {
            "sslMode" => self.mode = Some(value.to_ascii_uppercase()),
            "useSSL" => self.wanted = Some(yes),
            "requireSSL" => self.required = yes,
            "verifyServerCertificate" => self.verified = yes,
            _ => return false,
        }
        true
    }

    /// The `ssl-mode` of a store URL that is equivalent to the parameters; `None` if they set none.
    /// `sslMode` outranks the older parameters; among these `useSSL=false` outranks those that ask
    /// for more.
    fn mode(&self) -> Option<&str> {
        match (&self.mode, self.wanted) {
            (Some(mode), _) => Some(mode),
            (None, Some(false)) => Some("DISABLED"),
            _ if self.verified => Some("VERIFY_CA"),
            _ if self.required => Some("REQUIRED"),
            (None, Some(true)) => Some("PREFERRED"),
            (None, None) => None,
        }
    }
}
