//! Functions in the database: the changes of a function and the completion of its run commit together, or not at all.
//!
//! Each is called on a connection of its own, which is closed afterwards: settings of a function reach no other session, and a function
//! that is given up in the middle keeps no other session waiting.

use std::time::Duration;

use postrider_model::jobs::{SqlName, VALUE_BYTES_MAX, is_retryable_sqlstate};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{ClaimedRun, End, end_in};
use crate::{
    Pool, StoreError, crash_point,
    postgres::{pool, unprepared::unprepared},
};

/// Schemas that are not for tenants: their functions are those of the kernel or of the server.
const CLOSED: &[&str] = &[
    "jobs",
    "execution",
    "channels",
    "events",
    "m10_recovery",
    "tenancy",
    "postrider",
    "information_schema",
];

/// The end of an attempt of a SQL function.
#[derive(Debug)]
pub enum SqlEnd {
    /// The run is completed, and committed with the changes of the function. Nothing is left to record.
    Committed,
    /// The run is held under another claim: the changes of the function were rolled back.
    Lost,
    /// The function failed, and its changes were rolled back.
    Failed(End),
}

/// Runs a SQL function for a claimed run, as the worker, in the context of the run's tenant and within its timeout.
pub async fn perform_sql(
    pool: &Pool,
    worker: &str,
    run: &ClaimedRun,
    name: &SqlName,
    timeout: Duration,
) -> Result<SqlEnd, StoreError> {
    let doing = StoreError::on("calling a SQL function");
    let mut connection = pool.acquire().await.map_err(&doing)?.detach();
    let mut transaction =
        connection.begin_with("begin isolation level read committed").await.map_err(&doing)?;
    pool::act_as(&mut transaction, run.tenant).await?;
    let signature = match signature(&mut transaction, name).await? {
        Ok(signature) => signature,
        Err(problem) => return Ok(SqlEnd::Failed(End::Failed { error: problem, retryable: false })),
    };
    let result = match call(&mut transaction, name, signature, &run.input, timeout).await {
        Ok(result) => result,
        Err(end) => return Ok(SqlEnd::Failed(end)),
    };
    // Settings of the function must not stay on the server behind a pooler, nor decide for which tenant the run is ended.
    reset(&mut transaction).await?;
    let ended = match end_in(&mut transaction, worker, &[run.end(End::Completed(result))]).await {
        Ok(ended) => ended,
        Err(StoreError::Refused { message, .. }) => {
            let error = format!("the result of {name} cannot be stored: {message}");
            return Ok(SqlEnd::Failed(End::Failed { error, retryable: false }));
        }
        Err(error) => return Err(error),
    };
    if !ended.contains_key(&run.run()) {
        return Ok(SqlEnd::Lost);
    }
    crash_point!("run.ended");
    transaction.commit().await.map_err(StoreError::on("committing"))?;
    crash_point!("run.after_end");
    let _ = connection.close().await;
    Ok(SqlEnd::Committed)
}

/// The signature of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signature {
    Nothing,
    Input,
}

/// Returns the problem with a SQL function, if there is one. `schemas` is `jobs.sql_schemas`. Call this as the worker, which will call
/// the function, or as a login with the same rights.
pub async fn check_sql_function(
    connection: &mut PgConnection,
    name: &SqlName,
    schemas: &[String],
) -> Result<Result<(), String>, StoreError> {
    if let Err(problem) = check_sql_schema(name, schemas) {
        return Ok(Err(problem));
    }
    Ok(signature(connection, name).await?.map(|_| ()))
}

/// Refuses a function whose schema is not among those that may be run: an installation names the schemas whose functions every tenant's
/// administrators may call.
pub fn check_sql_schema(name: &SqlName, schemas: &[String]) -> Result<(), String> {
    let (schema, _) = name.parts();
    if CLOSED.contains(&schema) || schema.starts_with("pg_") {
        return Err(format!(
            "the functions of the schema `{schema}` cannot be called by job runs; put yours into another one"
        ));
    }
    if schemas.iter().any(|allowed| allowed == schema) {
        return Ok(());
    }
    let named = match schemas {
        [] => "names no schema".to_owned(),
        _ => format!("names only {}", schemas.join(", ")),
    };
    Err(format!(
        "the functions of the schema `{schema}` may not be called by job runs: jobs.sql_schemas {named}; add `{schema}` to it, for every process"
    ))
}

async fn signature(
    connection: &mut PgConnection,
    name: &SqlName,
) -> Result<Result<Signature, String>, StoreError> {
    let (schema, function) = name.parts();
    let row = sqlx::query!(
        r#"
        select function.pronargs = 0 as "takes_nothing!",
               -- A function with its owner's rights needs a grant of its own: a function that was never restricted is open to every role.
               function.prosecdef and not exists (
                   select
                     from aclexplode(function.proacl) as granted
                    where granted.privilege_type = 'EXECUTE'
                      and granted.grantee = 'postrider_worker'::regrole) as "needs_a_grant!",
               has_function_privilege('postrider_worker', function.oid, 'execute')
                   and has_schema_privilege('postrider_worker', schema.oid, 'usage') as "may_be_called!"
          from pg_catalog.pg_proc as function
          join pg_catalog.pg_namespace as schema on schema.oid = function.pronamespace
         where schema.nspname = $1
           and function.proname = $2
           and function.prokind = 'f'
           and not function.proretset
           and (function.pronargs = 0 or (function.pronargs = 1 and function.proargtypes[0] = 'pg_catalog.jsonb'::regtype))
         order by function.pronargs desc
         limit 1
        "#,
        schema,
        function,
    )
    .fetch_optional(unprepared(connection))
    .await
    .map_err(StoreError::on("looking for the function"))?;
    Ok(match row {
        None => Err(format!(
            "there is no function {name}(jsonb) in the database; create one that takes the input as jsonb and returns jsonb"
        )),
        Some(row) if !row.may_be_called => Err(format!(
            "the worker may not call {name}; run: grant usage on schema {schema} to postrider_worker; grant execute on function {name} to \
             postrider_worker"
        )),
        Some(row) if row.needs_a_grant => Err(format!(
            "{name} is `security definer`, so it must be granted to the worker by name; run: grant execute on function {name} to \
             postrider_worker"
        )),
        Some(row) if row.takes_nothing => Ok(Signature::Nothing),
        Some(_) => Ok(Signature::Input),
    })
}

async fn call(
    connection: &mut PgConnection,
    name: &SqlName,
    signature: Signature,
    input: &Value,
    timeout: Duration,
) -> Result<Value, End> {
    // The server stops the function when its time is up, and when the client has disconnected.
    let bounded = sqlx::query!(
        "select set_config('statement_timeout', $1, true) as timeout, set_config('client_connection_check_interval', '1s', true) as interval",
        timeout.as_millis().to_string(),
    )
    .fetch_one(unprepared(connection))
    .await;
    bounded.map_err(|error| failed(name, timeout, &error))?;
    let (schema, function) = name.parts();
    let arguments = match signature {
        Signature::Nothing => "",
        Signature::Input => "$1",
    };
    // The parts were checked to be plain identifiers when the name was made, and are quoted all the same.
    // A function without a result returns null, in whatever language.
    let statement = format!(
        r#"select case when pg_catalog.pg_typeof(called.result) <> 'pg_catalog.void'::pg_catalog.regtype
                       then pg_catalog.to_jsonb(called.result) end
             from (select "{schema}"."{function}"({arguments}) as result offset 0) as called"#
    );
    let mut query = sqlx::query_scalar::<_, Option<Value>>(AssertSqlSafe(statement)).persistent(false);
    if signature == Signature::Input {
        query = query.bind(input);
    }
    let result = query.fetch_one(&mut *connection).await.map_err(|error| failed(name, timeout, &error))?;
    let result = result.unwrap_or(Value::Null);
    if result.to_string().len() > VALUE_BYTES_MAX {
        let error = format!("{name} returned more than {VALUE_BYTES_MAX} bytes");
        return Err(End::Failed { error, retryable: false });
    }
    Ok(result)
}

fn failed(name: &SqlName, timeout: Duration, error: &sqlx::Error) -> End {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    let retryable = code.as_deref().is_none_or(is_retryable_sqlstate);
    let error = match error.as_database_error() {
        Some(_) if code.as_deref() == Some("57014") => {
            format!("{name} took longer than {timeout:?} and was stopped")
        }
        Some(error) => format!("{name}: {}", error.message()),
        None => format!("{name} could not be called: {error}"),
    };
    End::Failed { error, retryable }
}

async fn reset(connection: &mut PgConnection) -> Result<(), StoreError> {
    for statement in ["reset session authorization", "reset all"] {
        sqlx::query(statement)
            .persistent(false)
            .execute(&mut *connection)
            .await
            .map_err(StoreError::on("resetting the connection"))?;
    }
    Ok(())
}
