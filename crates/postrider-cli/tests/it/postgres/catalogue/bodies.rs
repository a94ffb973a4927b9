//! Reads the bodies of SQL functions: which tenants' rows a statement reaches, and which clock an update reads.
//!
//! The text is read, not the plan, because a plan shows one choice of the planner and the rule is about what a function says. The reader
//! knows what a tenant's row can be reached by: a table after `from`, `join`, `using`, `update`, `delete from` or `insert into`. Each
//! query in parentheses is a scope of its own, and so is each part of a union. In its scope a table needs an equality between its
//! `tenant_id` and the tenant: the argument `p_tenant_id`, `new` or `old` in a trigger, a variable that holds a tenant, or the
//! `tenant_id` of a table that is bound in the same way. A condition that names the tenant and does not filter by it (`or true`) is not
//! noticed, and neither is dynamic SQL.

use std::collections::BTreeSet;

/// Words that follow a table without being its alias.
const NOT_ALIASES: &[&str] = &[
    "cross",
    "default",
    "except",
    "for",
    "full",
    "group",
    "having",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "loop",
    "natural",
    "offset",
    "on",
    "order",
    "returning",
    "right",
    "set",
    "then",
    "union",
    "using",
    "values",
    "when",
    "where",
    "window",
];

/// Splits a body into words, numbers, operators and empty strings, in lower case and without comments.
fn tokens(body: &str) -> Vec<String> {
    let letters: Vec<char> = body.to_lowercase().chars().collect();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.';
    let mut found = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let (letter, next) = (letters[at], letters.get(at + 1).copied().unwrap_or(' '));
        let begin = at;
        match (letter, next) {
            ('-', '-') => at += letters[at..].iter().take_while(|letter| **letter != '\n').count(),
            ('/', '*') => {
                let end = letters[at..].windows(2).position(|pair| pair == ['*', '/']);
                at = end.map_or(letters.len(), |end| at + end + 2);
            }
            // Two quotes within a string are two strings here, which makes no difference.
            ('\'', _) => {
                at += 2 + letters[at + 1..].iter().take_while(|letter| **letter != '\'').count();
                found.push("''".to_owned());
            }
            _ if letter.is_whitespace() => at += 1,
            _ if is_word(letter) => {
                at += letters[at..].iter().take_while(|letter| is_word(**letter)).count();
                // The index of an array belongs to its name.
                if letters.get(at) == Some(&'[') {
                    let inner = letters[at + 1..].iter().take_while(|letter| is_word(**letter)).count();
                    if letters.get(at + 1 + inner) == Some(&']') {
                        at += inner + 2;
                    }
                }
                found.push(letters[begin..at].iter().collect());
            }
            (':' | '>' | '<' | '!' | '=', '=' | '>' | ':') => {
                at += 2;
                found.push(letters[begin..at].iter().collect());
            }
            _ => {
                at += 1;
                found.push(letter.to_string());
            }
        }
    }
    found
}

/// Splits a body at semicolons and at the words of plpgsql between which statements stand.
fn statements(tokens: &[String]) -> Vec<&[String]> {
    let mut found = Vec::new();
    let (mut begin, mut depth, mut cases) = (0, 0_i32, 0_i32);
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "(" => depth += 1,
            ")" => depth -= 1,
            "case" => cases += 1,
            "end" if cases > 0 => cases -= 1,
            ";" | "loop" | "then" | "else" | "begin" | "declare" if depth == 0 && cases == 0 => {
                found.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&tokens[begin..]);
    found
}

/// One query: its words without those of the queries in its parentheses, and these.
#[derive(Default)]
struct Scope<'a> {
    words: Vec<&'a str>,
    inner: Vec<&'a [String]>,
}

/// The parts of a statement that `union` and its like combine.
fn scopes(tokens: &[String]) -> Vec<Scope<'_>> {
    let mut found = vec![Scope::default()];
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if matches!(token.as_str(), "union" | "except" | "intersect") {
            found.push(Scope::default());
        }
        let scope = found.last_mut().unwrap();
        let begins_query = tokens
            .get(at + 1)
            .is_some_and(|next| ["select", "with", "insert", "update", "delete"].contains(&&**next));
        if token == "(" && begins_query {
            let mut depth = 0_i32;
            let length = tokens[at..].iter().take_while(|token| {
                depth += i32::from(token.as_str() == "(") - i32::from(token.as_str() == ")");
                depth > 0
            });
            let end = at + length.count();
            scope.inner.push(&tokens[at + 1..end]);
            scope.words.extend(["(", ")"]);
            at = end + 1;
        } else {
            scope.words.push(token);
            at += 1;
        }
    }
    found
}

/// Whether an expression is one tenant, whatever the query: an argument, a variable, or the row of a trigger.
fn is_one_tenant(expression: &str) -> bool {
    let is_variable = expression.starts_with("v_")
        && (expression.ends_with("tenant_id") || expression.contains("tenant_ids["));
    is_variable
        || ["p_tenant_id", "new.tenant_id", "old.tenant_id"].contains(&expression)
        || expression.starts_with("tenancy.system_tenant_id (")
}

/// The use of a tenant table in a scope.
enum Use<'a> {
    /// Reads or changes rows under this expression for the tenant.
    Rows { table: &'a str, tenant: String },
    /// Inserts rows whose `tenant_id` is this expression, if it is given.
    Insert { table: &'a str, tenant: Option<String> },
}

fn uses<'a>(words: &[&'a str], tables: &BTreeSet<String>) -> Vec<Use<'a>> {
    let mut found = Vec::new();
    for (at, &table) in words.iter().enumerate().filter(|(_, word)| tables.contains(**word)) {
        let before = |steps: usize| at.checked_sub(steps).map_or("", |place| words[place]);
        match before(1) {
            "into" if before(2) == "insert" => {
                found.push(Use::Insert { table, tenant: inserted_tenant(&words[at + 1..]) });
            }
            "from" | "join" | "using" | "update" | "only" | "," => {
                let next = |steps: usize| words.get(at + steps).copied().unwrap_or_default();
                let alias = if next(1) == "as" { next(2) } else { next(1) };
                let is_alias = alias.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
                    && !NOT_ALIASES.contains(&alias);
                let tenant = if is_alias { format!("{alias}.tenant_id") } else { "tenant_id".to_owned() };
                found.push(Use::Rows { table, tenant });
            }
            // A type, as in a declaration.
            _ => {}
        }
    }
    found
}

/// The expression that an insert gives to `tenant_id`. It gets what follows the name of the table.
fn inserted_tenant(words: &[&str]) -> Option<String> {
    let open = words.iter().position(|word| *word == "(")?;
    let close = open + words[open..].iter().position(|word| *word == ")")?;
    let place = words[open..close]
        .iter()
        .filter(|word| **word != "," && **word != "(")
        .position(|word| *word == "tenant_id")?;
    let (["values", "(", values @ ..] | ["select", values @ ..]) = words.get(close + 1..)? else {
        return None;
    };
    let mut items = vec![Vec::new()];
    let mut depth = 0_i32;
    for word in values {
        depth += i32::from(*word == "(") - i32::from(*word == ")");
        match *word {
            _ if depth < 0 => break,
            "from" | "where" if depth == 0 => break,
            "," if depth == 0 => items.push(Vec::new()),
            word => items.last_mut().unwrap().push(word),
        }
    }
    items.get(place).map(|item| item.join(" "))
}

/// Uses of tenant tables without a filter by the tenant. In a batch, the tenant may also come with each row: from an array of arguments or
/// from another part of the statement.
pub fn unfiltered(body: &str, tables: &BTreeSet<String>, is_batch: bool) -> Vec<String> {
    let mut found = Vec::new();
    for statement in statements(&tokens(body)) {
        look(statement, &BTreeSet::new(), tables, is_batch, &mut found);
    }
    found
}

fn look(
    tokens: &[String],
    outer: &BTreeSet<String>,
    tables: &BTreeSet<String>,
    is_batch: bool,
    found: &mut Vec<String>,
) {
    for Scope { words, inner } in scopes(tokens) {
        let uses = uses(&words, tables);
        let rows: BTreeSet<&str> = uses
            .iter()
            .filter_map(|each| if let Use::Rows { tenant, .. } = each { Some(tenant.as_str()) } else { None })
            .collect();
        let mut bound: BTreeSet<String> =
            outer.iter().filter(|tenant| !rows.contains(tenant.as_str())).cloned().collect();
        let is_bound = |expression: &str, bound: &BTreeSet<String>| {
            bound.contains(expression)
                || (!rows.contains(expression) && (is_batch || is_one_tenant(expression)))
        };
        // Equalities bind one table after the other, in any order.
        loop {
            let before = bound.len();
            for pair in words.windows(3).filter(|pair| pair[1] == "=") {
                for (one, other) in [(pair[0], pair[2]), (pair[2], pair[0])] {
                    if (one == "tenant_id" || one.ends_with(".tenant_id")) && is_bound(other, &bound) {
                        bound.insert(one.to_owned());
                    }
                }
            }
            if bound.len() == before {
                break;
            }
        }
        // Where there is one table, its column needs no alias.
        if let ([only], true) = (&*rows.iter().collect::<Vec<_>>(), bound.contains("tenant_id")) {
            bound.insert((**only).to_owned());
        }
        for each in &uses {
            match each {
                Use::Rows { table, tenant } => {
                    let by_table = table.split_once('.').map(|(_, name)| format!("{name}.tenant_id"));
                    let is_named_by_table =
                        tenant == "tenant_id" && by_table.is_some_and(|name| bound.contains(&name));
                    if !bound.contains(tenant) && !is_named_by_table {
                        found.push(format!("{table} without a filter on {tenant}"));
                    }
                }
                Use::Insert { table, tenant } => {
                    if !tenant.as_ref().is_some_and(|tenant| is_bound(tenant, &bound)) {
                        found.push(format!("insert into {table} with the tenant {tenant:?}"));
                    }
                }
            }
        }
        for query in inner {
            look(query, &bound, tables, is_batch, found);
        }
    }
}

/// Clocks that an update reads in a way that Citus refuses: anything but `now()` by itself.
pub fn clocks_in_updates(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    for statement in statements(&tokens(body)) {
        look_for_clocks(statement, &mut found);
    }
    found
}

fn look_for_clocks(tokens: &[String], found: &mut Vec<String>) {
    for Scope { words, inner } in scopes(tokens) {
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "update") {
            let next = words.get(at + 1).copied().unwrap_or_default();
            let is_upsert = next == "set" && at > 0 && words[at - 1] == "do";
            if !is_upsert && !next.contains('.') {
                continue;
            }
            let (mut cases, mut functions) = (0_i32, Vec::new());
            for (place, &word) in words.iter().enumerate().skip(at + 1) {
                match word {
                    "case" => cases += 1,
                    "end" if cases > 0 => cases -= 1,
                    "(" => functions.push(words[place - 1]),
                    ")" => drop(functions.pop()),
                    "clock_timestamp" => found.push("clock_timestamp() in an update".to_owned()),
                    "now" | "current_timestamp"
                        if cases > 0 || is_upsert || functions.contains(&"coalesce") =>
                    {
                        found.push("now() within case, coalesce or do update set".to_owned());
                    }
                    _ => {}
                }
            }
        }
        for query in inner {
            look_for_clocks(query, found);
        }
    }
}

/// Clocks that a body in PL/pgSQL reads more than once. It should read each of them once, into a variable. Plain SQL has no variables.
pub fn repeated_clocks(body: &str) -> Vec<&'static str> {
    let tokens = tokens(body);
    if !tokens.iter().any(|token| token == "begin") {
        return Vec::new();
    }
    let reads = |clock: &&str| {
        tokens
            .windows(2)
            .filter(|pair| pair[0] == *clock && (pair[1] == "(" || *clock == "current_timestamp"))
            .count()
    };
    ["now", "clock_timestamp", "statement_timestamp", "current_timestamp"]
        .into_iter()
        .filter(|clock| reads(clock) > 1)
        .collect()
}

/// Whether a body changes or locks rows.
pub fn writes_or_locks(body: &str) -> bool {
    let tokens = tokens(body);
    let is_for = |pair: &[String]| pair[0] == "for" && ["update", "share", "no", "key"].contains(&&*pair[1]);
    tokens.iter().any(|token| ["insert", "update", "delete", "lock", "truncate", "merge"].contains(&&**token))
        || tokens.windows(2).any(is_for)
}

/// Whether a body names any of these tables or functions.
pub fn names_any(body: &str, names: &BTreeSet<String>) -> bool {
    tokens(body).iter().any(|token| names.contains(token))
}

mod tests {
    use super::*;

    fn found(body: &str, is_batch: bool) -> Vec<String> {
        let tables = ["s.a", "s.b"].map(str::to_owned).into();
        unfiltered(body, &tables, is_batch)
    }

    #[test]
    fn filtered_statements_are_accepted() {
        for body in [
            "select * from s.a as a where a.tenant_id = p_tenant_id and a.id = p_id",
            "select * from s.a where tenant_id = p_tenant_id",
            "select exists (select from s.b as b where b.tenant_id = a.tenant_id) from s.a as a where tenant_id = p_tenant_id",
            "delete from s.a as a using s.b as b where p_tenant_id = a.tenant_id and b.tenant_id = a.tenant_id",
            "begin if exists (select from s.a as a where a.tenant_id = p_tenant_id) then
                 update s.b as b set at = case when b.x then now() else null end where b.tenant_id = p_tenant_id; end if; end",
            "select from s.a as a where a.tenant_id = p_tenant_id
                and exists (select from s.b as b where b.tenant_id = a.tenant_id)",
            "insert into s.a (id, tenant_id) values (f(p_id, 1), p_tenant_id) on conflict do nothing",
            "insert into s.a (tenant_id, id) select a.tenant_id, a.id from s.b as a where a.tenant_id = v_one.tenant_id",
            "insert into s.a (id, tenant_id) select 1, tenancy.system_tenant_id() where true",
            "select from s.a as old where old.tenant_id = p_tenant_id",
            "declare v_row s.a; begin -- from s.a
                 return; end",
            "select 'from s.a', 'it''s from s.a'",
            "update s.a set x = 1 where tenant_id = new.tenant_id and id = v_tenant_ids[n]",
        ] {
            assert_eq!(found(body, false), [""; 0], "{body}");
        }
    }

    #[test]
    fn clocks_that_are_read_twice_are_found() {
        assert_eq!(repeated_clocks("begin x := now() + f(clock_timestamp()); -- now()\n end"), [""; 0]);
        assert_eq!(
            repeated_clocks("declare v timestamptz := now(); begin update s.a set x = now (); end"),
            ["now"]
        );
        assert_eq!(repeated_clocks("select now() > a or now() < b"), [""; 0]);
    }

    #[test]
    fn statements_that_reach_other_tenants_are_found() {
        for (body, expected) in [
            ("select * from s.a as a where a.id = p_id", "s.a without a filter on a.tenant_id"),
            ("select * from s.a where id = p_id", "s.a without a filter on tenant_id"),
            (
                "select * from s.a as a join s.b as b on b.id = a.b_id where a.tenant_id = p_tenant_id",
                "s.b without a filter on b.tenant_id",
            ),
            (
                "select * from s.a as a join s.b as b on b.id = a.b_id where tenant_id = p_tenant_id",
                "s.b without a filter on b.tenant_id",
            ),
            // Each query needs its own filter.
            (
                "select from s.a as a where a.tenant_id = p_tenant_id union all select from s.a as a",
                "s.a without a filter on a.tenant_id",
            ),
            (
                "select from s.a as a where a.tenant_id = p_tenant_id and exists (select from s.a as a where a.id = 1)",
                "s.a without a filter on a.tenant_id",
            ),
            (
                "if a then delete from s.a as a where a.tenant_id = p_tenant_id; else delete from s.b as b; end if",
                "s.b without a filter on b.tenant_id",
            ),
            // Two tables that are only equal to each other.
            (
                "select from s.a as a join s.b as b on b.tenant_id = a.tenant_id",
                "s.a without a filter on a.tenant_id",
            ),
            ("select from s.a as old where old.id = p_id", "s.a without a filter on old.tenant_id"),
            ("select from s.a as a where a.tenant_id <> p_tenant_id", "s.a without a filter on a.tenant_id"),
            (
                "select from s.a as a where a.tenant_id = any (p_tenant_ids)",
                "s.a without a filter on a.tenant_id",
            ),
            ("insert into s.a (id) values (1)", "insert into s.a with the tenant None"),
            (
                "insert into s.a (id, tenant_id) values (1, p_id)",
                "insert into s.a with the tenant Some(\"p_id\")",
            ),
            (
                "select from unnest(p_tenants) as one (tenant_id) join s.a as a on a.tenant_id = one.tenant_id",
                "s.a without a filter on a.tenant_id",
            ),
        ] {
            assert!(
                found(body, false).iter().any(|found| found == expected),
                "{body}: {:?}",
                found(body, false)
            );
        }
    }

    #[test]
    fn a_batch_names_the_tenant_of_each_row() {
        let good =
            "select from unnest(p_tenants) as one (tenant_id) join s.a as a on a.tenant_id = one.tenant_id";
        assert_eq!(found(good, true), [""; 0]);
        let bad = "select from unnest(p_ids) as one (id) join s.a as a on a.id = one.id";
        assert_eq!(found(bad, true), ["s.a without a filter on a.tenant_id"]);
    }

    #[test]
    fn clocks_in_updates_are_found() {
        for (body, count) in [
            ("update s.a set at = now() where at < now() - interval '1 day'", 0),
            ("update s.a set at = v_now, due = case when x then v_now end", 0),
            ("select coalesce(at, now()) from s.a", 0),
            ("insert into s.a (at) values (clock_timestamp()) on conflict do nothing", 0),
            ("update s.a set at = clock_timestamp()", 1),
            ("update s.a set at = case when x then now() end", 1),
            ("update s.a set at = coalesce(at, now())", 1),
            ("insert into s.a (at) values (now()) on conflict (id) do update set at = now()", 1),
            ("with b as (update s.a set at = coalesce(at, now()) returning id) select id from b", 1),
        ] {
            assert_eq!(clocks_in_updates(body).len(), count, "{body}");
        }
    }

    #[test]
    fn locks_and_changes_are_found() {
        for (body, expected) in [
            ("select from s.a for update skip locked", true),
            ("select from s.a for key share", true),
            ("lock table s.a in exclusive mode", true),
            ("delete from s.a", true),
            ("select updated_at from s.a", false),
        ] {
            assert_eq!(writes_or_locks(body), expected, "{body}");
        }
    }
}
