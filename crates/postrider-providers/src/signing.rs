//! Standard Webhooks: signing outbound requests and verifying inbound ones.
//!
//! `webhook-id` is the same for each attempt; `webhook-timestamp` is the time of this one, because receivers refuse old
//! signatures; `webhook-signature` covers both and the body.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use reqwest::{
    Method, Request,
    header::{CONTENT_TYPE, HeaderValue},
};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;
use standardwebhooks::{HEADER_WEBHOOK_ID, HEADER_WEBHOOK_SIGNATURE, HEADER_WEBHOOK_TIMESTAMP, Webhook};
use url::Url;

/// Sizes of a secret, in bytes, from the specification.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The signer for a secret `whsec_…`. The error does not contain the secret.
pub fn signer(secret: &SecretString) -> Result<Webhook, &'static str> {
    Webhook::from_bytes(key(secret)?).map_err(|_| "is not usable")
}

/// The verifier for a secret `whsec_…`.
pub fn verifier(secret: &SecretString) -> Result<Hmac<Sha256>, &'static str> {
    Hmac::new_from_slice(&key(secret)?).map_err(|_| "is not usable")
}

/// Checks that a secret `whsec_…` can sign.
pub fn check_secret(secret: &SecretString) -> Result<(), &'static str> {
    signer(secret).map(drop)
}

fn key(secret: &SecretString) -> Result<Vec<u8>, &'static str> {
    let encoded = secret.expose_secret().strip_prefix("whsec_").ok_or("does not begin with `whsec_`")?;
    let key = STANDARD.decode(encoded).map_err(|_| "is not base64 after `whsec_`")?;
    if !SECRET_BYTES.contains(&key.len()) {
        return Err("does not hold 24 to 64 bytes");
    }
    Ok(key)
}

/// Whether one of the signatures is right, in constant time. During the replacement of a secret a sender signs with both.
pub fn is_signed(verifier: &Hmac<Sha256>, id: &str, time: &str, body: &[u8], signatures: &str) -> bool {
    let mut signature = verifier.clone();
    for part in [id.as_bytes(), b".", time.as_bytes(), b".", body] {
        signature.update(part);
    }
    signatures
        .split(' ')
        .filter_map(|received| STANDARD.decode(received.strip_prefix("v1,")?).ok())
        .any(|received| signature.clone().verify_slice(&received).is_ok())
}

/// A request with a signature of each signer. An error is a bug, because id and body are valid.
pub fn request(
    url: Url,
    signers: &[Webhook],
    id: &str,
    body: Bytes,
) -> Result<Request, Box<dyn std::error::Error + Send + Sync>> {
    let now = Timestamp::now().as_second();
    let signatures: Result<Vec<String>, _> =
        signers.iter().map(|signer| signer.sign(id, now, &body)).collect();
    let mut request = Request::new(Method::POST, url);
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(HEADER_WEBHOOK_TIMESTAMP, HeaderValue::from(now));
    headers.insert(HEADER_WEBHOOK_ID, HeaderValue::from_str(id)?);
    headers.insert(HEADER_WEBHOOK_SIGNATURE, HeaderValue::from_str(&signatures?.join(" "))?);
    *request.body_mut() = Some(body.into());
    Ok(request)
}
