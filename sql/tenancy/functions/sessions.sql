-- Sessions of the dashboard, and the codes that open one.

create or replace function tenancy.open_session(
    p_tenant_id uuid, p_id uuid, p_key_id uuid, p_token_hash bytea, p_name text, p_idle_for interval, p_lifetime interval,
    p_actor text)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_expires_at timestamptz;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- The lock makes sign-ins with one key wait for each other, so that the limit below holds.
    select least(v_now + p_lifetime, key.expires_at)
      into v_expires_at
      from tenancy.api_keys as key
     where key.tenant_id = p_tenant_id
       and key.id = p_key_id
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now)
       for no key update;
    if not found then
        return null;
    end if;
    delete from tenancy.sessions as session
     using (select known.id
              from tenancy.sessions as known
             where known.tenant_id = p_tenant_id
               and known.key_id = p_key_id
             order by known.last_seen_at desc, known.id desc
            offset 99) as surplus
     where session.tenant_id = p_tenant_id
       and session.id = surplus.id;
    insert into tenancy.sessions (id, tenant_id, key_id, token_hash, name, idle_for, expires_at)
    values (p_id, p_tenant_id, p_key_id, p_token_hash, p_name, p_idle_for, v_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.opened', 'session:' || p_id);
    return v_expires_at;
end
$$;
revoke all on function tenancy.open_session(uuid, uuid, uuid, bytea, text, interval, interval, text) from public;
grant execute on function tenancy.open_session(uuid, uuid, uuid, bytea, text, interval, interval, text) to postrider_app;
comment on function tenancy.open_session(uuid, uuid, uuid, bytea, text, interval, interval, text) is
    'Stores the hash of a new session of an API key of the tenant. Returns the time at which it expires, at the latest '
    'with the key, or null if the key is not active. A key has at most 100 sessions; a further one replaces the one that '
    'was seen longest ago.';

create or replace function tenancy.authenticate_session(p_tenant_id uuid, p_token_hash bytea)
returns table (session_id uuid, key_id uuid, role text, name text, state text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    update tenancy.sessions as session
       set last_seen_at = v_now
      from tenancy.api_keys as key
     where session.tenant_id = p_tenant_id
       and session.token_hash = p_token_hash
       and session.expires_at > v_now
       and session.last_seen_at + session.idle_for > v_now
       and session.last_seen_at < v_now - interval '1 minute'
       and key.tenant_id = p_tenant_id
       and key.id = session.key_id
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now);
    if found then
        update tenancy.api_keys as key
           set last_used_at = v_now
          from tenancy.sessions as session
         where session.tenant_id = p_tenant_id
           and session.token_hash = p_token_hash
           and key.tenant_id = p_tenant_id
           and key.id = session.key_id
           and key.revoked_at is null
           and (key.last_used_at is null or key.last_used_at < v_now - interval '1 minute');
    end if;

    return query
        select session.id,
               session.key_id,
               key.role,
               session.name,
               case
                   when key.revoked_at is not null then 'key_revoked'
                   when key.expires_at <= v_now then 'key_expired'
                   when session.expires_at <= v_now or session.last_seen_at + session.idle_for <= v_now then 'expired'
                   else 'active'
               end
          from tenancy.sessions as session
          join tenancy.api_keys as key on key.tenant_id = session.tenant_id
                                      and key.id = session.key_id
         where session.tenant_id = p_tenant_id
           and session.token_hash = p_token_hash;
end
$$;
revoke all on function tenancy.authenticate_session(uuid, bytea) from public;
grant execute on function tenancy.authenticate_session(uuid, bytea) to postrider_app;
comment on function tenancy.authenticate_session(uuid, bytea) is
    'Returns the session with this hash, with id and role of its API key, and a state: `active`, `expired` (also after '
    'idle time), `key_expired` or `key_revoked`. The token names its tenant; the hash proves the right to act for it, so '
    'no context is needed. The function updates `last_seen_at`, and `last_used_at` of the key, at most once a minute.';

create or replace function tenancy.end_session(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.sessions as session
     where session.tenant_id = p_tenant_id
       and session.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.ended', 'session:' || p_id);
    return true;
end
$$;
revoke all on function tenancy.end_session(uuid, uuid, text) from public;
grant execute on function tenancy.end_session(uuid, uuid, text) to postrider_app;
comment on function tenancy.end_session(uuid, uuid, text) is
    'Ends a session because its person signs out. Returns whether the session existed.';

create or replace function tenancy.revoke_session(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.sessions as session
     where session.tenant_id = p_tenant_id
       and session.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.revoked', 'session:' || p_id);
    return true;
end
$$;
revoke all on function tenancy.revoke_session(uuid, uuid, text) from public;
grant execute on function tenancy.revoke_session(uuid, uuid, text) to postrider_app;
comment on function tenancy.revoke_session(uuid, uuid, text) is
    'Ends a session because an admin revokes it. Returns whether the session existed.';

create or replace function tenancy.make_login_code(
    p_tenant_id uuid, p_key_id uuid, p_code_hash bytea, p_name text, p_actor text)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_expires_at constant timestamptz := now() + interval '1 minute';
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into tenancy.login_codes (tenant_id, code_hash, key_id, name, expires_at)
    values (p_tenant_id, p_code_hash, p_key_id, p_name, v_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'login_code.created', 'key:' || p_key_id);
    return v_expires_at;
end
$$;
revoke all on function tenancy.make_login_code(uuid, uuid, bytea, text, text) from public;
comment on function tenancy.make_login_code(uuid, uuid, bytea, text, text) is
    'Stores the hash of a code that opens one session of this API key within a minute. Returns the time at which the code '
    'expires. Only members of the owner role may call it.';

create or replace function tenancy.use_login_code(p_tenant_id uuid, p_code_hash bytea)
returns table (key_id uuid, role text, name text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_key_id uuid;
    v_name text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.login_codes as code
     where code.tenant_id = p_tenant_id
       and code.code_hash = p_code_hash
       and code.expires_at > v_now
    returning code.key_id, code.name into v_key_id, v_name;
    return query
        select key.id, key.role, v_name
          from tenancy.api_keys as key
         where key.tenant_id = p_tenant_id
           and key.id = v_key_id
           and key.revoked_at is null
           and (key.expires_at is null or key.expires_at > v_now);
end
$$;
revoke all on function tenancy.use_login_code(uuid, bytea) from public;
grant execute on function tenancy.use_login_code(uuid, bytea) to postrider_app;
comment on function tenancy.use_login_code(uuid, bytea) is
    'Deletes the login code with this hash and returns its API key, with the name for the session. Returns no row if the '
    'code is unknown, was used, or has expired, or if the key is not active.';

create or replace function tenancy.tenants_with_old_sessions()
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from tenancy.sessions as session
                    where session.tenant_id = tenant.id
                      and session.expires_at < now())
        or exists (select
                     from tenancy.login_codes as code
                    where code.tenant_id = tenant.id
                      and code.expires_at < now())
$$;
revoke all on function tenancy.tenants_with_old_sessions() from public;
grant execute on function tenancy.tenants_with_old_sessions() to postrider_worker;
comment on function tenancy.tenants_with_old_sessions() is
    'Returns the tenants that have expired sessions or login codes. Retention calls prune_sessions for each of them.';

create or replace function tenancy.prune_sessions(p_tenant_id uuid, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
    v_sessions bigint;
    v_codes bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 1 then
        raise exception 'the limit must be at least one' using errcode = 'invalid_parameter_value';
    end if;
    delete from tenancy.sessions as session
     using (select old.id
              from tenancy.sessions as old
             where old.tenant_id = p_tenant_id
               and old.expires_at < v_now
             order by old.expires_at
             limit p_limit
               for update skip locked) as old
     where session.tenant_id = p_tenant_id
       and session.id = old.id;
    get diagnostics v_sessions = row_count;
    delete from tenancy.login_codes as code
     using (select old.code_hash
              from tenancy.login_codes as old
             where old.tenant_id = p_tenant_id
               and old.expires_at < v_now
             order by old.expires_at
             limit p_limit
               for update skip locked) as old
     where code.tenant_id = p_tenant_id
       and code.code_hash = old.code_hash;
    get diagnostics v_codes = row_count;
    return v_sessions + v_codes;
end
$$;
revoke all on function tenancy.prune_sessions(uuid, integer) from public;
grant execute on function tenancy.prune_sessions(uuid, integer) to postrider_worker;
comment on function tenancy.prune_sessions(uuid, integer) is
    'Deletes up to p_limit expired sessions and as many expired login codes of the tenant. It skips locked rows; the next '
    'call deletes those.';
