//! One tenant per statement: keys that contain the tenant, and functions that take it as their first argument. An area joins by adding its
//! schema to [`SCHEMAS`] and its functions over all tenants to [`ACROSS_TENANTS`].

use sqlx::PgConnection;
use uuid::Uuid;

use super::visibility::Tenant;
use crate::{
    sql::{acting_as, execute, refusal, texts},
    world::World,
};

/// Schemas that follow the rules.
const SCHEMAS: &[&str] = &["channels"];

/// Functions that a role may call and that take no single tenant: they choose tenants or count without locking anything, or combine results
/// of several tenants as pairs of tenant and id. Sorted.
const ACROSS_TENANTS: &[&str] = &[
    "channels.accounts_with_due_replies",
    "channels.measure_replies",
    "channels.settle_replies",
    "channels.tenants_with_expired_leases",
    "channels.tenants_with_old_messages",
    "channels.tenants_with_stale_replies",
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

/// Functions that a role may call and whose first argument is not `p_tenant_id uuid`.
const FUNCTIONS_WITHOUT_TENANT: &str = "
    select distinct oid::regproc::text
      from pg_proc, unnest(array['postrider_app', 'postrider_worker', 'postrider_read', 'postrider_publish']) as role
     where pronamespace::regnamespace::text = any (schemas)
       and has_function_privilege(role, oid, 'execute')
       and (proargnames[1], proargtypes[0]) is distinct from ('p_tenant_id', 'uuid'::regtype::oid)
     order by 1";

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
     order by 1";

async fn found(client: &mut PgConnection, query: &str) -> Result<Vec<String>, sqlx::Error> {
    let schemas = format!("array['{}']", SCHEMAS.join("', '"));
    texts(client, query.replace("(schemas)", &format!("({schemas})"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_contain_the_tenant_and_functions_take_it_first() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut admin = world.client("postgres").await?.acquire().await?;
    assert_eq!(found(&mut admin, KEYS_WITHOUT_TENANT).await?, [""; 0]);
    assert_eq!(found(&mut admin, FUNCTIONS_WITHOUT_TENANT).await?, ACROSS_TENANTS);
    assert_eq!(found(&mut admin, FUNCTIONS_WITH_ROW_TYPES).await?, [""; 0]);
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
            "create function channels.f(p_id uuid, p_tenant_id uuid) returns int language sql as 'select 1';
             grant execute on function channels.f to postrider_read",
            FUNCTIONS_WITHOUT_TENANT,
            "channels.f",
        ),
        (
            "create function channels.f(p_tenant_id text) returns int language sql as 'select 1';
             grant execute on function channels.f to postrider_app",
            FUNCTIONS_WITHOUT_TENANT,
            "channels.f",
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
    Ok(())
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
    let all = accepted(&world, &as_own, own.id).await?.len();
    assert!(all >= SCHEMAS.len(), "{all}");
    // Without the check, the argument would be a way in.
    execute(
        &admin,
        "create or replace function tenancy.require_tenant(p_tenant_id uuid) returns void language sql as ''",
    )
    .await?;
    assert_eq!(accepted(&world, &as_own, other.id).await?.len(), all);
    Ok(())
}
