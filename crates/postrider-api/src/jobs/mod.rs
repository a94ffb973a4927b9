//! Scheduled jobs, for operators and callers: functions, their runs, schedules, dead letters, alerts.
pub(crate) mod alerts;
pub(crate) mod errors;
pub(crate) mod functions;
pub(crate) mod health;
pub(crate) mod invoke;
pub(crate) mod run_waiters;
pub(crate) mod runs;
pub(crate) mod schedules;

use postrider_engine::jobs::BUILTINS;
use postrider_model::{
    ids::TenantId,
    jobs::{VALUE_BYTES_MAX, lock_key::EntityHash},
};
use postrider_store::{
    PgConnection,
    jobs::functions::{self as store, FunctionState},
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::common::{
    body::Named,
    error::{ApiResult, FieldError},
};

/// Longest note, in bytes.
const NOTE_BYTES_MAX: usize = 2_000;

/// The name of a function in a path.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct FunctionName(String);

impl Named for FunctionName {
    const NAME: &'static str = "function";
}

/// Creates a function that comes with the program, where the tenant has none of this name. False when there is no such function.
async fn make_builtin(connection: &mut PgConnection, tenant: TenantId, name: &str) -> ApiResult<bool> {
    let Some(known) = BUILTINS.iter().find(|known| known.name == name) else { return Ok(false) };
    store::put_builtin(connection, tenant, known.name, known.grain).await?;
    Ok(true)
}

/// A function by its name, made if it comes with the program.
async fn function(
    connection: &mut PgConnection,
    tenant: TenantId,
    name: &str,
) -> ApiResult<Option<FunctionState>> {
    let found = store::find(connection, tenant, name).await?;
    if found.is_none() && make_builtin(connection, tenant, name).await? {
        return Ok(store::find(connection, tenant, name).await?);
    }
    Ok(found)
}

/// Checks an input.
fn check_input(input: Option<&Value>) -> Result<(), FieldError> {
    match input {
        Some(input) if input.to_string().len() > VALUE_BYTES_MAX => Err(input_too_large()),
        _ => Ok(()),
    }
}

fn input_too_large() -> FieldError {
    let problem =
        format!("is larger than {VALUE_BYTES_MAX} bytes; keep it elsewhere, and give the function its name");
    FieldError::new("input", problem)
}

/// The hash of entities, as they were written.
fn hash(entities: Option<&RawValue>) -> Result<Option<EntityHash>, FieldError> {
    let Some(entities) = entities else { return Ok(None) };
    if entities.get().len() > VALUE_BYTES_MAX {
        return Err(FieldError::new(
            "entities",
            format!("are larger than {VALUE_BYTES_MAX} bytes; name them by less"),
        ));
    }
    EntityHash::of(entities.get())
        .map(Some)
        .map_err(|problem| FieldError::new("entities", problem.to_string()))
}

/// Checks a note.
fn check_note(note: Option<&str>) -> Result<(), FieldError> {
    match note {
        Some(note) if note.len() > NOTE_BYTES_MAX => {
            Err(FieldError::new("note", format!("has at most {NOTE_BYTES_MAX} bytes")))
        }
        _ => Ok(()),
    }
}
