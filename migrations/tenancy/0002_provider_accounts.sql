-- Accounts of tenants at providers. The secret is sealed outside the database, bound to tenant and row.
-- Safe beside running workers: it adds a table and touches no other.

create table tenancy.provider_accounts (
    id            uuid        not null,
    tenant_id     uuid        not null,
    workspace_id  uuid        not null,
    name          text        not null,
    provider      text        not null,
    settings      jsonb       not null default '{}',
    sealed_secret bytea       not null,
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint provider_accounts_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint provider_accounts_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint provider_accounts_provider_is_given check (provider ~ '^[a-z][a-z0-9_]{0,62}$'),
    constraint provider_accounts_settings_are_an_object check (jsonb_typeof(settings) = 'object'),
    constraint provider_accounts_one_per_name unique (tenant_id, workspace_id, name)
);
select tenancy.protect('tenancy.provider_accounts');

create trigger provider_accounts_stay_where_they_are
    before update of id, tenant_id on tenancy.provider_accounts
    for each row
    when (old.id <> new.id or old.tenant_id <> new.tenant_id)
    execute function tenancy.refuse_change('an account does not move; its secret is bound to its row');

create function tenancy.create_provider_account(
    p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, settings, sealed_secret)
    values (p_id, v_tenant_id, p_workspace_id, p_name, p_provider, p_settings, p_sealed_secret);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'account.created', 'account:' || p_id, p_provider);
end
$$;

create function tenancy.rotate_provider_account(p_id uuid, p_sealed_secret bytea, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update tenancy.provider_accounts
       set sealed_secret = p_sealed_secret,
           updated_at = now()
     where tenant_id = v_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'account.rotated', 'account:' || p_id);
    return true;
end
$$;

create function tenancy.remove_provider_account(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from tenancy.provider_accounts
     where tenant_id = v_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'account.removed', 'account:' || p_id);
    return true;
end
$$;

revoke all on function
    tenancy.create_provider_account(uuid, uuid, text, text, jsonb, bytea, text),
    tenancy.rotate_provider_account(uuid, bytea, text),
    tenancy.remove_provider_account(uuid, text)
    from public;
grant execute on function
    tenancy.create_provider_account(uuid, uuid, text, text, jsonb, bytea, text),
    tenancy.rotate_provider_account(uuid, bytea, text),
    tenancy.remove_provider_account(uuid, text)
    to postrider_app;

-- Secrets are for the loops that call providers; whoever serves requests sees everything but them.
grant select on tenancy.provider_accounts to postrider_worker;
grant select (id, tenant_id, workspace_id, name, provider, settings, created_at, updated_at)
    on tenancy.provider_accounts to postrider_app, postrider_read;
