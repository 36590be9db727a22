//! The parameters of a database's URL, above all those of TLS. A misspelt parameter must not
//! silently turn certificate checks off: unknown parameters are refused, and so is a CA in a mode
//! that does not verify the server. If a certificate's file is missing, the error names the file.

use std::str::FromStr;
use std::time::Duration;

use leaf_segment::{StoreError, StoreErrorKind};
use tokio::net::TcpStream;
use url::Url;

use crate::SettingError;

/// Timeout of a test connection to an address.
const LOOK: Duration = Duration::from_millis(400);

/// The driver's options for the connections to a server.
pub(crate) trait ServerOptions: FromStr<Err = sqlx::Error> {
    /// Host and port; `None` for a socket.
    fn address(&self) -> Option<Address>;

    /// These options with another host.
    fn at_host(self, host: &str) -> Self;

    /// Whether these options name a database.
    fn has_database(&self) -> bool;
}

/// Host and port of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Address {
    /// Whether a TCP connection can be made.
    pub(crate) async fn is_reached(&self) -> bool {
        let connected = TcpStream::connect((&*self.host, self.port));
        tokio::time::timeout(LOOK, connected).await.is_ok_and(|connected| connected.is_ok())
    }

    /// Tries to connect once more, to explain why there was no connection in time.
    pub(crate) async fn why_no_connection(&self) -> String {
        let Self { host, port } = self;
        let at =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        match tokio::time::timeout(LOOK, TcpStream::connect((&**host, *port))).await {
            Ok(Ok(_)) => format!(
                "{at} accepts connections, and none was ready in time: is the server overloaded, or has it too few \
                 connections (max_connections)?"
            ),
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => format!(
                "{at}: connection refused: is the server running, and does it listen there?"
            ),
            Ok(Err(error)) => format!("{at}: {error}"),
            Err(_) => format!(
                "{at} does not answer: is that host up, and does a firewall let connections through?"
            ),
        }
    }
}

/// The parameters that a kind of database takes in its URL, named as in its own client.
pub(crate) struct Parameters {
    /// The name of the database, for error texts.
    pub(crate) database: &'static str,
    /// How to write a URL of the database, for error texts.
    pub(crate) how: &'static str,
    /// The parameter that says whether TLS is used.
    pub(crate) mode: &'static str,
    /// The values of the parameter `mode`.
    pub(crate) modes: &'static [&'static str],
    /// Those of `modes` that verify the server's certificate.
    pub(crate) verifying: &'static [&'static str],
    /// The parameter that names a file of trusted certificates.
    pub(crate) ca: &'static str,
    /// The parameter that names the client's certificate.
    pub(crate) certificate: &'static str,
    /// The parameter that names the client's private key.
    pub(crate) key: &'static str,
    /// Parameters that have nothing to do with TLS.
    pub(crate) others: &'static [&'static str],
}

impl Parameters {
    /// The parameters that name files.
    fn files(&self) -> [&'static str; 3] {
        [self.ca, self.certificate, self.key]
    }

    /// Refuses unknown parameters, an unknown TLS mode, a CA in a mode that does not verify the
    /// server, and a client's certificate or key without the other one.
    ///
    /// A URL that cannot be parsed passes here and is refused where it is opened.
    ///
    /// # Errors
    /// The text names parameters and never their values, which may be parts of a password.
    pub(crate) fn check(&self, url: &str) -> Result<(), SettingError> {
        let refuse = |why: String| Err(SettingError::new(why));
        let Ok(url) = Url::parse(url) else { return Ok(()) };
        let known = [&[self.mode], &self.files()[..], self.others].concat();
        let mut mode = None;
        let mut given = Vec::new();
        for (name, value) in url.query_pairs() {
            if !known.contains(&&*name) {
                // The error does not repeat the unknown name: it may be a part of a password that
                // was not percent-encoded.
                return refuse(format!(
                    "unknown parameter in the {} URL: there are {}",
                    self.database,
                    known.join(", ")
                ));
            }
            if name == self.mode {
                mode = self.modes.iter().find(|mode| mode.eq_ignore_ascii_case(&value));
                if mode.is_none() {
                    return refuse(format!("{}: give {}", self.mode, self.modes.join(", ")));
                }
            }
            given.push(name.into_owned());
        }
        let has = |name: &str| given.iter().any(|given| given == name);
        if has(self.ca) && mode.is_none_or(|mode| !self.verifying.contains(mode)) {
            return refuse(format!(
                "{} is looked at with {} {} only",
                self.ca,
                self.mode,
                self.verifying.join(" or ")
            ));
        }
        if has(self.certificate) != has(self.key) {
            return refuse(format!("give both {} and {}, or none", self.certificate, self.key));
        }
        Ok(())
    }

    /// Checks that a text is a URL of this database, and returns it. `O` is the driver's type of
    /// options.
    ///
    /// # Errors
    /// The text says how to write a URL, and never repeats the given one.
    pub(crate) fn check_url<O: ServerOptions>(&self, url: &str) -> Result<String, SettingError> {
        self.check(url)?;
        let begins = url.split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"));
        match url.parse::<O>() {
            Ok(options) if begins && options.has_database() => Ok(url.to_owned()),
            _ => Err(SettingError::new(format!("not a {} URL: write {}", self.database, self.how))),
        }
    }

    /// Checks that the TLS files named in the URL (CA, certificate, key) can be read, then parses
    /// the URL into the driver's options.
    ///
    /// # Errors
    /// A file of a certificate cannot be read, or the driver refuses the URL.
    pub(crate) fn options<O: ServerOptions>(&self, url: &str) -> Result<O, StoreError> {
        let refused =
            StoreError::new(StoreErrorKind::Refused, format!("read the {} URL", self.database));
        if let Err(why) = self.check_files(url) {
            return Err(refused.because(why));
        }
        let options: O = url.parse().map_err(|error: sqlx::Error| refused.because(error))?;
        // The driver keeps the brackets that an IPv6 address has in a URL, and would look up a host
        // of that name.
        let bare = options.address().and_then(|Address { host, .. }| {
            Some(host.strip_prefix('[')?.strip_suffix(']')?.to_owned())
        });
        Ok(match bare {
            Some(host) => options.at_host(&host),
            None => options,
        })
    }

    /// Checks that each TLS file that the URL names can be read. The driver would report a missing
    /// file only at the first connection.
    fn check_files(&self, url: &str) -> Result<(), String> {
        let Ok(url) = Url::parse(url) else { return Ok(()) };
        for (name, file) in url.query_pairs() {
            if self.files().contains(&&*name) {
                let read = std::fs::read(&*file);
                // What is no path may be the key itself, at a wrong place.
                let shown = if file.contains("-----") { "(no path)" } else { &*file };
                read.map_err(|error| format!("{name} {shown}: {error}"))?;
            }
        }
        Ok(())
    }
}

/// The host of a database, from its URL or a parameter; empty for a socket.
pub(crate) fn hosts(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else { return Vec::new() };
    let given = |name: &str| url.query_pairs().filter(|(key, _)| key == name).last();
    if given("socket").is_some() {
        return Vec::new();
    }
    let named = given("host").map(|(_, host)| host.into_owned());
    let host = named.or_else(|| url.host_str().map(str::to_owned)).unwrap_or_default();
    let is_socket = host.is_empty() || host.starts_with(['/', '%']);
    if is_socket { Vec::new() } else { vec![host] }
}

/// The URL with `***` in place of the password, and without its parameters.
pub(crate) fn redact(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return "***".into() };
    // A password may hold an '@': the last one ends it.
    match rest.rsplit_once('@') {
        None => format!("{scheme}://{rest}"),
        Some((login, place)) => {
            let user = login.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}:***@{place}")
        }
    }
}

#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests {
    use crate::mysql::MYSQL;
    use crate::postgres::POSTGRES;

    #[test]
    fn what_would_turn_a_check_off_is_refused() {
        let mysql = |query: &str| MYSQL.check(&format!("mysql://u:p@h/d?{query}"));
        let postgres = |query: &str| POSTGRES.check(&format!("postgres://u:p@h/d?{query}"));
        for fine in ["", "ssl-mode=verify_ca&ssl-ca=a.pem", "ssl-mode=REQUIRED&charset=utf8mb4"] {
            mysql(fine).unwrap();
        }
        postgres("sslmode=verify-full&sslrootcert=a.pem&sslcert=b&sslkey=c").unwrap();
        for (bad, expected) in [
            ("sslMode=VERIFY_CA", "unknown parameter in the MySQL URL"),
            ("canary=1", "unknown parameter"),
            ("ssl-mode=canary", "ssl-mode: give DISABLED, PREFERRED"),
            ("ssl-ca=a.pem", "ssl-ca is looked at with ssl-mode VERIFY_CA or VERIFY_IDENTITY only"),
            ("ssl-mode=REQUIRED&ssl-ca=a.pem", "ssl-ca is looked at"),
            ("ssl-cert=a", "give both ssl-cert and ssl-key"),
        ] {
            let error = mysql(bad).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("canary"), "{bad}: {error}");
        }
        // It would connect without TLS although the server has it.
        assert!(postgres("sslmode=allow").is_err());
        assert!(postgres("sslmode=require&sslrootcert=a").is_err());
        let missing = POSTGRES.check_files("postgres://h/d?sslrootcert=/none/a.pem").unwrap_err();
        assert!(missing.starts_with("sslrootcert /none/a.pem: "), "{missing}");
    }
}
