//! Name resolution that returns only checked addresses.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::url::{Policy, UrlRefused, refused};

/// Resolves a name once, checks every address, and gives exactly these addresses to the connector. A name server that
/// answers differently the next time has no effect, since there is no second resolution. One private address among public
/// ones refuses the name: an honest receiver has no reason for it, an attacker has.
pub(super) struct GuardedDns {
    pub inner: Arc<dyn Resolve>,
    pub policy: Policy,
}

impl fmt::Debug for GuardedDns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedDns").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Resolve for GuardedDns {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let policy = self.policy;
        let lookup = self.inner.resolve(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = lookup.await?.collect();
            if found.is_empty() {
                return Err(
                    io::Error::new(io::ErrorKind::NotFound, format!("`{host}` has no address")).into()
                );
            }
            for address in &found {
                if let Some(why) = refused(address.ip(), &policy) {
                    tracing::warn!(host, address = %address.ip(), "not calling `{host}`: it resolves to {}", why.what);
                    let (what, development) = (why.what, why.development);
                    return Err(UrlRefused::ResolvesToNotPublic { host, what, development }.into());
                }
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The resolver of the operating system.
pub(super) struct SystemDns;

impl Resolve for SystemDns {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // Port 0: the connector uses the port of the URL.
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}
