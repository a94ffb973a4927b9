//! Compares the database with the frozen contracts of the model.

use std::collections::{BTreeMap, BTreeSet};

use postrider_model::contract::{CONTRACTS, Contract, Function, Table, Words};
use sqlx::PgConnection;

use crate::postgres::unprepared::unprepared;

/// One sentence per difference between the database and the contracts. None means that they hold.
pub(crate) async fn violations(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let found = Found::read(connection).await?;
    Ok(CONTRACTS.iter().flat_map(|contract| found.compare(contract)).collect())
}

/// The objects of the database that contracts list.
#[derive(Debug, Default)]
struct Found {
    /// Columns and their types, by table.
    columns: BTreeMap<String, BTreeMap<String, String>>,
    /// Arguments and results, by function.
    functions: BTreeMap<String, Vec<(String, String)>>,
    /// Words that a check constraint of one column allows, by table and column.
    words: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Found {
    async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let mut schemas: Vec<String> = CONTRACTS
            .iter()
            .flat_map(|contract| {
                let tables = contract.tables.iter().map(|table| table.name);
                tables.chain(contract.functions.iter().map(|function| function.name))
            })
            .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
            .collect();
        schemas.sort_unstable();
        schemas.dedup();

        let mut found = Self::default();
        for column in sqlx::query_file!("sql/postgres/contract_columns.sql", &schemas)
            .fetch_all(unprepared(&mut *connection))
            .await?
        {
            let columns = found.columns.entry(column.table).or_default();
            columns.extend(column.name.zip(column.kind));
        }
        for function in sqlx::query_file!("sql/postgres/contract_functions.sql", &schemas)
            .fetch_all(unprepared(&mut *connection))
            .await?
        {
            found.functions.entry(function.name).or_default().push((function.arguments, function.result));
        }
        for words in sqlx::query_file!("sql/postgres/contract_words.sql", &schemas)
            .fetch_all(unprepared(connection))
            .await?
        {
            found.words.insert((words.table, words.column), words.words.into_iter().collect());
        }
        Ok(found)
    }

    fn compare(&self, contract: &Contract) -> Vec<String> {
        let mut violations = Vec::new();
        for table in contract.tables {
            self.compare_columns(table, &mut violations);
            for words in table.words {
                self.compare_words(table, words, &mut violations);
            }
        }
        for function in contract.functions {
            self.compare_function(function, &mut violations);
        }
        if let Some(schema) = contract.only_these_in {
            self.find_others(contract, schema, &mut violations);
        }
        violations
    }

    fn compare_columns(&self, table: &Table, violations: &mut Vec<String>) {
        let name = table.name;
        let Some(columns) = self.columns.get(name) else {
            violations.push(format!("{name} is missing"));
            return;
        };
        let wanted: BTreeMap<&str, &str> = table.columns.iter().chain(table.ours).copied().collect();
        for (column, kind) in &wanted {
            match columns.get(*column) {
                None => violations.push(format!("{name} has no column {column}")),
                Some(found) if found != kind => {
                    violations.push(format!("{name}.{column} is {found}; the contract says {kind}"));
                }
                Some(_) => {}
            }
        }
        for column in columns.keys().filter(|column| !wanted.contains_key(column.as_str())) {
            violations.push(format!("{name} has a column {column}, which the contract does not list"));
        }
    }

    fn compare_words(&self, table: &Table, words: &Words, violations: &mut Vec<String>) {
        let at = format!("{}.{}", table.name, words.column);
        let Some(found) = self.words.get(&(table.name.to_owned(), words.column.to_owned())) else {
            violations.push(format!("{at} has no check constraint that lists its words"));
            return;
        };
        let wanted: BTreeSet<String> =
            words.words.iter().chain(words.ours).map(|&word| word.to_owned()).collect();
        for word in wanted.difference(found) {
            violations.push(format!("{at} does not allow {word}"));
        }
        for word in found.difference(&wanted) {
            violations.push(format!("{at} allows {word}, which the contract does not list"));
        }
    }

    fn compare_function(&self, function: &Function, violations: &mut Vec<String>) {
        let name = function.name;
        let found = self.functions.get(name).map(Vec::as_slice).unwrap_or_default();
        if found.len() != 1 {
            violations.push(format!("{name} has {} signatures instead of one", found.len()));
        }
        for (arguments, result) in found {
            if (arguments.as_str(), result.as_str()) != (function.arguments, function.result) {
                violations.push(format!(
                    "{name}({arguments}) returns {result}; the contract says ({}) returns {}",
                    function.arguments, function.result
                ));
            }
        }
    }

    /// Tables and functions of a schema that its contract does not list.
    fn find_others(&self, contract: &Contract, schema: &str, violations: &mut Vec<String>) {
        let listed: BTreeSet<&str> = contract
            .tables
            .iter()
            .map(|table| table.name)
            .chain(contract.functions.iter().map(|function| function.name))
            .collect();
        let start = format!("{schema}.");
        let others = self
            .columns
            .keys()
            .chain(self.functions.keys())
            .filter(|name| name.starts_with(&start) && !listed.contains(name.as_str()));
        violations.extend(
            others.map(|name| format!("{name} is in schema {schema}, and the contract does not list it")),
        );
    }
}
