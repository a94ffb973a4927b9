//! Values as the database holds them.

use std::{str::FromStr, time::Duration};

use postrider_model::words::NotAWord;
use sqlx::postgres::types::PgInterval;

use crate::StoreError;

/// A word that the database holds. An unknown word was written by a newer version.
pub(crate) fn word<T: FromStr<Err = NotAWord>>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|unknown: NotAWord| StoreError::Unfit(unknown.to_string()))
}

pub(crate) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
