//! Certificates for tests of TLS, made anew each time.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::require;

/// The arguments with which openssl generates a new key.
const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// Two certificate authorities, and a server certificate for 127.0.0.1 that the first one signed.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Generates the authorities, the server's certificate and the keys.
    ///
    /// # Panics
    /// When the program openssl is not installed.
    #[must_use]
    pub fn make() -> Self {
        let directory = tempfile::Builder::new().prefix("leaf-tls-").tempdir();
        let made = Self(directory.expect("a temporary directory"));
        // Servers that do not run as root read them, too.
        std::fs::set_permissions(made.0.path(), std::fs::Permissions::from_mode(0o755))
            .expect("the directory is ours");
        for authority in ["ca", "other-ca"] {
            made.openssl(&format!(
                "req -x509 {KEY} -days 2 -subj /CN={authority} -keyout {authority}.key -out \
                 {authority}.pem -addext basicConstraints=critical,CA:TRUE -addext \
                 keyUsage=critical,keyCertSign"
            ));
        }
        made.issue("ca", "server");
        made
    }

    /// Issues another certificate for 127.0.0.1, for a server or a client, signed by the authority
    /// `ca` or `other-ca`. Returns the files of the certificate and of its key.
    ///
    /// # Panics
    /// When that fails.
    pub fn issue(&self, authority: &str, name: &str) -> (PathBuf, PathBuf) {
        self.issue_to(authority, name, "IP:127.0.0.1")
    }

    /// As [`Self::issue`], with other names in it, like `DNS:orders.local,URI:spiffe://a/b`.
    ///
    /// # Panics
    /// When that fails.
    pub fn issue_to(&self, authority: &str, name: &str, names: &str) -> (PathBuf, PathBuf) {
        let extensions = format!(
            "subjectAltName={names}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
        );
        std::fs::write(self.file(&format!("{name}.ext")), extensions).expect("ours");
        self.openssl(&format!(
            "req -new {KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 \
             -extfile {name}.ext -out {name}.pem"
        ));
        let (certificate, key) =
            (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644))
            .expect("the key is ours");
        (certificate, key)
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new(require("openssl", "openssl"))
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("openssl runs");
        assert!(
            output.status.success(),
            "openssl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The certificate of the authority that signed the server's certificate.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The certificate of an authority that did not sign the server's certificate.
    #[must_use]
    pub fn other_authority(&self) -> PathBuf {
        self.file("other-ca.pem")
    }

    /// The server's certificate.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.file("server.pem")
    }

    /// The private key of the server's certificate.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// The directory of all certificates and keys.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.0.path()
    }
}
