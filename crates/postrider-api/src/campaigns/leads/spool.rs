//! Bodies that are kept in a file until they are whole: memory does not depend on their length.

use std::{
    collections::HashMap,
    fs::File,
    io::{Seek, SeekFrom},
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use futures::StreamExt;
use postrider_model::ids::TenantId;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::common::error::{ApiError, ApiResult};

/// Most bytes of one body.
pub(crate) const BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Maximum pause of a client in the middle of a body.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Most imports of one tenant at a time, in one process.
const IMPORTS_PER_TENANT: usize = 2;
/// Most imports of all tenants at a time, in one process.
const IMPORTS: usize = 8;

/// A whole body.
pub(super) struct Spooled {
    /// It has no name, and is gone when it is closed.
    pub(super) file: File,
    /// SHA-256 over all of it.
    pub(super) hash: [u8; 32],
}

/// Keeps a body until it is whole.
pub(super) async fn spool(headers: &HeaderMap, body: Body) -> ApiResult<Spooled> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: usize| bytes > BYTES_MAX) {
        return Err(ApiError::TooLarge(BYTES_MAX));
    }
    let cannot = |error: std::io::Error| {
        ApiError::Internal(format!("the body cannot be kept in {}: {error}", std::env::temp_dir().display()))
    };
    let made = tokio::task::spawn_blocking(tempfile::tempfile).await;
    let made = made.map_err(|error| ApiError::Internal(format!("making a file ended early: {error}")))?;
    let mut file = tokio::fs::File::from_std(made.map_err(cannot)?);
    let (mut pieces, mut bytes, mut hash) = (body.into_data_stream(), 0_usize, Sha256::new());
    loop {
        let next = tokio::time::timeout(SILENCE_MAX, pieces.next()).await;
        let Some(piece) = next.map_err(|_| {
            ApiError::BadRequest(format!(
                "the body stopped coming for {} s, after {bytes} bytes",
                SILENCE_MAX.as_secs()
            ))
        })?
        else {
            break;
        };
        let piece = piece.map_err(|_| {
            ApiError::BadRequest(format!("the body ended early, after {bytes} bytes; nothing was imported"))
        })?;
        bytes += piece.len();
        if bytes > BYTES_MAX {
            return Err(ApiError::TooLarge(BYTES_MAX));
        }
        hash.update(&piece);
        file.write_all(&piece).await.map_err(cannot)?;
    }
    file.flush().await.map_err(cannot)?;
    let mut file = file.into_std().await;
    file.seek(SeekFrom::Start(0)).map_err(cannot)?;
    Ok(Spooled { file, hash: hash.finalize().into() })
}

/// Capacity for one import. A slow client takes the capacity of its own tenant, and not that of others.
pub(super) struct Slot(TenantId);

static TAKEN: LazyLock<Mutex<HashMap<TenantId, usize>>> = LazyLock::new(Mutex::default);

impl Slot {
    pub(super) fn take(tenant: TenantId) -> ApiResult<Self> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let no_room = |detail, is_full| ApiError::NoRoom { detail, is_full, retry_after: 5 };
        if taken.get(&tenant).is_some_and(|count| *count >= IMPORTS_PER_TENANT) {
            return Err(no_room("two imports of this tenant are under way here", false));
        }
        if taken.values().sum::<usize>() >= IMPORTS {
            return Err(no_room("eight imports are under way here", true));
        }
        *taken.entry(tenant).or_default() += 1;
        Ok(Self(tenant))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.0) {
            *count -= 1;
        }
        taken.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_does_not_take_the_capacity_of_others() {
        let [greedy, other] = [TenantId::new(), TenantId::new()];
        let first = Slot::take(greedy).ok().unwrap();
        let _second = Slot::take(greedy).ok().unwrap();
        assert!(matches!(Slot::take(greedy), Err(ApiError::NoRoom { is_full: false, .. })));
        assert!(Slot::take(other).is_ok());
        drop(first);
        assert!(Slot::take(greedy).is_ok());
    }
}
