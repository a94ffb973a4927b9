//! A self-signed certificate, and a resolver for its name. The integration tests and the tests of the SMTP adapter use them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Resolves every name to this machine.
pub struct LocalDns;

impl Resolve for LocalDns {
    fn resolve(&self, _: Name) -> Resolving {
        Box::pin(async { Ok(Box::new(std::iter::once(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))) as Addrs) })
    }
}

/// A certificate for one name, and its key.
pub fn certify(folder: &Path, name: &str) -> (String, String) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=test", "-keyout", &key, "-out", &certificate])
        .args(["-addext", &format!("subjectAltName=DNS:{name}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .output()
        .expect("openssl is missing; run `make setup` or `apt-get install openssl`");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}
