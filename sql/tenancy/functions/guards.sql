-- Row-level security, triggers that refuse changes, and grants of the tenancy tables, with the two functions that all
-- areas use for this.

create or replace function tenancy.refuse_change()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function tenancy.refuse_change() from public;
comment on function tenancy.refuse_change() is
    'Trigger function: refuses the change. The WHEN clause of the trigger states the forbidden change, and the '
    'trigger argument is the reason in the error.';

create or replace function tenancy.refuse_unless_erased_or_removed()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_old jsonb;
    v_new jsonb;
    v_is_erased boolean;
begin
    if tg_op = 'DELETE' then
        if exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null) then
            return old;
        end if;
    elsif exists (select from execution.erasures as erasure where erasure.tenant_id = old.tenant_id and erasure.at = now()) then
        v_old := to_jsonb(old);
        v_new := to_jsonb(new);
        select coalesce(bool_and(v_new -> erasable.name = v_old -> erasable.name
                                 or v_new -> erasable.name in ('null', '"erased"', '{}')), false)
          into v_is_erased
          from unnest(tg_argv[1:]) as erasable (name);
        if v_is_erased and v_new - tg_argv[1:] = v_old - tg_argv[1:] then
            return new;
        end if;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function tenancy.refuse_unless_erased_or_removed() from public;
comment on function tenancy.refuse_unless_erased_or_removed() is
    'Trigger function: refuses the change, as refuse_change does, with two exceptions. A row may be deleted while its tenant is '
    'being removed. And the transaction that records an erasure of the tenant may set the columns that follow the reason '
    'in the trigger arguments to null, to `erased` or to an empty object.';

create or replace function tenancy.protect(p_table regclass, p_tenant_column text default 'tenant_id')
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table %s enable row level security', p_table);
    execute format('alter table %s force row level security', p_table);
    execute format('create policy owner_passes on %s to postrider_owner using (true) with check (true)', p_table);
    -- The sub-select makes Postgres ask once per statement instead of once per row.
    execute format('create policy tenant_sees_its_own on %s for select '
                   'to postrider_app, postrider_worker, postrider_read '
                   'using (%I = (select tenancy.current_tenant_id()))', p_table, p_tenant_column);
end
$$;
revoke all on function tenancy.protect(regclass, text) from public;
comment on function tenancy.protect(regclass, text) is
    'Enables and forces row-level security on a table and creates its two policies: definer functions of the owner '
    'role pass, and other roles see rows of the current tenant. It fails on a table that has these policies.';

-- A table that has its policies keeps them.
select tenancy.protect(wanted.name, wanted.tenant_column)
  from (values ('tenancy.tenants'::regclass, 'id'),
               ('tenancy.workspaces', 'tenant_id'),
               ('tenancy.api_keys', 'tenant_id'),
               ('tenancy.sessions', 'tenant_id'),
               ('tenancy.login_codes', 'tenant_id'),
               ('tenancy.audit_log', 'tenant_id'),
               ('tenancy.provider_accounts', 'tenant_id'),
               ('tenancy.provider_account_versions', 'tenant_id'),
               ('tenancy.requests', 'tenant_id')) as wanted (name, tenant_column)
 where not exists (select from pg_catalog.pg_policy where polrelid = wanted.name);

create or replace trigger tenants_keep_the_system_tenant
    before update or delete on tenancy.tenants
    for each row
    when (old.id = '00000000-0000-0000-0000-000000000001')
    execute function tenancy.refuse_change('the system tenant is part of the installation');
create or replace trigger tenants_are_never_emptied
    before truncate on tenancy.tenants
    for each statement
    execute function tenancy.refuse_change('the system tenant is part of the installation');

create or replace function tenancy.refuse_removal_with_events()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from m10_recovery.outbox as event where event.tenant_id = old.id) then
        raise exception 'tenant % has events', old.id
            using errcode = 'foreign_key_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return old;
end
$$;
revoke all on function tenancy.refuse_removal_with_events() from public;
comment on function tenancy.refuse_removal_with_events() is
    'Trigger function: refuses to remove a tenant that has events. It stands in for a foreign key of the outbox.';
create or replace trigger tenants_with_events_stay
    before delete on tenancy.tenants
    for each row
    execute function tenancy.refuse_removal_with_events();

create or replace trigger api_keys_revoked_for_ever
    before update on tenancy.api_keys
    for each row
    when (old.revoked_at is not null)
    execute function tenancy.refuse_change('a revoked key stays as it is; create a new one');

create or replace trigger audit_log_is_append_only
    before update or delete on tenancy.audit_log
    for each row
    execute function tenancy.refuse_unless_erased_or_removed('the audit log is append-only', 'note');
create or replace trigger audit_log_is_never_emptied
    before truncate on tenancy.audit_log
    for each statement
    execute function tenancy.refuse_change('the audit log is append-only');

create or replace trigger provider_accounts_stay_where_they_are
    before update of id, tenant_id on tenancy.provider_accounts
    for each row
    when (old.id <> new.id or old.tenant_id <> new.tenant_id)
    execute function tenancy.refuse_change('an account does not move; its secret is bound to its row');

create or replace trigger provider_account_versions_are_facts
    before update of tenant_id, account_id, version, settings, replaced_at on tenancy.provider_account_versions
    for each row
    execute function tenancy.refuse_change('earlier settings of an account never change');

create or replace trigger requests_answered_once
    before update on tenancy.requests
    for each row
    when (old.status is not null
          or (old.tenant_id, old.idempotency_key, old.fingerprint)
             is distinct from (new.tenant_id, new.idempotency_key, new.fingerprint))
    execute function tenancy.refuse_unless_erased_or_removed('a stored answer never changes', 'body');

create or replace trigger epochs_are_facts
    before update of number, id, installation_id, cause, system_identifier, database_oid, database_name, table_oid,
                     began_at, actor
    on tenancy.epochs
    for each row
    execute function tenancy.refuse_change('an epoch stays as it began');
create or replace trigger epochs_are_never_removed
    before delete on tenancy.epochs
    for each row
    execute function tenancy.refuse_change('epochs are kept');
create or replace trigger epochs_are_never_emptied
    before truncate on tenancy.epochs
    for each statement
    execute function tenancy.refuse_change('epochs are kept');

grant usage on schema tenancy to postrider_app, postrider_worker, postrider_read;
grant select on tenancy.tenants, tenancy.workspaces, tenancy.audit_log
    to postrider_app, postrider_worker, postrider_read;
-- All columns but the hash, which only authenticate_api_key compares.
grant select (id, tenant_id, name, role, hint, created_at, expires_at, revoked_at, last_used_at)
    on tenancy.api_keys to postrider_app, postrider_read;
-- All columns but the hash, which only authenticate_session compares.
grant select (id, tenant_id, key_id, name, created_at, last_seen_at, idle_for, expires_at)
    on tenancy.sessions to postrider_app, postrider_read;
-- Only the loops that call providers read secrets.
grant select on tenancy.provider_accounts, tenancy.provider_account_versions to postrider_worker;
grant select (id, tenant_id, workspace_id, name, provider, settings, created_at, updated_at, limits, secret_set_at,
              version, retired_at)
    on tenancy.provider_accounts to postrider_app, postrider_read;
