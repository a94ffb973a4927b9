//! The signatures of functions, which never change in place: a migration refuses a function that the database has and no file defines.

use sqlx::PgConnection;

use super::sources::Tree;
use crate::postgres::unprepared::unprepared;

/// The schemas in which every function has a definition in `sql/`.
const SCHEMAS: [&str; 7] =
    ["postrider.", "tenancy.", "events.", "m10_recovery.", "execution.", "channels.", "jobs."];

/// The functions that an SQL text defines in schemas of Postrider: name and argument types, as in `jobs.f(uuid, text)`.
#[must_use]
pub fn signatures(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let starts = text.match_indices(" function ").filter(|(at, _)| {
        let before = text[..*at].trim_end();
        before.ends_with("create") || before.ends_with("create or replace")
    });
    starts
        .filter_map(|(at, word)| {
            let rest = &text[at + word.len()..];
            let (name, rest) = rest.split_once('(')?;
            let is_ours = SCHEMAS.iter().any(|schema| name.trim().starts_with(schema));
            is_ours.then(|| format!("{}({})", name.trim(), argument_types(rest)))
        })
        .collect()
}

/// The types of an argument list that begins here and ends with its parenthesis. Results among them do not count.
fn argument_types(text: &str) -> String {
    let mut depth = 0_i32;
    let mut arguments = vec![String::new()];
    for letter in text.chars() {
        match letter {
            ')' if depth == 0 => break,
            ',' if depth == 0 => arguments.push(String::new()),
            _ => {
                depth += i32::from(letter == '(') - i32::from(letter == ')');
                if let Some(argument) = arguments.last_mut() {
                    argument.push(letter);
                }
            }
        }
    }
    let kind = |argument: &String| {
        let bare = argument.split(" default ").next().unwrap_or_default().trim();
        let words: Vec<&str> = bare.split_whitespace().collect();
        match &*words {
            [] | ["out", ..] => None,
            [only] => Some((*only).to_owned()),
            [_, kind @ ..] => Some(kind.join(" ")),
        }
    };
    arguments.iter().filter_map(kind).collect::<Vec<_>>().join(", ")
}

/// Functions that the database has in these schemas and no file of the release defines.
pub(super) async fn orphans(connection: &mut PgConnection, tree: &Tree) -> Result<Vec<String>, sqlx::Error> {
    let schemas: Vec<String> = tree.schemas().map(str::to_owned).collect();
    let defined: Vec<String> = tree.sources.iter().flat_map(|source| signatures(&source.sql)).collect();
    sqlx::query_file_scalar!("sql/postgres/orphaned_functions.sql", &schemas, &defined)
        .fetch_all(unprepared(connection))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_recognized_by_its_name_and_types() {
        let text = "create or replace function jobs.f(p_a text, p_b numeric(4, 1) default 1, out c uuid)\nreturns x\n\
                    CREATE FUNCTION execution.g(uuid) returns trigger; create function other.h() drop function jobs.f(text)";
        assert_eq!(signatures(text), ["jobs.f(text, numeric(4, 1))", "execution.g(uuid)"]);
    }
}
