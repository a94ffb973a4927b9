-- What can be run: set, and taken away.
-- Safe beside running workers: it adds functions and touches no table.

-- Sets a function, in place of the one of this name. Without a secret the one it has is kept.
-- False when somebody has made it under another id in the meantime: then the secret would not fit its row.
create function jobs.put_function(
    p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer, p_max_retries integer,
    p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer, p_sealed_secret bytea, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    -- Not as an insert that finds a conflict: that would be refused without the secret that is to be kept.
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
     where known.tenant_id = v_tenant_id
       and known.name = p_name
       and known.id = p_id;
    if not found then
        insert into jobs.functions
            (id, tenant_id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms,
             sealed_secret)
        values (p_id, v_tenant_id, p_name, p_kind, p_target, p_grain, p_timeout_seconds, p_max_retries, p_initial_delay_ms,
                p_backoff_multiplier, p_max_delay_ms, p_sealed_secret)
        on conflict (tenant_id, name) do nothing;
        if not found then
            return false;
        end if;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    -- Without a query, in which people put secrets.
    values (v_tenant_id, p_actor, 'function.put', 'function:' || p_name, p_kind || ' ' || split_part(p_target, '?', 1));
    return true;
end
$$;

-- Makes a function that comes with Postrider, unless the tenant has one of this name.
create function jobs.put_builtin(p_id uuid, p_name text, p_grain text)
returns void
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    insert into jobs.functions (id, tenant_id, name, kind, target, grain)
    values (p_id, tenancy.required_tenant_id(), p_name, 'builtin', p_name, p_grain)
    on conflict (tenant_id, name) do nothing
$$;

-- False when there is no such function. Schedules that need it keep it.
create function jobs.remove_function(p_name text, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_dependent text;
begin
    -- Whoever sets a schedule waits, and sees what is left.
    perform from tenancy.tenants where id = v_tenant_id for no key update;
    select schedule.function_name
      into v_dependent
      from jobs.schedules as schedule
     where schedule.tenant_id = v_tenant_id
       and p_name = any (schedule.depends_on || schedule.function_name)
     limit 1;
    if found then
        raise exception 'a schedule of the function % needs it', v_dependent
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    delete from jobs.functions
     where tenant_id = v_tenant_id
       and name = p_name;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'function.removed', 'function:' || p_name);
    return true;
end
$$;

revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.put_function(uuid, text, text, text, text, integer, integer, integer, double precision, integer, bytea, text),
    jobs.put_builtin(uuid, text, text),
    jobs.remove_function(text, text)
    to postrider_app;
