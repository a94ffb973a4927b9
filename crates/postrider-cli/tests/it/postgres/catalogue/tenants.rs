//! One tenant per statement: keys that contain the tenant, functions that take it as their first argument, and bodies whose every statement
//! filters by it. An area joins by adding its schema to [`SCHEMAS`] and its functions over several tenants to [`CHOICES`] or [`BATCHES`].
//! `docs/scaling.md` explains the rules and lists the same functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use sqlx::PgConnection;
use uuid::Uuid;

use super::{bodies, visibility::Tenant};
use crate::{
    sql::{acting_as, execute, refusal, texts},
    world::World,
};

/// Schemas that follow the rules.
const SCHEMAS: &[&str] = &["channels", "events", "execution", "jobs", "m10_recovery", "tenancy"];

/// Functions that read rows of several tenants and neither change nor lock any: they choose tenants, count for metrics, or read for an
/// operator. Sorted.
const CHOICES: &[&str] = &[
    "channels.accounts_with_due_replies",
    "channels.measure_replies",
    "channels.tenants_with_expired_leases",
    "channels.tenants_with_old_messages",
    "channels.tenants_with_stale_replies",
    "events.outbox_backlog",
    "events.tenants_with_events",
    "execution.measure_circuits",
    "execution.measure_jobs",
    "execution.read_account_states",
    "execution.tenants_with_due_doubts",
    "execution.tenants_with_due_jobs",
    "execution.tenants_with_due_messages",
    "execution.tenants_with_due_phases",
    "execution.tenants_with_due_progress",
    "execution.tenants_with_old_history",
    "execution.tenants_with_old_runs",
    "jobs.due_schedules",
    "jobs.measure_jobs",
    "jobs.tenants_with_due_runs",
    "jobs.tenants_with_old_runs",
    "jobs.tenants_with_stale_runs",
    "jobs.tenants_with_waiting_firings",
    "jobs.which_ended",
    "tenancy.count_unfinished",
    "tenancy.read_installation",
    "tenancy.sealed_keys",
    "tenancy.sealed_values",
    "tenancy.tenants_with_old_requests",
    "tenancy.tenants_with_old_sessions",
];

/// Functions that change rows of several tenants in one transaction; each row comes with its tenant. Sorted.
const BATCHES: &[&str] = &[
    "channels.settle_replies",
    "events.claim_events",
    "events.complete_events",
    "events.complete_outbox_events",
    "events.note_deliveries",
    "events.release_outbox_events",
    "execution.begin_outbox_items",
    "execution.begin_windows",
    "execution.finalize_outbox_items",
    "execution.heartbeat_jobs",
    "execution.move_outbox_items",
    "jobs.end_runs",
    "jobs.heartbeat_runs",
    "tenancy.begin_epoch",
    "tenancy.reseal",
];

/// Functions that act on the installation, and write to the audit log of the system tenant. Sorted.
const OF_THE_INSTALLATION: &[&str] =
    &["events.replace_sinks", "tenancy.replace_master_key", "tenancy.rotate_context_key"];

/// The functions of the M10 contract, whose frozen signatures have no tenant. They and their table are the one exception. Sorted.
const CONTRACT: &[&str] = &[
    "m10_recovery.claim_outbox_events",
    "m10_recovery.complete_outbox_event",
    "m10_recovery.publish_outbox",
];

/// Keys without the tenant, of the table of the M10 contract: the contract finds an event by its id alone. As constraint and as index.
const KEYS_OF_THE_CONTRACT: &[&str] =
    &["m10_recovery.outbox m10_recovery.outbox_pkey", "m10_recovery.outbox outbox_pkey"];

/// Functions with a statement that does not filter by `tenant_id`, and the reason. The list only shrinks.
const UNFILTERED: &[(&str, &str)] = &[
    (
        "events.claim_events",
        "reads the events by the ids that the contract's claim returned; it returns no tenant",
    ),
    ("m10_recovery.claim_outbox_events", "the contract has no tenant"),
    ("m10_recovery.complete_outbox_event", "the contract has no tenant"),
    (
        "m10_recovery.publish_outbox",
        "inserts for the tenant of the transaction, tenancy.publishing_tenant_id()",
    ),
    (
        "tenancy.refuse_removal_with_events",
        "filters by the id of the removed row of tenancy.tenants, which is the tenant",
    ),
    ("tenancy.was_deleted", "reads the audit log of the system tenant, which records the removal of tenants"),
];

/// Functions that the app may call with the id of any tenant, and the reason.
const FOR_ANY_TENANT: &[(&str, &str)] = &[
    ("tenancy.authenticate_api_key", "the hash of the key proves the right to act for its tenant"),
    ("tenancy.authenticate_session", "the hash of the token proves the right to act for its tenant"),
    ("tenancy.verified_tenant_id", "checks the signature of the tenant"),
];

/// Primary, unique and foreign keys, and unique indexes, that do not contain a `tenant_id` that is never null.
const KEYS_WITHOUT_TENANT: &str = "
    select class.oid::regclass || ' ' || key.name
      from pg_class as class
      join (select conrelid as relation, conname as name, conkey as columns
              from pg_constraint
             where contype in ('p', 'u', 'f')
             union all
            select indrelid, indexrelid::regclass::text, string_to_array(indkey::text, ' ')::smallint[]
              from pg_index
             where indisunique) as key on key.relation = class.oid
     where class.relnamespace::regnamespace::text = any (schemas)
       and exists (select from pg_attribute
                    where attrelid = class.oid and attname = 'tenant_id' and not attisdropped)
       and not exists (select from pg_attribute
                        where attrelid = class.oid and attname = 'tenant_id' and attnotnull and attnum = any (key.columns))
     order by 1";

/// Name, first argument, volatility, kind of result and body of every function, and the roles that may call it.
const FUNCTIONS: &str = "
    select oid::regproc::text,
           (proargnames[1], proargtypes[0]) is not distinct from ('p_tenant_id', 'uuid'::regtype::oid),
           provolatile = 'v',
           prorettype = 'trigger'::regtype,
           coalesce(pg_get_function_sqlbody(oid), prosrc),
           exists (select from unnest(array['postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish']) as role
                    where has_function_privilege(role, pg_proc.oid, 'execute'))
      from pg_proc
     where pronamespace in (select oid from pg_namespace where nspowner = 'postrider_owner'::regrole)
     order by 1";

/// Tables with rows of tenants. `tenancy.tenants` itself is not among them: every node has a copy of it.
const TENANT_TABLES: &str = "
    select class.oid::regclass::text
      from pg_class as class
     where class.relnamespace in (select oid from pg_namespace where nspowner = 'postrider_owner'::regrole)
       and class.relkind in ('r', 'p')
       and exists (select from pg_attribute
                    where attrelid = class.oid and attname = 'tenant_id' and not attisdropped)";

/// Functions that set the tenant of the transaction, or a setting whose name is not written there. `set local` sets the tenant.
const FUNCTIONS_THAT_SET_THE_TENANT: &str = "
    select oid::regprocedure::text
      from pg_proc
     where pronamespace::regnamespace::text = any (schemas)
       and (prosrc ~* 'set_config\\s*\\(\\s*(''app\\.|[^''])'
            or exists (select from unnest(proconfig) as setting where setting ~ '^app\\.'))
     order by 1";

/// Tables with several indexes that begin with `tenant_id`, and with statistics of that column. A tenant that is missing in the statistics
/// counts as empty, so each of these indexes then looks equally good for any lookup.
const TABLES_WITH_STATISTICS: &str = "
    select class.oid::regclass::text
      from pg_class as class
      join pg_attribute as tenant on tenant.attrelid = class.oid and tenant.attname = 'tenant_id' and not tenant.attisdropped
     where class.relnamespace::regnamespace::text = any (schemas)
       and class.relkind in ('r', 'p')
       and coalesce(tenant.attstattarget, -1) <> 0
       and (select count(*) from pg_index where indrelid = class.oid and indkey[0] = tenant.attnum) > 1
     order by 1";

/// The table that keeps them: its other indexes of the tenant are partial, and serve no lookup by id. Without statistics, a run would count
/// as one with a single send job, and a page of its items would read and sort all of them.
const KEPT_STATISTICS: &[&str] = &["execution.job_queue"];

/// Functions with the row type of a table or view as an argument or result.
const FUNCTIONS_WITH_ROW_TYPES: &str = "
    select distinct function.oid::regproc::text
      from pg_proc as function
      join pg_type as type
        on type.oid = any (array[function.prorettype] || function.proargtypes::oid[] || coalesce(function.proallargtypes, '{}'))
        or type.typarray = any (array[function.prorettype] || function.proargtypes::oid[]) and type.typarray <> 0
      join pg_class as class on class.oid = type.typrelid and class.relkind in ('r', 'v', 'm', 'p')
     where function.pronamespace::regnamespace::text = any (schemas)
     order by 1";

/// Calls of the functions that the app may call, with this tenant and nothing else.
const CALLS_OF_THE_APP: &str = "
    select format('select %s(%L%s)', oid::regproc, 'TENANT',
                  coalesce((select string_agg(', null::' || format_type(argument, null), '' order by at)
                              from unnest(proargtypes::oid[]) with ordinality as given (argument, at)
                             where at > 1), ''))
      from pg_proc
     where pronamespace::regnamespace::text = any (schemas)
       and has_function_privilege('postrider_app', oid, 'execute')
       and proargnames[1] = 'p_tenant_id'
       and oid::regproc::text <> all (excepted)
     order by 1";

async fn found(client: &mut PgConnection, query: &str) -> Result<Vec<String>, sqlx::Error> {
    let schemas = format!("(array['{}'])", SCHEMAS.join("', '"));
    let excepted: Vec<&str> = FOR_ANY_TENANT.iter().map(|(name, _)| *name).collect();
    let excepted = format!("(array['{}'])", excepted.join("', '"));
    texts(client, query.replace("(schemas)", &schemas).replace("(excepted)", &excepted)).await
}

/// A function as the catalogue has it.
#[derive(Debug)]
struct Function {
    name: String,
    takes_tenant: bool,
    is_volatile: bool,
    is_trigger: bool,
    body: String,
    may_be_called: bool,
}

/// All functions, and the tables with rows of tenants.
struct Catalogue {
    functions: Vec<Function>,
    tables: BTreeSet<String>,
}

impl Catalogue {
    async fn read(client: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let rows: Vec<(String, bool, bool, bool, String, bool)> =
            sqlx::query_as(FUNCTIONS).fetch_all(&mut *client).await?;
        let functions = rows
            .into_iter()
            .map(|(name, takes_tenant, is_volatile, is_trigger, body, may_be_called)| Function {
                name,
                takes_tenant,
                is_volatile,
                is_trigger,
                body,
                may_be_called,
            })
            .collect();
        let tables = texts(client, TENANT_TABLES).await?.into_iter().collect();
        Ok(Self { functions, tables })
    }

    /// Functions of the schemas that follow the rules.
    fn checked(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| is_checked(&function.name))
    }

    /// Functions without a tenant as first argument that reach rows of tenants: by themselves, or, if a role may call them, by what they
    /// call.
    fn without_tenant(&self) -> BTreeSet<&str> {
        let mut reaching: BTreeSet<String> = BTreeSet::new();
        loop {
            let before = reaching.len();
            for function in &self.functions {
                if bodies::names_any(&function.body, &self.tables)
                    || bodies::names_any(&function.body, &reaching) && !function.takes_tenant
                {
                    reaching.insert(function.name.clone());
                }
            }
            if reaching.len() == before {
                break;
            }
        }
        self.checked()
            .filter(|function| !function.takes_tenant && !function.is_trigger)
            .filter(|function| {
                bodies::names_any(&function.body, &self.tables)
                    || function.may_be_called && reaching.contains(&function.name)
            })
            .map(|function| function.name.as_str())
            .collect()
    }

    /// Statements that do not filter by the tenant, by function.
    fn unfiltered(&self) -> BTreeMap<&str, Vec<String>> {
        let mut found = BTreeMap::new();
        for function in self.checked().filter(|function| !CHOICES.contains(&function.name.as_str())) {
            let is_batch = BATCHES.contains(&function.name.as_str());
            let unfiltered = bodies::unfiltered(&function.body, &self.tables, is_batch);
            if !unfiltered.is_empty() {
                found.insert(function.name.as_str(), unfiltered);
            }
        }
        found
    }

    /// Functions among [`CHOICES`] that change or lock rows.
    fn choices_that_act(&self) -> Vec<&str> {
        self.checked()
            .filter(|function| CHOICES.contains(&function.name.as_str()))
            .filter(|function| function.is_volatile || bodies::writes_or_locks(&function.body))
            .map(|function| function.name.as_str())
            .collect()
    }

    /// Functions that read the same clock more than once. Those of the M10 contract have its formulas.
    fn repeated_clocks(&self) -> Vec<String> {
        let repeated = |function: &Function| {
            let clocks = bodies::repeated_clocks(&function.body);
            (!clocks.is_empty()).then(|| format!("{}: {}", function.name, clocks.join(", ")))
        };
        let checked = self.checked().filter(|function| !CONTRACT.contains(&function.name.as_str()));
        checked.filter_map(repeated).collect()
    }

    /// Updates that read a clock in a way that Citus refuses, by function.
    fn clocks(&self) -> Vec<String> {
        self.checked()
            .flat_map(|function| {
                let clocks = bodies::clocks_in_updates(&function.body);
                clocks.into_iter().map(|clock| format!("{}: {clock}", function.name))
            })
            .collect()
    }
}

/// Whether an object is in a schema that follows the rules.
fn is_checked(name: &str) -> bool {
    name.split_once('.').is_some_and(|(schema, _)| SCHEMAS.contains(&schema))
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_contain_the_tenant_and_functions_take_it_first() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut admin = world.client("postgres").await?.acquire().await?;
    assert_eq!(found(&mut admin, KEYS_WITHOUT_TENANT).await?, KEYS_OF_THE_CONTRACT);
    assert_eq!(found(&mut admin, FUNCTIONS_WITH_ROW_TYPES).await?, [""; 0]);
    assert_eq!(found(&mut admin, TABLES_WITH_STATISTICS).await?, KEPT_STATISTICS);
    assert_eq!(found(&mut admin, FUNCTIONS_THAT_SET_THE_TENANT).await?, [""; 0]);
    let catalogue = Catalogue::read(&mut admin).await?;
    let listed = CHOICES.iter().chain(BATCHES).chain(OF_THE_INSTALLATION).chain(CONTRACT);
    let listed: BTreeSet<&str> = listed.copied().filter(|name| is_checked(name)).collect();
    assert_eq!(catalogue.without_tenant(), listed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_filters_by_the_tenant() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut admin = world.client("postgres").await?.acquire().await?;
    let catalogue = Catalogue::read(&mut admin).await?;
    let found = catalogue.unfiltered();
    let excepted: BTreeSet<&str> =
        UNFILTERED.iter().map(|(name, _)| *name).filter(|name| is_checked(name)).collect();
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), excepted, "{found:#?}");
    assert_eq!(catalogue.choices_that_act(), [""; 0]);
    assert_eq!(catalogue.clocks(), [""; 0]);
    assert_eq!(catalogue.repeated_clocks(), [""; 0]);

    // Each filter is missed when it is gone.
    let filter = ".tenant_id = p_tenant_id";
    let mut removed = 0;
    for Function { name, body, .. } in catalogue.checked() {
        if excepted.contains(name.as_str()) || CHOICES.contains(&name.as_str()) {
            continue;
        }
        for (place, _) in body.match_indices(filter) {
            let begin = body[..place]
                .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .map_or(0, |at| at + 1);
            let without = format!("{}true{}", &body[..begin], &body[place + filter.len()..]);
            assert!(
                !bodies::unfiltered(&without, &catalogue.tables, false).is_empty(),
                "{name} without {}",
                &body[begin..place + filter.len()]
            );
            removed += 1;
        }
    }
    assert!(removed > 100, "{removed} filters were removed");
    Ok(())
}

/// The statements of the store that the compiler has checked. Each argument that is a uuid counts as the tenant.
fn statements_of_the_store() -> anyhow::Result<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.sqlx");
    let mut statements = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let checked: serde_json::Value = serde_json::from_slice(&std::fs::read(entry?.path())?)?;
        let mut statement = checked["query"].as_str().unwrap_or_default().to_owned();
        let kinds = checked["describe"]["parameters"]["Left"].as_array().cloned().unwrap_or_default();
        // From the last one on, because `$1` is the beginning of `$10`.
        for (number, kind) in (1..).zip(kinds).collect::<Vec<_>>().into_iter().rev() {
            let name = if kind == "Uuid" { "p_tenant_id".to_owned() } else { format!("p_{number}") };
            statement = statement.replace(&format!("${number}"), &name);
        }
        statements.push(statement);
    }
    statements.sort_unstable();
    Ok(statements)
}

/// Parts of the statements of the store that reach rows of several tenants: the demo makes locks look older, and the owner lists the
/// tenants. Sorted.
const UNFILTERED_IN_THE_STORE: &[&str] =
    &["from tenancy.tenants as tenant", "set locked_at = locked_at - p_2::interval where locked_by = p_1"];

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_of_the_store_filters_by_the_tenant() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut tables = Catalogue::read(&mut *world.client("postgres").await?.acquire().await?).await?.tables;
    tables.insert("jobs.job_health".to_owned());
    let statements = statements_of_the_store()?;
    let (mut filtered, mut unfiltered) = (0, Vec::new());
    for statement in statements.iter().filter(|statement| bodies::names_any(statement, &tables)) {
        if let Some(part) = UNFILTERED_IN_THE_STORE.iter().find(|part| statement.contains(**part)) {
            unfiltered.push(*part);
            continue;
        }
        // A part of some statements has its tenant from another part, which filters by the argument.
        let found = bodies::unfiltered(statement, &tables, true);
        assert!(found.is_empty() && statement.contains("tenant_id = p_tenant_id"), "{statement}\n{found:#?}");
        filtered += 1;
        // Without the argument each of them is found.
        let without = statement.replace("tenant_id = p_tenant_id", "id = p_tenant_id");
        assert!(!bodies::unfiltered(&without, &tables, true).is_empty(), "{statement}");
    }
    unfiltered.sort_unstable();
    assert_eq!(unfiltered, UNFILTERED_IN_THE_STORE);
    assert!(filtered > 40, "{filtered} statements filter by the tenant");
    Ok(())
}

/// Names of functions that a section of `docs/scaling.md` lists, in its order.
fn listed_in_docs(heading: &str) -> anyhow::Result<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scaling.md");
    let page = std::fs::read_to_string(path)?;
    let section = page.split("\n## ").find(|section| section.starts_with(&format!("{heading}\n")));
    let section = section.ok_or_else(|| anyhow::anyhow!("docs/scaling.md has no section `{heading}`"))?;
    let lines = section.lines().filter_map(|line| line.strip_prefix("- `"));
    let names = lines.flat_map(|line| {
        // The names before the colon; what follows explains them.
        let names = line.split_once("`:").map_or(line, |(names, _)| names);
        names.split("`, `").map(str::to_owned).collect::<Vec<_>>()
    });
    Ok(names.collect())
}

#[test]
fn the_page_about_scaling_lists_the_same_functions() -> anyhow::Result<()> {
    for (heading, functions) in [
        ("Batches over several tenants", BATCHES),
        ("Reads over several tenants", CHOICES),
        ("Functions of the installation", OF_THE_INSTALLATION),
        ("The exception: the M10 contract", CONTRACT),
    ] {
        let mut listed = listed_in_docs(heading)?;
        listed.sort_unstable();
        let mut functions = functions.to_vec();
        functions.sort_unstable();
        assert_eq!(listed, functions, "{heading}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_broken_rule_about_tenants_is_noticed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut admin = world.client("postgres").await?.acquire().await?;
    for (breach, query, noticed) in [
        (
            "alter table channels.channel_links add constraint one unique (sender_id)",
            KEYS_WITHOUT_TENANT,
            "channels.channel_links one",
        ),
        (
            "create unique index one on channels.channel_links (user_id) where role = 'admin'",
            KEYS_WITHOUT_TENANT,
            "channels.channel_links channels.one",
        ),
        (
            "alter table channels.channel_links drop constraint channel_links_pkey;
             alter table channels.channel_links alter tenant_id drop not null",
            KEYS_WITHOUT_TENANT,
            "channels.channel_links channel_links_one_per_sender",
        ),
        (
            "create table channels.other (id uuid primary key);
             alter table channels.channel_links add constraint refers foreign key (id) references channels.other (id)",
            KEYS_WITHOUT_TENANT,
            "channels.channel_links refers",
        ),
        (
            "alter table channels.channel_outbox alter column tenant_id set statistics -1",
            TABLES_WITH_STATISTICS,
            "channels.channel_outbox",
        ),
        (
            "create function channels.f(p_message channels.channel_messages) returns int language sql as 'select 1'",
            FUNCTIONS_WITH_ROW_TYPES,
            "channels.f",
        ),
        (
            "create function channels.f(p_tenant_id uuid) returns setof channels.channel_outbox \
             language sql as 'select * from channels.channel_outbox'",
            FUNCTIONS_WITH_ROW_TYPES,
            "channels.f",
        ),
        (
            "create function channels.f(p_messages channels.channel_messages[]) returns int language sql as 'select 1'",
            FUNCTIONS_WITH_ROW_TYPES,
            "channels.f",
        ),
    ] {
        execute(&mut *admin, format!("begin; {breach}")).await?;
        let broken = found(&mut admin, query).await?;
        execute(&mut *admin, "rollback").await?;
        assert!(broken.iter().any(|found| found == noticed), "{breach}: {broken:?}");
    }

    let body_without_filter =
        "select count(*) from channels.channel_outbox as reply where reply.status = ''dead''";
    let choice = "create or replace function channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer) \
                  returns table (tenant_id uuid) language sql as";
    for (breach, noticed) in [
        (
            "create function channels.f(p_id uuid, p_tenant_id uuid) returns bigint language sql as \
             'delete from channels.channel_links as link where link.tenant_id = p_tenant_id; select 1'"
                .to_owned(),
            Noticed::WithoutTenant,
        ),
        (
            "create function channels.f(p_tenant_id text) returns int language sql as \
             'select 1 from channels.channel_links'"
                .to_owned(),
            Noticed::WithoutTenant,
        ),
        // It reaches rows of tenants by another function.
        (
            "create function channels.f() returns setof uuid language sql as \
             'select tenant_id from channels.tenants_with_old_messages(''1 day'')'; \
             grant execute on function channels.f to postrider_read"
                .to_owned(),
            Noticed::WithoutTenant,
        ),
        (
            format!("create function channels.f(p_tenant_id uuid) returns bigint language sql as '{body_without_filter}'"),
            Noticed::Unfiltered,
        ),
        (
            format!(
                "create function channels.f() returns trigger language plpgsql as \
                 'begin perform 1 from (select 1) as one; perform ({body_without_filter}); return new; end'"
            ),
            Noticed::Unfiltered,
        ),
        (
            "create function channels.f(p_tenant_id uuid) returns void language sql \
             begin atomic; delete from channels.channel_links as link; end"
                .to_owned(),
            Noticed::Unfiltered,
        ),
        (
            format!("{choice} 'select reply.tenant_id from channels.channel_outbox as reply for update'"),
            Noticed::ChoiceThatActs,
        ),
        (
            "create function channels.f(p_tenant_id uuid) returns void language sql as \
             'update channels.channel_links as link set updated_at = clock_timestamp() where link.tenant_id = p_tenant_id'"
                .to_owned(),
            Noticed::Clock,
        ),
        (
            "create function channels.f(p_tenant_id uuid) returns void language plpgsql as \
             'begin perform set_config(''app.current_tenant_id'', p_tenant_id::text, true); end'"
                .to_owned(),
            Noticed::SetsTenant,
        ),
    ] {
        execute(&mut *admin, format!("begin; {breach}")).await?;
        let catalogue = Catalogue::read(&mut admin).await?;
        let is_noticed = match noticed {
            Noticed::WithoutTenant => catalogue.without_tenant().contains("channels.f"),
            Noticed::Unfiltered => catalogue.unfiltered().contains_key("channels.f"),
            Noticed::ChoiceThatActs => catalogue.choices_that_act() == ["channels.tenants_with_stale_replies"],
            Noticed::Clock => {
                catalogue.clocks().iter().any(|clock| clock == "channels.f: clock_timestamp() in an update")
            }
            Noticed::SetsTenant => found(&mut admin, FUNCTIONS_THAT_SET_THE_TENANT).await? == ["channels.f(uuid)"],
        };
        execute(&mut *admin, "rollback").await?;
        assert!(is_noticed, "{breach}");
    }
    Ok(())
}

/// The check that notices a broken rule.
#[derive(Debug, Clone, Copy)]
enum Noticed {
    WithoutTenant,
    Unfiltered,
    ChoiceThatActs,
    Clock,
    SetsTenant,
}

/// Tries every function that the app may call with a tenant, and returns the calls that were not refused.
async fn accepted(world: &World, context: &str, tenant: Uuid) -> anyhow::Result<Vec<String>> {
    let mut admin = world.client("postgres").await?.acquire().await?;
    let app = world.client("postrider_app").await?;
    let mut accepted = Vec::new();
    for call in found(&mut admin, CALLS_OF_THE_APP).await? {
        let call = call.replace("TENANT", &tenant.to_string());
        let mut transaction = app.begin().await?;
        execute(&mut *transaction, context).await?;
        let outcome = execute(&mut *transaction, &call).await;
        if outcome.is_ok() || refusal(outcome)?.code != "42501" {
            accepted.push(call);
        }
    }
    Ok(accepted)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_app_acts_for_no_tenant_but_that_of_its_context() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    let (as_own, as_server) = (acting_as(own.id), acting_as(Uuid::nil()));
    for (context, tenant) in [(&as_own, other.id), (&as_server, other.id), (&String::new(), other.id)] {
        assert_eq!(accepted(&world, context, tenant).await?, [""; 0], "{context}");
    }
    // For the own tenant each of them gets further, to what else it misses.
    let all = accepted(&world, &as_own, own.id).await?;
    for schema in ["channels", "events", "execution", "jobs", "tenancy"] {
        assert!(all.iter().any(|call| call.contains(&format!(" {schema}."))), "{schema}: {all:?}");
    }
    // Without the check, the argument would be a way in.
    execute(
        &admin,
        "create or replace function tenancy.require_tenant(p_tenant_id uuid) returns void language sql as ''",
    )
    .await?;
    assert_eq!(accepted(&world, &as_own, other.id).await?.len(), all.len());
    Ok(())
}
