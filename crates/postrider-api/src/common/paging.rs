//! Lists in pages. A cursor is the sort key of the last row that was shown, and nothing else: it carries no tenant, so a caller
//! with a foreign cursor sees only rows of its own tenant.
//!
//! ```text
//! let size = paging::size(query.limit)?;
//! let after: Option<Key> = paging::decode(query.cursor.as_deref())?;
//! let rows = store::list(&mut tx, after, size + 1).await?; // one more, to know whether another page follows
//! Ok(Json(Page::of(rows, size, |row| Key { … }, Body::from)))
//! ```

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::common::{
    body,
    error::{ApiError, ApiResult},
};

/// Default number of rows of a page.
const SIZE: u32 = 50;
/// Maximum number of rows of a page.
pub(crate) const SIZE_MAX: u32 = 200;
/// Maximum length of a cursor, longer than any that the server makes.
const CURSOR_BYTES_MAX: usize = 1024;

/// Query parameters of every list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub(crate) limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    pub(crate) cursor: Option<String>,
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// The items, in the order of the list.
    pub(crate) items: Vec<T>,
    /// Cursor of the next page. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Builds a page of `size` rows from a query for one row more.
    pub(crate) fn of<R, K: Serialize>(
        mut rows: Vec<R>,
        size: i64,
        key: impl FnOnce(&R) -> K,
        show: impl FnMut(R) -> T,
    ) -> Self {
        let size = usize::try_from(size).unwrap_or_default();
        let more = rows.len() > size;
        rows.truncate(size);
        let next_cursor = rows.last().filter(|_| more).map(|last| encode(&key(last)));
        Self { items: rows.into_iter().map(show).collect(), next_cursor }
    }
}

/// Number of rows of the page.
pub(crate) fn size(limit: Option<u32>) -> Result<i64, ApiError> {
    let size = limit.unwrap_or(SIZE);
    if !(1..=SIZE_MAX).contains(&size) {
        return Err(ApiError::invalid("limit", format!("must lie between 1 and {SIZE_MAX}")));
    }
    Ok(size.into())
}

/// The cursor that continues after this key.
pub(crate) fn encode<K: Serialize>(key: &K) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(key).unwrap_or_default())
}

/// The key after which to continue.
pub(crate) fn decode<K: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<K>, ApiError> {
    let Some(cursor) = cursor else { return Ok(None) };
    let not_ours = || {
        ApiError::invalid(
            "cursor",
            "is not one of this list; take `next_cursor` of the page before, as it is",
        )
    };
    if cursor.len() > CURSOR_BYTES_MAX {
        return Err(not_ours());
    }
    let json = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| not_ours())?;
    let key: Value = serde_json::from_slice(&json).map_err(|_| not_ours())?;
    // No row has a NUL character in its sort key, and the database would refuse the statement.
    body::check_text("", &key).map_err(|_| not_ours())?;
    serde_json::from_value(key).map(Some).map_err(|_| not_ours())
}

/// The start of a page of a list in the order of time. The server makes no cursor with a time before 1970, and the database may not
/// know such a time.
pub(crate) fn by_age<T: DeserializeOwned>(cursor: Option<&str>) -> ApiResult<Option<(Timestamp, T)>> {
    let after: Option<(Timestamp, T)> = decode(cursor)?;
    match after {
        Some((at, _)) if at < Timestamp::UNIX_EPOCH => Err(ApiError::invalid(
            "cursor",
            "is not one of this list; take `next_cursor` of the page before, as it is",
        )),
        after => Ok(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_an_invalid_one_is_refused() {
        let key = (7_i64, "b".to_owned());
        assert_eq!(decode(Some(&encode(&key))).unwrap(), Some(key));
        assert_eq!(decode::<i64>(None).unwrap(), None);
        for not_ours in ["", "!", "bnVsbA==", &encode(&"text"), &"a".repeat(2000)] {
            assert!(decode::<i64>(Some(not_ours)).is_err(), "{not_ours}");
        }
        assert!(decode::<String>(Some(&encode(&"a\0b"))).is_err());
        assert!(decode::<(String, i64)>(Some(&encode(&("a\0b", 7)))).is_err());
    }

    #[test]
    fn a_page_continues_only_when_something_follows() {
        let page = Page::of(vec![1, 2, 3], 2, |row| *row, |row| row);
        assert_eq!((page.items, page.next_cursor), (vec![1, 2], Some(encode(&2))));
        let page = Page::of(vec![1, 2], 2, |row| *row, |row| row);
        assert_eq!((page.items, page.next_cursor), (vec![1, 2], None));
        let page = Page::of(Vec::<i64>::new(), 2, |row| *row, |row| row);
        assert_eq!(page.next_cursor, None);
    }

    #[test]
    fn the_size_of_a_page_is_bounded() {
        assert_eq!(size(None).unwrap(), 50);
        assert_eq!(size(Some(200)).unwrap(), 200);
        assert!(size(Some(0)).is_err() && size(Some(201)).is_err());
    }
}
