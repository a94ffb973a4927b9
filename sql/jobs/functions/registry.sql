-- Registered functions: the API and the server create, change and remove them.

create or replace function jobs.put_function(
    p_tenant_id uuid, p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer,
    p_max_retries integer, p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer,
    p_sealed_secret bytea, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Not an insert with `on conflict do update`: a check constraint would reject the inserted row when the caller
    -- passes no secret because the existing one is to be kept.
    update jobs.functions as known
       set kind = p_kind,
           target = p_target,
           grain = p_grain,
           timeout_seconds = p_timeout_seconds,
           max_retries = p_max_retries,
           initial_delay_ms = p_initial_delay_ms,
           backoff_multiplier = p_backoff_multiplier,
           max_delay_ms = p_max_delay_ms,
           sealed_secret = case when p_kind = 'http' then coalesce(p_sealed_secret, known.sealed_secret) end,
           updated_at = now()
     where known.tenant_id = p_tenant_id
       and known.name = p_name
       and known.id = p_id;
    if not found then
        insert into jobs.functions
            (id, tenant_id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms,
             sealed_secret)
        values (p_id, p_tenant_id, p_name, p_kind, p_target, p_grain, p_timeout_seconds, p_max_retries, p_initial_delay_ms,
                p_backoff_multiplier, p_max_delay_ms, p_sealed_secret)
        on conflict (tenant_id, name) do nothing;
        if not found then
            return false;
        end if;
    end if;
    -- The note leaves out the query of the URL, which may contain secrets.
    perform jobs.audit(p_tenant_id, p_actor, 'function.put', 'function:' || p_name, p_kind || ' ' || split_part(p_target, '?', 1));
    return true;
end
$$;
comment on function jobs.put_function(uuid, uuid, text, text, text, text, integer, integer, integer, double precision,
                                      integer, bytea, text) is
    'Creates a function or replaces the one with this name. A null p_sealed_secret keeps the existing secret. '
    'Returns false if the name belongs to a function with another id: the secret is sealed to the id and would not '
    'fit.';
revoke all on function
    jobs.put_function(uuid, uuid, text, text, text, text, integer, integer, integer, double precision, integer, bytea, text)
    from public;
grant execute on function
    jobs.put_function(uuid, uuid, text, text, text, text, integer, integer, integer, double precision, integer, bytea, text)
    to postrider_app;

create or replace function jobs.put_builtin(p_tenant_id uuid, p_id uuid, p_name text, p_grain text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into jobs.functions (id, tenant_id, name, kind, target, grain)
    values (p_id, p_tenant_id, p_name, 'builtin', p_name, p_grain)
    on conflict (tenant_id, name) do nothing;
end
$$;
comment on function jobs.put_builtin(uuid, uuid, text, text) is
    'Registers a function that Postrider provides, unless the tenant has a function with this name.';
revoke all on function jobs.put_builtin(uuid, uuid, text, text) from public;
grant execute on function jobs.put_builtin(uuid, uuid, text, text) to postrider_app;

create or replace function jobs.provide_functions(p_runner text, p_names text[], p_lease interval)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := now();
begin
    -- Rows of dead processes. Two runners that remove them at the same time do not wait for each other.
    with expired as (
        select name, runner
          from jobs.provided_functions
         where expires_at < v_now
           for update skip locked
    )
    delete from jobs.provided_functions as known
     using expired
     where known.name = expired.name
       and known.runner = expired.runner;
    insert into jobs.provided_functions (name, runner, expires_at)
    select distinct name, p_runner, v_now + p_lease
      from unnest(p_names) as name
     order by name
    on conflict (name, runner) do update
       set expires_at = excluded.expires_at;
end
$$;
comment on function jobs.provide_functions(text, text[], interval) is
    'Registers the Rust functions that a running process provides, or renews them, for the time of p_lease. Removes the '
    'rows of dead processes.';
revoke all on function jobs.provide_functions(text, text[], interval) from public;
grant execute on function jobs.provide_functions(text, text[], interval) to postrider_worker;

create or replace function jobs.withdraw_functions(p_runner text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    delete from jobs.provided_functions where runner = p_runner
$$;
comment on function jobs.withdraw_functions(text) is
    'Removes the Rust functions of a process that stops.';
revoke all on function jobs.withdraw_functions(text) from public;
grant execute on function jobs.withdraw_functions(text) to postrider_worker;

create or replace function jobs.remove_function(p_tenant_id uuid, p_name text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_dependent text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- put_schedule takes the same lock, so it waits and then sees that the function is gone.
    perform from tenancy.tenants where id = p_tenant_id for no key update;
    select schedule.function_name
      into v_dependent
      from jobs.schedules as schedule
     where schedule.tenant_id = p_tenant_id
       and p_name = any (schedule.depends_on || schedule.function_name)
     limit 1;
    if found then
        raise exception 'a schedule of the function % needs it', v_dependent
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    delete from jobs.functions
     where tenant_id = p_tenant_id
       and name = p_name;
    if not found then
        return false;
    end if;
    perform jobs.audit(p_tenant_id, p_actor, 'function.removed', 'function:' || p_name);
    return true;
end
$$;
comment on function jobs.remove_function(uuid, text, text) is
    'Removes a function. Returns false if it does not exist; raises an error if a schedule runs it or depends on '
    'it.';
revoke all on function jobs.remove_function(uuid, text, text) from public;
grant execute on function jobs.remove_function(uuid, text, text) to postrider_app;
