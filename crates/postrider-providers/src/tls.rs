//! The cryptography provider of TLS.

use rustls::crypto::{CryptoProvider, ring};

/// Makes `ring` the provider of this process, unless one is installed: a library user may have chosen another, which the
/// HTTP client and the NATS client use, too.
pub fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // Another thread may have installed one in the meantime, which is equally good.
        let _ = ring::default_provider().install_default();
    }
}
