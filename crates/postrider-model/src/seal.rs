//! Secrets encrypted at rest.
//!
//! A sealed secret is bound to the row it belongs to: the place is authenticated together with the text, so a
//! ciphertext copied into another row, or another tenant, does not open. It also names the key it was sealed
//! with, so that a wrong master key is told apart from a damaged value.

use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use chacha20poly1305::{
    Key, KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use secrecy::{ExposeSecret, SecretBox};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::ids::{ProviderAccountId, TenantId};

const VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 24;
const HEADER_BYTES: usize = 1 + KEY_ID_BYTES + NONCE_BYTES;

/// The key outside the database under which provider secrets are sealed.
/// Cloning shares it; it is wiped with the last one.
#[derive(Clone)]
pub struct MasterKey(Arc<SecretBox<[u8; 32]>>);

/// Where a secret belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which account's it is.
    pub account: ProviderAccountId,
}

/// A text that cannot be a master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the master key must be 32 bytes in base64; make one with `head -c 32 /dev/urandom | base64`")]
pub struct NotAMasterKey;

/// Why a sealed secret does not open, or a text could not be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Sealed under another key.
    #[error(
        "the secret was sealed under another master key; start with the POSTRIDER_MASTER_KEY that was in use then"
    )]
    OtherKey,
    /// Altered, cut, or moved here from another row.
    #[error("the sealed secret is damaged or belongs to another row; store it again")]
    Damaged,
    /// The system gave no random bytes.
    #[error("the system's random source failed")]
    NoRandomness,
}

impl MasterKey {
    /// A new key from the system's random source.
    pub fn generate() -> Result<Self, SealError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(bytes.as_mut()).map_err(|_| SealError::NoRandomness)?;
        Ok(Self(Arc::new(SecretBox::new(Box::new(*bytes)))))
    }

    /// As written to the key file.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.expose_secret()))
    }

    /// Encrypts `plain` for this place alone.
    pub fn seal(&self, place: Place, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
        let mut header = vec![VERSION];
        header.extend(self.id());
        header.extend(nonce);
        let aad = authenticated(&header, place);
        let sealed = self
            .cipher()
            .encrypt(XNonce::from_slice(&nonce), Payload { msg: plain, aad: &aad })
            .map_err(|_| SealError::Damaged)?;
        header.extend(sealed);
        Ok(header)
    }

    /// Decrypts what was sealed for this place.
    pub fn open(&self, place: Place, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let (header, ciphertext) = sealed.split_at_checked(HEADER_BYTES).ok_or(SealError::Damaged)?;
        if header[0] != VERSION {
            return Err(SealError::Damaged);
        }
        if header[1..=KEY_ID_BYTES] != self.id() {
            return Err(SealError::OtherKey);
        }
        let nonce = XNonce::from_slice(&header[1 + KEY_ID_BYTES..]);
        let aad = authenticated(header, place);
        let plain = self.cipher().decrypt(nonce, Payload { msg: ciphertext, aad: &aad });
        plain.map(Zeroizing::new).map_err(|_| SealError::Damaged)
    }

    /// A hash that nobody can make without this key, so that what it was made of cannot be guessed.
    #[must_use]
    pub fn keyed_hash(&self, hash: &[u8; 32]) -> [u8; 32] {
        let digest = Sha256::new()
            .chain_update("postrider keyed hash")
            .chain_update(self.0.expose_secret())
            .chain_update(hash);
        digest.finalize().into()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(Key::from_slice(self.0.expose_secret()))
    }

    fn id(&self) -> [u8; KEY_ID_BYTES] {
        let digest =
            Sha256::new().chain_update("postrider master key id").chain_update(self.0.expose_secret());
        let digest: [u8; 32] = digest.finalize().into();
        [digest[0], digest[1], digest[2], digest[3]]
    }
}

fn authenticated(header: &[u8], place: Place) -> Vec<u8> {
    [header, place.tenant.0.as_bytes(), place.account.0.as_bytes()].concat()
}

impl FromStr for MasterKey {
    type Err = NotAMasterKey;

    fn from_str(text: &str) -> Result<Self, NotAMasterKey> {
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| NotAMasterKey)?);
        let bytes: [u8; 32] = bytes.as_slice().try_into().map_err(|_| NotAMasterKey)?;
        Ok(Self(Arc::new(SecretBox::new(Box::new(bytes)))))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { tenant: TenantId::new(), account: ProviderAccountId::new() }
    }

    #[test]
    fn a_secret_opens_where_it_was_sealed() {
        let (key, place) = (MasterKey::generate().unwrap(), place());
        let sealed = key.seal(place, b"token").unwrap();
        assert!(!sealed.windows(5).any(|window| window == b"token"));
        assert_eq!(key.open(place, &sealed).unwrap().as_slice(), b"token");
        let again: MasterKey = key.to_base64().parse().unwrap();
        assert_eq!(again.open(place, &sealed).unwrap().as_slice(), b"token");
    }

    #[test]
    fn a_ciphertext_moved_to_another_row_or_tenant_does_not_open() {
        let (key, home) = (MasterKey::generate().unwrap(), place());
        let sealed = key.seal(home, b"token").unwrap();
        let other_row = Place { account: ProviderAccountId::new(), ..home };
        let other_tenant = Place { tenant: TenantId::new(), ..home };
        assert_eq!(key.open(other_row, &sealed).unwrap_err(), SealError::Damaged);
        assert_eq!(key.open(other_tenant, &sealed).unwrap_err(), SealError::Damaged);
    }

    #[test]
    fn every_altered_byte_is_noticed() {
        let (key, place) = (MasterKey::generate().unwrap(), place());
        let sealed = key.seal(place, b"token").unwrap();
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(key.open(place, &altered).is_err(), "byte {at}");
            assert!(key.open(place, &sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_master_key_is_told_apart_from_damage() {
        let place = place();
        let sealed = MasterKey::generate().unwrap().seal(place, b"token").unwrap();
        assert_eq!(MasterKey::generate().unwrap().open(place, &sealed).unwrap_err(), SealError::OtherKey);
    }

    #[test]
    fn a_bad_master_key_says_how_to_make_one() {
        for text in ["", "secret", "c2hvcnQ="] {
            assert!(text.parse::<MasterKey>().unwrap_err().to_string().contains("/dev/urandom"));
        }
    }
}
