//! Statements that leave nothing behind on the server.
//!
//! sqlx gives every statement of its checked macros a name, under which a pooler in transaction mode may prepare it on one server
//! and execute it on another. The statements here run without a name and are not kept prepared, whatever the macro asked for.

use futures::{future::BoxFuture, stream::BoxStream};
use sqlx::{
    Either, Error, Execute, Executor, PgConnection, Postgres, SqlStr,
    error::BoxDynError,
    postgres::{PgArguments, PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

/// Runs the next statement without preparing it under a name.
pub(crate) fn unprepared(connection: &mut PgConnection) -> Unprepared<'_> {
    Unprepared(connection)
}

#[derive(Debug)]
pub(crate) struct Unprepared<'c>(&'c mut PgConnection);

impl<'c> Executor<'c> for Unprepared<'c> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.0.fetch_many(WithoutName(query))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.0.fetch_optional(WithoutName(query))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'c: 'e,
    {
        self.0.prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, Error>>
    where
        'c: 'e,
    {
        self.0.describe(sql)
    }
}

struct WithoutName<E>(E);

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for WithoutName<E> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.0.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}
