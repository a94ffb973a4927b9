//! Values of query parameters that filter a list.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::common::error::{ApiError, ApiResult};

/// Most characters of a text.
pub(crate) const TEXT_MAX: usize = 500;

/// A text that is compared: it is not empty and not longer than [`TEXT_MAX`].
pub(crate) fn text(field: &str, given: Option<String>) -> ApiResult<Option<String>> {
    match given {
        Some(text) if text.is_empty() || text.chars().count() > TEXT_MAX => {
            Err(ApiError::invalid(field, format!("has 1 to {TEXT_MAX} characters; leave it out for all")))
        }
        given => Ok(given),
    }
}

/// An address. In a query a plus that is not escaped means a space, and every phone number begins with one.
pub(crate) fn address(field: &str, given: Option<String>) -> ApiResult<Option<String>> {
    let given = text(field, given)?;
    Ok(given.map(|text| text.strip_prefix(' ').map(|digits| format!("+{digits}")).unwrap_or(text)))
}

/// A time. No row is older than 1970, and the database may not know such a time.
pub(crate) fn time(field: &str, given: Option<Timestamp>) -> ApiResult<Option<Timestamp>> {
    match given {
        Some(at) if at < Timestamp::UNIX_EPOCH => Err(ApiError::invalid(field, "must be in 1970 or later")),
        given => Ok(given),
    }
}

/// One or more of these words, with commas between them. None when the parameter is left out.
pub(crate) fn words<T: Copy + Serialize>(field: &str, given: Option<&str>, all: &[T]) -> ApiResult<Vec<T>> {
    let spelled = |word: &T| match serde_json::to_value(word) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    };
    let parse = |text: &str| {
        all.iter().copied().find(|word| spelled(word) == text).ok_or_else(|| {
            let known: Vec<String> = all.iter().map(spelled).collect();
            ApiError::invalid(field, format!("takes {}, with commas between them", known.join(", ")))
        })
    };
    given.into_iter().flat_map(|words| words.split(',')).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use postrider_model::campaigns::PhaseStatus;

    use super::*;

    #[test]
    fn words_are_read_with_commas_and_unknown_ones_are_refused() {
        let read = |given| words("status", given, PhaseStatus::ALL);
        assert_eq!(read(None).unwrap(), []);
        assert_eq!(read(Some("paused,failed")).unwrap(), [PhaseStatus::Paused, PhaseStatus::Failed]);
        for wrong in ["", "paused,", "Paused", "paused failed"] {
            assert!(read(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_plus_of_a_phone_number_may_be_unescaped() {
        assert_eq!(address("a", Some(" 49301".to_owned())).unwrap().as_deref(), Some("+49301"));
        assert_eq!(address("a", Some("+49301".to_owned())).unwrap().as_deref(), Some("+49301"));
        assert!(address("a", Some(String::new())).is_err());
        assert!(address("a", Some("x".repeat(TEXT_MAX + 1))).is_err());
    }

    #[test]
    fn a_time_before_1970_is_refused() {
        assert!(time("after", Some(Timestamp::MIN)).is_err());
        assert_eq!(time("after", Some(Timestamp::MAX)).unwrap(), Some(Timestamp::MAX));
    }
}
