//! Errors between Postrider and its database.

use std::borrow::Cow;

/// SQLSTATE of a function whose caller does not hold the claim of the event or send job that it names.
pub const CLAIM_NOT_HELD: &str = "PR001";

/// SQLSTATE of a single message whose key was used for another one.
const KEY_OF_ANOTHER_MESSAGE: &str = "PR005";

/// SQLSTATEs of a reservation on a restored copy, and of one under a timeline or an epoch that its process has not compared.
pub const SENDING_REFUSED: [&str; 2] = ["PR002", "PR003"];

/// An error of the store. Each variant is something a caller can act on.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, or refuses the login.
    #[error("cannot connect to the database: {reason}; {}", advice.about(setting))]
    Unreachable {
        /// The cause in one line.
        reason: String,
        /// The advice.
        advice: Advice,
        /// The setting that the URL came from.
        setting: &'static str,
    },
    /// The database refused the input. Nothing was written.
    #[error("{message}")]
    Refused {
        /// The problem.
        message: String,
        /// The advice of the database, if any.
        hint: Option<String>,
    },
    /// The input conflicts with stored data: a name that is taken, an account in use. Nothing was written.
    #[error("{message}")]
    Conflict {
        /// The conflict.
        message: String,
    },
    /// The caller does not hold the claim any more.
    #[error("{message}")]
    ClaimNotHeld {
        /// The claim, and the caller.
        message: String,
    },
    /// The database refuses reservations: it may be a restored copy. Nothing was written.
    #[error("{message}")]
    SendingRefused {
        /// The reason.
        message: String,
    },
    /// The installation cannot be served as it is; the sentence says why and what to do.
    #[error("{0}")]
    Unfit(String),
    /// A statement failed for a reason that is not the caller's: lost connection, timeout, bug.
    #[error("{doing} failed")]
    Failed {
        /// The operation.
        doing: &'static str,
        /// The cause.
        #[source]
        source: sqlx::Error,
    },
}

/// Advice for a database that cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The setting holds something that is not a URL.
    Url,
    /// User or password are wrong.
    Login,
    /// There is no such database.
    Database,
    /// The server has no connection left.
    Connections,
    /// The server is not ready.
    Wait,
    /// The server's log has the reason.
    Log,
    /// No server answers at the address.
    Address,
}

impl Advice {
    fn about(self, setting: &str) -> String {
        match self {
            Self::Url => {
                format!("correct {setting}, as in postgres://user:password@host:5432/database")
            }
            Self::Login => format!("check user and password in {setting}"),
            Self::Database => format!("create it with `createdb`, or correct the name in {setting}"),
            Self::Connections => {
                "the server, the database or the login has no connection left; raise max_connections or the connection limit, \
                 or lower database.connections_max"
                    .to_owned()
            }
            Self::Wait => "the server is starting up or shutting down; try again in a moment".to_owned(),
            Self::Log => "see the server's log".to_owned(),
            Self::Address => format!("check that it runs and that host and port in {setting} are right"),
        }
    }
}

/// The setting that is named where the caller names none.
pub const DATABASE_URL: &str = "database.url";

impl StoreError {
    /// Names the setting that the database's URL came from, where the database could not be reached.
    #[must_use]
    pub fn with_setting(self, name: &'static str) -> Self {
        match self {
            Self::Unreachable { reason, advice, .. } => Self::Unreachable { reason, advice, setting: name },
            other => other,
        }
    }

    /// Sorts a database error: mistakes of the caller apart from everything else.
    pub(crate) fn on(doing: &'static str) -> impl Fn(sqlx::Error) -> Self {
        move |source| {
            let Some(error) = source.as_database_error() else {
                return Self::Failed { doing, source };
            };
            let message = error.message().to_owned();
            let hint = error
                .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
                .and_then(|error| error.hint().map(str::to_owned));
            match error.code().unwrap_or(Cow::Borrowed("")).as_ref() {
                KEY_OF_ANOTHER_MESSAGE => Self::Conflict { message },
                CLAIM_NOT_HELD => Self::ClaimNotHeld { message },
                code if SENDING_REFUSED.contains(&code) => Self::SendingRefused { message },
                // Bad text, number out of range, invalid parameter, limit, check, unique, foreign key, no such row, not null, JSON text.
                "22021" | "22003" | "22023" | "54000" | "23514" | "23505" | "23503" | "P0002" | "23502"
                | "22P02" | "22P05" => Self::Refused { message, hint },
                _ => Self::Failed { doing, source },
            }
        }
    }

    /// Whether the database was not available, as opposed to refusing the statement.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Failed { source, .. } => match source {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed => true,
                // Connection exceptions, and a server that starts, stops or has no free connection.
                sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                    code.starts_with("08") || code.starts_with("57P0") || code == "53300"
                }),
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether a retry may succeed: the database was not available, had no space, or another session was in the way.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        // Deadlocks and the like; no space, memory or connection left; trouble with files; lock, statement and idle timeouts;
        // a standby that is about to become the server.
        let passes = |code: String| {
            ["40", "53", "58"].iter().any(|class| code.starts_with(class))
                || ["55P03", "57014", "25P03", "25P04", "25006"].contains(&code.as_str())
        };
        if let Self::Failed { source: sqlx::Error::Protocol(_), .. } = self {
            return true;
        }
        self.is_outage() || self.sqlstate().is_some_and(passes)
    }

    /// Whether the statement took longer than its transaction allows.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.sqlstate().is_some_and(|code| code == "57014")
    }

    /// The server's code, where it answered with one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Failed { source: sqlx::Error::Database(error), .. } => error.code().map(Cow::into_owned),
            _ => None,
        }
    }

    /// The constraint that was violated, if that is what happened.
    pub(crate) fn constraint(error: &sqlx::Error) -> Option<&str> {
        error.as_database_error().and_then(|error| error.constraint())
    }
}
