-- Whose rows these are: tenants, workspaces, API keys, the audit log, and the machinery that every later schema
-- uses for row-level security and transitions.
-- Safe beside running workers: it adds a schema and touches no other.

create schema tenancy;
grant usage on schema tenancy to postrider_app, postrider_worker, postrider_read;

-- The one place that says which tenant a transaction acts for. Two names are honoured; when both are set and
-- differ, or none is set, there is no tenant, and so there are no rows.
--
-- Its names are bound when it is created, so it needs no search_path of its own and is planned as a part of whatever
-- calls it: publishing an event asks it every time.
create function tenancy.current_tenant_id()
returns uuid
language sql
stable
parallel safe
return case
           when nullif(current_setting('app.current_tenant_id', true), '') is null
               then nullif(current_setting('app.current_tenant', true), '')::uuid
           when nullif(current_setting('app.current_tenant', true), '') is null
             or nullif(current_setting('app.current_tenant', true), '')::uuid
                = nullif(current_setting('app.current_tenant_id', true), '')::uuid
               then nullif(current_setting('app.current_tenant_id', true), '')::uuid
       end;

-- Whether the caller may act on a row of this tenant: inside a tenant's context, on that tenant's rows alone;
-- without a context, only a member of the owner role may, on any row.
create function tenancy.may_act_for(p_tenant_id uuid)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select case
               when tenancy.current_tenant_id() is null then pg_has_role(session_user, 'postrider_owner', 'member')
               else p_tenant_id is not distinct from tenancy.current_tenant_id()
           end
$$;

-- The tenant of the context, or an error that says how to set it.
create function tenancy.required_tenant_id()
returns uuid
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if tenancy.current_tenant_id() is null then
        raise exception 'no tenant is set for this transaction'
            using errcode = 'insufficient_privilege',
                  hint = 'Begin with: set local app.current_tenant_id = ''<tenant id>''.';
    end if;
    return tenancy.current_tenant_id();
end
$$;

-- What a guarding trigger does. The trigger's WHEN clause names what is forbidden, its argument says why.
create function tenancy.refuse_change()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

-- Gives a table the row-level security that all tenant tables have: the owner's definer functions pass, everyone
-- else sees the tenant of the context and nothing more. Called by migrations, granted to nobody.
create function tenancy.protect(p_table regclass, p_tenant_column text default 'tenant_id')
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

create table tenancy.tenants (
    id         uuid        primary key,
    name       text        not null,
    created_at timestamptz not null default now(),
    constraint tenants_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint tenants_one_per_name unique (name)
);
select tenancy.protect('tenancy.tenants', 'id');

create table tenancy.workspaces (
    id         uuid        not null,
    tenant_id  uuid        not null references tenancy.tenants (id),
    name       text        not null,
    created_at timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint workspaces_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint workspaces_one_per_name unique (tenant_id, name)
);
select tenancy.protect('tenancy.workspaces');

create table tenancy.api_keys (
    id           uuid        not null,
    tenant_id    uuid        not null references tenancy.tenants (id),
    name         text        not null,
    role         text        not null,
    hint         text        not null,
    key_hash     bytea       not null,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    primary key (tenant_id, id),
    constraint api_keys_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint api_keys_role_check check (role in ('viewer', 'operator', 'admin')),
    constraint api_keys_hash_is_sha256 check (octet_length(key_hash) = 32),
    constraint api_keys_one_row_per_key unique (key_hash, tenant_id)
);
select tenancy.protect('tenancy.api_keys');

create trigger api_keys_revoked_for_ever
    before update on tenancy.api_keys
    for each row
    when (old.revoked_at is not null)
    execute function tenancy.refuse_change('a revoked key stays as it is; create a new one');

-- Who did what. Rows are added by the functions that act, in the same transaction, and never change.
create table tenancy.audit_log (
    id        bigint      generated always as identity,
    tenant_id uuid        references tenancy.tenants (id),
    at        timestamptz not null default now(),
    actor     text        not null,
    action    text        not null,
    subject   text        not null,
    note      text,
    primary key (id),
    constraint audit_log_actor_is_named check (btrim(actor) <> '')
);
create index audit_log_by_subject on tenancy.audit_log (subject, id);
create index audit_log_by_tenant on tenancy.audit_log (tenant_id, id);
select tenancy.protect('tenancy.audit_log');

create trigger audit_log_is_append_only
    before update or delete on tenancy.audit_log
    for each row
    execute function tenancy.refuse_change('the audit log is append-only');
create trigger audit_log_is_never_emptied
    before truncate on tenancy.audit_log
    for each statement
    execute function tenancy.refuse_change('the audit log is append-only');

-- For members of the owner role alone: whoever may make tenants may act for all of them.
create function tenancy.create_tenant(p_id uuid, p_workspace_id uuid, p_name text, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into tenancy.tenants (id, name) values (p_id, p_name);
    insert into tenancy.workspaces (id, tenant_id, name) values (p_workspace_id, p_id, 'default');
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_id, p_actor, 'tenant.created', 'tenant:' || p_id);
end
$$;

create function tenancy.create_api_key(
    p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamptz, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    if p_expires_at <= now() then
        raise exception 'the expiry lies in the past: %', p_expires_at using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash, expires_at)
    values (p_id, v_tenant_id, p_name, p_role, p_hint, p_key_hash, p_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'key.created', 'key:' || p_id, p_role);
end
$$;

-- True when the key exists in this tenant; revoking twice is the same as once.
create function tenancy.revoke_api_key(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update tenancy.api_keys
       set revoked_at = now()
     where tenant_id = v_tenant_id
       and id = p_id
       and revoked_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (v_tenant_id, p_actor, 'key.revoked', 'key:' || p_id);
    end if;
    return exists (select from tenancy.api_keys where tenant_id = v_tenant_id and id = p_id);
end
$$;

-- Whose key this is, before any tenant is known. `last_used_at` is kept to the minute, so that a busy key does
-- not make every request a write.
create function tenancy.authenticate_api_key(p_key_hash bytea)
returns table (key_id uuid, tenant_id uuid, role text, state text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update tenancy.api_keys as key
       set last_used_at = now()
     where key.key_hash = p_key_hash
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > now())
       and (key.last_used_at is null or key.last_used_at < now() - interval '1 minute');

    return query
        select key.id,
               key.tenant_id,
               key.role,
               case
                   when key.revoked_at is not null then 'revoked'
                   when key.expires_at <= now() then 'expired'
                   else 'active'
               end
          from tenancy.api_keys as key
         where key.key_hash = p_key_hash;
end
$$;

revoke all on all functions in schema tenancy from public;
grant execute on function tenancy.current_tenant_id(), tenancy.may_act_for(uuid), tenancy.required_tenant_id()
    to postrider_app, postrider_worker, postrider_read;
grant execute on function
    tenancy.create_api_key(uuid, text, text, text, bytea, timestamptz, text),
    tenancy.revoke_api_key(uuid, text),
    tenancy.authenticate_api_key(bytea)
    to postrider_app;

grant select on tenancy.tenants, tenancy.workspaces, tenancy.audit_log
    to postrider_app, postrider_worker, postrider_read;
-- Nobody needs the hashes but the function that compares them.
grant select (id, tenant_id, name, role, hint, created_at, expires_at, revoked_at, last_used_at)
    on tenancy.api_keys to postrider_app, postrider_read;
