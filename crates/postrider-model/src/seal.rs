//! Secrets encrypted at rest.
//!
//! A sealed secret is bound to the row it belongs to: the place is authenticated together with the text, so a
//! ciphertext copied into another row, or another tenant, does not open. It also names the key it was sealed
//! with, so that a wrong master key is distinguished from a damaged value.
//!
//! During a rotation of the master key a process holds two keys: it opens the values of both, and seals under the one that
//! the installation uses at that moment ([`MasterKey::that_sealed`]).

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

/// The key outside the database under which provider secrets are sealed, and during a rotation the previous one as well.
/// Cloning shares the bytes; they are wiped with the last clone.
#[derive(Clone)]
pub struct MasterKey {
    current: Arc<SecretBox<[u8; 32]>>,
    previous: Option<Arc<SecretBox<[u8; 32]>>>,
}

/// The known value that shows whether a key belongs to an installation, and the place it is sealed to, which no row has.
const CHECK: &[u8] = b"postrider master key";
const CHECK_PLACE: Place =
    Place { tenant: TenantId(uuid::Uuid::nil()), account: ProviderAccountId(uuid::Uuid::nil()) };

/// The row that a secret belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Tenant of the row.
    pub tenant: TenantId,
    /// Provider account of the row.
    pub account: ProviderAccountId,
}

/// A text that cannot be a master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the master key must be 32 bytes in base64; make one with `postrider master-key generate`")]
pub struct NotAMasterKey;

/// A secret that could not be sealed or opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Sealed under another key.
    #[error(
        "the secret was sealed under another master key; set master_key, or master_key_previous, to the key that was in use then"
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
        Ok(Self::from_bytes(*bytes))
    }

    fn from_bytes(bytes: [u8; 32]) -> Self {
        Self { current: Arc::new(SecretBox::new(Box::new(bytes))), previous: None }
    }

    /// This key, with another one that also opens.
    #[must_use]
    pub fn with_previous(self, previous: Self) -> Self {
        Self { current: self.current, previous: Some(previous.current) }
    }

    /// The current key alone.
    #[must_use]
    pub fn current(&self) -> Self {
        Self { current: Arc::clone(&self.current), previous: None }
    }

    /// The previous key alone.
    #[must_use]
    pub fn previous(&self) -> Option<Self> {
        self.previous.as_ref().map(|key| Self { current: Arc::clone(key), previous: None })
    }

    /// The one of the two keys that sealed this value, by the id in its header.
    #[must_use]
    pub fn that_sealed(&self, sealed: &[u8]) -> Option<Self> {
        let id = key_id(sealed)?;
        [Some(self.current()), self.previous()].into_iter().flatten().find(|key| key.id() == id)
    }

    /// The current key as the key file holds it.
    #[must_use]
    pub fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.current.expose_secret()))
    }

    /// The known value, sealed under the current key.
    pub fn seal_check(&self) -> Result<Vec<u8>, SealError> {
        self.seal(CHECK_PLACE, CHECK)
    }

    /// Checks that one of the keys sealed this known value.
    pub fn open_check(&self, sealed: &[u8]) -> Result<(), SealError> {
        let plain = self.open(CHECK_PLACE, sealed)?;
        if plain.as_slice() == CHECK { Ok(()) } else { Err(SealError::Damaged) }
    }

    /// Encrypts `plain` for this place alone, under the current key.
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

    /// Decrypts a value that was sealed for this place under either key.
    pub fn open(&self, place: Place, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let (header, ciphertext) = sealed.split_at_checked(HEADER_BYTES).ok_or(SealError::Damaged)?;
        if header[0] != VERSION {
            return Err(SealError::Damaged);
        }
        let key = self.that_sealed(sealed).ok_or(SealError::OtherKey)?;
        let nonce = XNonce::from_slice(&header[1 + KEY_ID_BYTES..]);
        let aad = authenticated(header, place);
        let plain = key.cipher().decrypt(nonce, Payload { msg: ciphertext, aad: &aad });
        plain.map(Zeroizing::new).map_err(|_| SealError::Damaged)
    }

    /// A keyed hash. Without this key the input of the hash cannot be guessed.
    #[must_use]
    pub fn keyed_hash(&self, hash: &[u8; 32]) -> [u8; 32] {
        let digest = Sha256::new()
            .chain_update("postrider keyed hash")
            .chain_update(self.current.expose_secret())
            .chain_update(hash);
        digest.finalize().into()
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(Key::from_slice(self.current.expose_secret()))
    }

    /// The id of the current key, as sealed values contain it.
    #[must_use]
    pub fn id(&self) -> [u8; KEY_ID_BYTES] {
        let digest =
            Sha256::new().chain_update("postrider master key id").chain_update(self.current.expose_secret());
        let digest: [u8; 32] = digest.finalize().into();
        [digest[0], digest[1], digest[2], digest[3]]
    }
}

/// The id of the key that sealed this value; `None` when it is no sealed value.
#[must_use]
pub fn key_id(sealed: &[u8]) -> Option<[u8; KEY_ID_BYTES]> {
    let (version, rest) = sealed.split_first()?;
    let is_sealed = *version == VERSION && sealed.len() >= HEADER_BYTES;
    rest.first_chunk().copied().filter(|_| is_sealed)
}

fn authenticated(header: &[u8], place: Place) -> Vec<u8> {
    [header, place.tenant.0.as_bytes(), place.account.0.as_bytes()].concat()
}

impl FromStr for MasterKey {
    type Err = NotAMasterKey;

    fn from_str(text: &str) -> Result<Self, NotAMasterKey> {
        let bytes = Zeroizing::new(STANDARD.decode(text.trim()).map_err(|_| NotAMasterKey)?);
        let bytes: [u8; 32] = bytes.as_slice().try_into().map_err(|_| NotAMasterKey)?;
        Ok(Self::from_bytes(bytes))
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
    fn another_master_key_is_distinguished_from_damage() {
        let place = place();
        let sealed = MasterKey::generate().unwrap().seal(place, b"token").unwrap();
        assert_eq!(MasterKey::generate().unwrap().open(place, &sealed).unwrap_err(), SealError::OtherKey);
    }

    #[test]
    fn during_a_rotation_both_keys_open_and_the_current_one_seals() {
        let (old, new, place) = (MasterKey::generate().unwrap(), MasterKey::generate().unwrap(), place());
        let both = new.clone().with_previous(old.clone());
        let sealed = old.seal(place, b"token").unwrap();
        assert_eq!(both.open(place, &sealed).unwrap().as_slice(), b"token");
        assert_eq!(both.that_sealed(&sealed).unwrap().id(), old.id());
        assert_eq!(key_id(&both.seal(place, b"token").unwrap()), Some(new.id()));
        assert_eq!(both.previous().unwrap().id(), old.id());
        assert_eq!(both.current().open(place, &sealed).unwrap_err(), SealError::OtherKey);
    }

    #[test]
    fn the_known_value_opens_under_the_key_that_sealed_it_alone() {
        let key = MasterKey::generate().unwrap();
        let check = key.seal_check().unwrap();
        assert_eq!(key.open_check(&check), Ok(()));
        assert_eq!(MasterKey::generate().unwrap().open_check(&check), Err(SealError::OtherKey));
        let elsewhere = key.seal(place(), CHECK).unwrap();
        assert_eq!(key.open_check(&elsewhere), Err(SealError::Damaged));
        assert_eq!(key_id(b"sealed"), None);
    }

    #[test]
    fn a_bad_master_key_says_how_to_make_one() {
        for text in ["", "secret", "c2hvcnQ="] {
            assert!(
                text.parse::<MasterKey>().unwrap_err().to_string().contains("postrider master-key generate")
            );
        }
    }
}
