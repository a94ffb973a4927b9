//! The limits of one rendering: how large a value may become, and how much work all builtins together may do.

use minijinja::{Error, ErrorKind, State, Value, value::ValueKind};

/// Maximum weight of one value: its bytes, and [`NODE`] for each number, text, list, map and entry.
pub(super) const VALUE_MAX: usize = 512 * 1024;
/// Maximum number of entries of a list that a builtin makes.
pub(super) const ENTRIES_MAX: usize = 10_000;
/// Maximum weight of everything that the builtins of one part read and make.
const WORK_MAX: usize = 32 * 1024 * 1024;
/// Weight of a value beside the bytes of its text.
const NODE: usize = 32;
/// Maximum nesting of lists and maps. JSON attributes nest at most 128 levels.
const NESTING_MAX: usize = 150;

/// Remaining part of [`WORK_MAX`]. It lives in the state of one rendering.
struct Work {
    left: usize,
}

/// The error of a template that exceeds a limit.
pub(super) fn exceeded(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::OutOfFuel, problem.into())
}

/// Charges the weight of a value, `factor` times, and returns that weight. Fails if the value is too large or the work is used up.
pub(super) fn charge(state: &mut State<'_, '_>, value: &Value, factor: usize) -> Result<usize, Error> {
    let mut left = VALUE_MAX;
    weigh(value, &mut left, 0)?;
    let weight = VALUE_MAX - left;
    let work = state.get_or_insert_extension_with(|| Work { left: WORK_MAX });
    work.left = work
        .left
        .checked_sub(weight.saturating_mul(factor))
        .ok_or_else(|| exceeded(format!("it works on more than {WORK_MAX} bytes")))?;
    Ok(weight)
}

/// Takes the weight of a value from `left`. Stops as soon as nothing is left, however large the value is.
fn weigh(value: &Value, left: &mut usize, nesting: usize) -> Result<(), Error> {
    let too_large = || exceeded(format!("a value takes more than {VALUE_MAX} bytes"));
    let bytes = match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len),
        _ => 0,
    };
    *left = left.checked_sub(bytes + NODE).ok_or_else(too_large)?;
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    if nesting >= NESTING_MAX {
        return Err(exceeded(format!("lists and maps nest deeper than {NESTING_MAX} levels")));
    }
    let Ok(entries) = value.try_iter() else { return Ok(()) };
    for entry in entries {
        weigh(&entry, left, nesting + 1)?;
        if value.kind() == ValueKind::Map
            && let Ok(under) = value.get_item(&entry)
        {
            weigh(&under, left, nesting + 1)?;
        }
    }
    Ok(())
}
