//! Which cryptography TLS uses.

use rustls::crypto::{CryptoProvider, ring};

/// Makes `ring` the provider of this process, unless somebody chose one before: a library user may have, and both the
/// HTTP client and the NATS client respect that choice.
pub fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have been faster, and then its choice is as good.
        let _ = ring::default_provider().install_default();
    }
}
