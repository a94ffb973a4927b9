-- Tenants and their API keys.

create or replace function tenancy.create_tenant(p_tenant_id uuid, p_workspace_id uuid, p_name text, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into tenancy.tenants (id, name) values (p_tenant_id, p_name);
    insert into tenancy.workspaces (id, tenant_id, name) values (p_workspace_id, p_tenant_id, 'default');
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'tenant.created', 'tenant:' || p_tenant_id);
end
$$;
revoke all on function tenancy.create_tenant(uuid, uuid, text, text) from public;
comment on function tenancy.create_tenant(uuid, uuid, text, text) is
    'Creates a tenant with its workspace `default`. Only members of the owner role may call it, because a caller that '
    'can create tenants can act for all of them.';

create or replace function tenancy.create_api_key(
    p_tenant_id uuid, p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamptz,
    p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_expires_at <= now() then
        raise exception 'the expiry lies in the past: %', p_expires_at using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash, expires_at)
    values (p_id, p_tenant_id, p_name, p_role, p_hint, p_key_hash, p_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'key.created', 'key:' || p_id, p_role);
end
$$;
revoke all on function tenancy.create_api_key(uuid, uuid, text, text, text, bytea, timestamptz, text) from public;
grant execute on function tenancy.create_api_key(uuid, uuid, text, text, text, bytea, timestamptz, text) to postrider_app;
comment on function tenancy.create_api_key(uuid, uuid, text, text, text, bytea, timestamptz, text) is
    'Stores the hash of a new API key of the tenant. Raises an error if the expiry is in the past.';

create or replace function tenancy.revoke_api_key(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.api_keys
       set revoked_at = v_now
     where tenant_id = p_tenant_id
       and id = p_id
       and revoked_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (p_tenant_id, p_actor, 'key.revoked', 'key:' || p_id);
    end if;
    return exists (select from tenancy.api_keys where tenant_id = p_tenant_id and id = p_id);
end
$$;
revoke all on function tenancy.revoke_api_key(uuid, uuid, text) from public;
grant execute on function tenancy.revoke_api_key(uuid, uuid, text) to postrider_app;
comment on function tenancy.revoke_api_key(uuid, uuid, text) is
    'Revokes an API key of the tenant. Returns whether the key exists; revoking it again changes nothing.';

create or replace function tenancy.authenticate_api_key(p_tenant_id uuid, p_key_hash bytea)
returns table (key_id uuid, role text, state text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    update tenancy.api_keys as key
       set last_used_at = v_now
     where key.tenant_id = p_tenant_id
       and key.key_hash = p_key_hash
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now)
       and (key.last_used_at is null or key.last_used_at < v_now - interval '1 minute');

    return query
        select key.id,
               key.role,
               case
                   when key.revoked_at is not null then 'revoked'
                   when key.expires_at <= v_now then 'expired'
                   else 'active'
               end
          from tenancy.api_keys as key
         where key.tenant_id = p_tenant_id
           and key.key_hash = p_key_hash;
end
$$;
revoke all on function tenancy.authenticate_api_key(uuid, bytea) from public;
grant execute on function tenancy.authenticate_api_key(uuid, bytea) to postrider_app;
comment on function tenancy.authenticate_api_key(uuid, bytea) is
    'Returns id, role and state (`active`, `expired`, `revoked`) of the key with this hash. The key names its tenant; '
    'the hash proves the right to act for it, so no context is needed. The function updates `last_used_at` at most once '
    'a minute, so that a busy key does not make every request a write.';
