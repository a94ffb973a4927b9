//! Links to unsubscribe. A link has the tenant, so that a proxy can route by it, and a signed token without data of the person.

use crate::{ids::TenantId, words::words};

words!(
    /// The campaigns that a person unsubscribes from.
    UnsubscribeScope, "scope" {
        /// All campaigns of the workspace.
        Workspace => "workspace",
        /// Campaigns over the list that the message was sent to.
        List => "list",
    }
);

/// Longest public address of an installation.
const BASE_BYTES_MAX: usize = 500;

/// The public address of an installation, as links have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(String);

impl PublicUrl {
    /// Reads an address like `https://mail.example.com`. The error is the reason why mails cannot carry it.
    pub fn parse(input: &str) -> Result<Self, &'static str> {
        let base = input.trim_end_matches('/');
        let is_local = |host: &str| {
            ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
                host == *local || host.strip_prefix(local).is_some_and(|rest| rest.starts_with(':'))
            })
        };
        let host = match (base.strip_prefix("https://"), base.strip_prefix("http://")) {
            (Some(rest), _) => rest.split('/').next().unwrap_or_default(),
            (None, Some(rest)) if is_local(rest.split('/').next().unwrap_or_default()) => rest,
            _ => {
                return Err("is not an address that begins with https://; http:// is for this machine alone");
            }
        };
        if host.is_empty() {
            return Err("has no host");
        }
        if base.len() > BASE_BYTES_MAX {
            return Err("is longer than 500 bytes");
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]%".contains(&byte);
        if !base.bytes().all(fits) {
            return Err("has a user, a query, a fragment, or a character that a header cannot carry");
        }
        Ok(Self(base.to_owned()))
    }

    /// The link to unsubscribe with a token.
    #[must_use]
    pub fn unsubscribe(&self, tenant: TenantId, token: &str) -> String {
        format!("{}/api/v2/tenants/{}/unsubscribe/{token}", self.0, tenant.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_tenant_and_the_token() {
        let tenant = TenantId(uuid::Uuid::from_u128(7));
        for base in ["https://mail.example.com", "https://mail.example.com/", "https://example.com:8443/mail"]
        {
            let link = PublicUrl::parse(base).unwrap().unsubscribe(tenant, "abc");
            let base = base.trim_end_matches('/');
            assert_eq!(
                link,
                format!("{base}/api/v2/tenants/00000000-0000-0000-0000-000000000007/unsubscribe/abc")
            );
        }
        assert!(PublicUrl::parse("http://127.0.0.1:8080").is_ok());
        assert!(PublicUrl::parse("http://localhost").is_ok());
    }

    #[test]
    fn an_address_that_mails_cannot_carry_is_refused() {
        for base in [
            "",
            "https://",
            "mail.example.com",
            "http://mail.example.com",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "ftp://example.com",
            "https://user@example.com",
            "https://example.com/?a=1",
            "https://example.com/#a",
            "https://example.com/>\r\nBcc: a@example.com",
            "https://exämple.com",
        ] {
            assert!(PublicUrl::parse(base).is_err(), "{base}");
        }
        assert!(PublicUrl::parse(&format!("https://example.com/{}", "a".repeat(500))).is_err());
    }
}
