//! How many database connections a process opens: one place for `serve`, `doctor` and the documentation.

use std::collections::BTreeMap;

use postrider_model::error_chain;
use postrider_store::postgres::{
    capacity::{self, Capacity},
    doctor::Finding,
};

use crate::{
    Role,
    config::Config,
    installation::{Installation, Login},
};

/// Imports share so many connections, chunk by chunk.
pub const IMPORTS: u32 = 2;
/// Retention removes what is old in small steps.
pub const RETENTION: u32 = 1;
/// The witness compares the database with what is known to be committed.
pub const WITNESS: u32 = 1;

/// Which URL a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    App,
    Worker,
    Listen,
}

/// Connections of one kind. A pool opens them when they are needed, up to this many.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// A role, or what is shared by several.
    of: &'static str,
    way: Way,
    count: u32,
}

/// All connections of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connections(Vec<Part>);

impl Connections {
    /// Those of a process with these roles.
    pub fn of(config: &Config, roles: &[Role]) -> Self {
        use Role::{Api, Campaigns, Dispatcher, Relay, Resolver, Scheduler};

        let has = |role| roles.contains(&role);
        let each = config.database.connections_max;
        let sql = u32::try_from(config.jobs.sql_concurrency).unwrap_or(u32::MAX);
        let part = |of, way, count| Part { of, way, count };
        let mut parts = vec![part("every process", Way::App, each)];
        for role in roles {
            match role {
                Api => parts.extend([part("api", Way::App, IMPORTS), part("api", Way::Listen, 1)]),
                Campaigns => parts.extend([
                    part("campaigns", Way::Worker, each + config.campaigns.commit_connections),
                    part("campaigns", Way::Listen, 1),
                ]),
                Resolver => parts.push(part("resolver", Way::Worker, each)),
                Dispatcher => {
                    parts.push(part("dispatcher", Way::Worker, each));
                    if config.channels.outbox.enabled {
                        parts.push(part("dispatcher", Way::Listen, 1));
                    }
                }
                Relay => {
                    parts.push(part("relay", Way::Worker, each));
                    if !config.relay.sinks.is_empty() {
                        parts.push(part("relay", Way::Listen, 1));
                    }
                }
                Scheduler => parts.extend([
                    part("scheduler", Way::Worker, each.saturating_add(sql)),
                    part("scheduler", Way::Listen, 2),
                ]),
            }
        }
        if has(Api) || has(Scheduler) {
            parts.push(part("api or scheduler", Way::Listen, 1));
        }
        if roles.iter().any(|role| *role != Api) {
            parts.push(part("any role but api", Way::Worker, RETENTION + WITNESS));
        }
        Self(parts)
    }

    pub fn total(&self) -> u32 {
        self.sum(|_| true)
    }

    fn sum(&self, counts: impl Fn(&Part) -> bool) -> u32 {
        self.0.iter().filter(|part| counts(part)).fold(0, |sum, part| sum.saturating_add(part.count))
    }

    /// Such as `campaigns 7, relay 5`.
    fn listed(&self) -> String {
        let mut by_role: BTreeMap<&str, u32> = BTreeMap::new();
        for part in &self.0 {
            *by_role.entry(part.of).or_default() += part.count;
        }
        by_role.iter().map(|(of, count)| format!("{of} {count}")).collect::<Vec<_>>().join(", ")
    }
}

/// Limits of the server, as far as it reports them.
struct ServerLimits {
    /// For each way that leads to the server itself.
    direct: BTreeMap<Way, Capacity>,
    /// The ways that lead through a pooler or proxy.
    indirect: Vec<Way>,
}

impl ServerLimits {
    async fn ask(installation: &Installation) -> anyhow::Result<Self> {
        let ways = [Way::App, Way::Worker, Way::Listen];
        let logins = installation.logins();
        let [_, _, Login { url, setting }] = logins;
        let direct_address = capacity::address(url).map_err(|error| error.with_setting(setting))?;
        let mut limits = Self { direct: BTreeMap::new(), indirect: Vec::new() };
        for (way, Login { url, setting }) in ways.into_iter().zip(logins) {
            let answer = capacity::ask(url).await.map_err(|error| error.with_setting(setting))?;
            // `database.listen_url` names the server itself where the others lead through a pooler.
            let address = capacity::address(url).map_err(|error| error.with_setting(setting))?;
            let is_elsewhere = way != Way::Listen && address != direct_address;
            if answer.is_indirect || is_elsewhere {
                limits.indirect.push(way);
            } else {
                limits.direct.insert(way, answer);
            }
        }
        Ok(limits)
    }

    /// Why these connections can never be open at the same time, and what to change.
    fn refusal(&self, needed: &Connections) -> Option<String> {
        let direct = |part: &Part| self.direct.contains_key(&part.way);
        let all = needed.sum(direct);
        let limit = |limit: i32| u32::try_from(limit).unwrap_or(0);
        let lower = "lower database.connections_max, campaigns.commit_connections or jobs.sql_concurrency, or serve fewer roles \
                     in one process";
        for capacity in self.direct.values() {
            let of_login = needed
                .sum(|part| self.direct.get(&part.way).is_some_and(|other| other.login == capacity.login));
            let (allowed, needs, raise) = match capacity {
                Capacity { login, login_limit: Some(allowed), .. } if of_login > limit(*allowed) => (
                    format!("the login `{login}` may have {allowed}"),
                    of_login,
                    format!("`alter role {login} connection limit {of_login}`"),
                ),
                Capacity { database, database_limit: Some(allowed), .. } if all > limit(*allowed) => (
                    format!("the database `{database}` allows {allowed}"),
                    all,
                    format!("`alter database {database} connection limit {all}`"),
                ),
                Capacity { max_connections, reserved, .. } if all > limit(capacity.available()) => (
                    format!(
                        "the server allows {} (max_connections = {max_connections}, of which {reserved} are reserved)",
                        capacity.available()
                    ),
                    all,
                    format!("raise max_connections to {} at least", all.saturating_add(limit(*reserved))),
                ),
                _ => continue,
            };
            return Some(format!(
                "this process needs up to {needs} database connections ({}), and {allowed}; {raise}, or {lower}",
                needed.listed()
            ));
        }
        None
    }

    /// The assumption about connections through a pooler.
    fn assumed(&self, needed: &Connections) -> Option<String> {
        let through = needed.sum(|part| self.indirect.contains(&part.way));
        (through > 0).then(|| {
            format!(
                "the database is reached through a pooler or proxy, which cannot be asked for its limits: it is assumed to accept \
                 {through} connections of this process"
            )
        })
    }

    /// Free connections at this moment, where they are fewer than needed.
    fn shortage(&self, needed: &Connections) -> Option<String> {
        let all = i64::from(needed.sum(|part| self.direct.contains_key(&part.way)));
        let capacity = self.direct.values().next()?;
        let free = i64::from(capacity.available()) - capacity.used;
        (all > free).then(|| {
            format!(
                "this process needs up to {all} database connections, and {free} of {} are free now; raise max_connections if the \
                 others stay",
                capacity.available()
            )
        })
    }
}

/// Refuses a process whose connections do not fit, and logs what cannot be known.
pub async fn check(config: &Config, roles: &[Role], installation: &Installation) -> anyhow::Result<()> {
    let needed = Connections::of(config, roles);
    let limits = ServerLimits::ask(installation).await?;
    if let Some(refusal) = limits.refusal(&needed) {
        anyhow::bail!(refusal);
    }
    if let Some(assumed) = limits.assumed(&needed) {
        tracing::info!("{assumed}");
    }
    if let Some(shortage) = limits.shortage(&needed) {
        tracing::warn!("{shortage}");
    }
    Ok(())
}

/// Lines of `doctor` about the connections of a process with these roles.
pub async fn examine(config: &Config, roles: &[Role], installation: &Installation) -> Finding {
    const CHECK: &str = "connections";
    let needed = Connections::of(config, roles);
    let limits = match ServerLimits::ask(installation).await {
        Ok(limits) => limits,
        Err(error) => {
            let problem = error_chain(error.as_ref());
            let (problem, advice) = problem.split_once("; ").unwrap_or((problem.as_str(), "correct the URL"));
            return Finding::failure(CHECK, format!("the limits cannot be read: {problem}"), advice);
        }
    };
    let found = format!("a process needs up to {}: {}", needed.total(), needed.listed());
    if let Some(refusal) = limits.refusal(&needed) {
        let (problem, advice) = refusal.split_once("; ").unwrap_or((refusal.as_str(), ""));
        return Finding::failure(CHECK, problem, advice);
    }
    if let Some(shortage) = limits.shortage(&needed) {
        let (problem, advice) = shortage.split_once("; ").unwrap_or((shortage.as_str(), ""));
        return Finding::warning(CHECK, format!("{found}; {problem}"), advice);
    }
    if let Some(assumed) = limits.assumed(&needed) {
        return Finding::ok(CHECK, format!("{found}; {assumed}"));
    }
    let allowed = limits.direct.values().next().map(|capacity| {
        format!("; the server allows {}, {} are in use", capacity.available(), capacity.used)
    });
    Finding::ok(CHECK, format!("{found}{}", allowed.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(max_connections: i32) -> Capacity {
        Capacity {
            login: "server".to_owned(),
            database: "shop".to_owned(),
            max_connections,
            reserved: 3,
            login_limit: None,
            database_limit: None,
            used: 0,
            is_indirect: false,
        }
    }

    fn limits(capacity: &Capacity) -> ServerLimits {
        let direct = [Way::App, Way::Worker, Way::Listen].map(|way| (way, capacity.clone()));
        ServerLimits { direct: direct.into(), indirect: Vec::new() }
    }

    #[test]
    fn settings_over_the_limit_are_refused_with_the_limit_and_the_remedy() {
        let config = Config::default();
        let needed = Connections::of(&config, Role::ALL);
        let total = i32::try_from(needed.total()).unwrap();
        assert_eq!(limits(&capacity(total + 3)).refusal(&needed), None);
        let refused = limits(&capacity(total + 2)).refusal(&needed).unwrap();
        for says in [
            format!("needs up to {total} database connections"),
            format!("the server allows {} (max_connections = {}, of which 3", total - 1, total + 2),
            format!("raise max_connections to {} at least", total + 3),
            "lower database.connections_max".to_owned(),
        ] {
            assert!(refused.contains(&says), "`{says}` is not in: {refused}");
        }
        let limited = Capacity { login_limit: Some(total - 1), ..capacity(1000) };
        let refused = limits(&limited).refusal(&needed).unwrap();
        assert!(refused.contains(&format!("`alter role server connection limit {total}`")), "{refused}");
        let limited = Capacity { database_limit: Some(5), ..capacity(1000) };
        let refused = limits(&limited).refusal(&needed).unwrap();
        assert!(refused.contains(&format!("`alter database shop connection limit {total}`")), "{refused}");
    }

    #[test]
    fn a_pooler_is_not_counted_against_the_server() {
        let needed = Connections::of(&Config::default(), Role::ALL);
        let behind = ServerLimits {
            direct: [(Way::Listen, capacity(20))].into(),
            indirect: vec![Way::App, Way::Worker],
        };
        assert_eq!(behind.refusal(&needed), None);
        let through = needed.sum(|part| part.way != Way::Listen);
        assert!(behind.assumed(&needed).unwrap().contains(&format!("accept {through} connections")));
    }

    #[test]
    fn a_crowded_server_is_a_warning() {
        let needed = Connections::of(&Config::default(), &[Role::Resolver]);
        let crowded = Capacity { used: 95, ..capacity(100) };
        assert_eq!(limits(&crowded).refusal(&needed), None);
        assert!(limits(&crowded).shortage(&needed).unwrap().contains("and 2 of 97 are free now"));
    }

    /// The table of docs/operations.md, computed from the settings' defaults.
    #[test]
    fn the_table_in_the_docs_is_computed_from_the_configuration() -> anyhow::Result<()> {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md"))?;
        // A sink, so that the relay runs.
        let mut config = Config::default();
        let sink = toml::from_str("kind = 'http'\nurl = 'https://e.example'\nsecrets = []")?;
        config.relay.sinks.insert("a".to_owned(), sink);
        let all = Connections::of(&config, Role::ALL);
        let mut by_role: BTreeMap<&str, u32> = BTreeMap::new();
        for part in &all.0 {
            *by_role.entry(part.of).or_default() += part.count;
        }
        for (of, count) in &by_role {
            let name = if of.contains(' ') { (*of).to_owned() } else { format!("`{of}`") };
            let row = page.lines().find(|line| line.starts_with(&format!("| {name} | ")));
            let row = row.ok_or_else(|| anyhow::anyhow!("docs/operations.md has no row for {name}"))?;
            assert!(row.ends_with(&format!("| {count} |")), "{name} needs {count}: {row}");
        }
        let total = format!("| together | | {} |", all.total());
        assert!(page.lines().any(|line| line == total), "docs/operations.md has no row `{total}`");
        Ok(())
    }
}
