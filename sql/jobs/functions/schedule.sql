-- Schedules: people create, change, enable, disable and remove them.

create or replace function jobs.put_schedule(
    p_tenant_id uuid, p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb,
    p_entities json, p_entity_hash text, p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamptz,
    p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now     constant timestamptz := now();
    v_unknown text;
    v_needed  text[];
    v_ways    text[];
    v_next    text;
    v_at      integer := 1;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    -- One caller per tenant at a time, so that two schedules cannot form a cycle together.
    perform from tenancy.tenants where id = p_tenant_id for no key update;
    select wanted.name
      into v_unknown
      from unnest(p_depends_on || p_function) as wanted (name)
     where not exists (select from jobs.functions as function
                        where function.tenant_id = p_tenant_id and function.name = wanted.name)
     limit 1;
    if found then
        raise exception 'there is no function %', v_unknown
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    -- Visits every function that it would wait for, directly or not, once; the number of paths can be exponential.
    v_needed := p_depends_on;
    select coalesce(array_agg(p_function || ' → ' || needed.name order by needed.place), '{}')
      into v_ways
      from unnest(p_depends_on) with ordinality as needed (name, place);
    while v_at <= cardinality(v_needed) loop
        if v_needed[v_at] = p_function then
            raise exception 'the functions would wait for each other: %', v_ways[v_at]
                using errcode = 'check_violation', constraint = 'schedules_depend_in_no_circle';
        end if;
        for v_next in
            select distinct needed.name
              from jobs.schedules as schedule
             cross join unnest(schedule.depends_on) as needed (name)
             where schedule.tenant_id = p_tenant_id
               and schedule.function_name = v_needed[v_at]
               and schedule.id <> p_id
               and needed.name <> all (v_needed)
        loop
            v_needed := v_needed || v_next;
            v_ways := v_ways || (v_ways[v_at] || ' → ' || v_next);
        end loop;
        v_at := v_at + 1;
    end loop;
    insert into jobs.schedules as known
        (id, tenant_id, function_name, cron, timezone, grain, input, entities, entity_hash, depends_on, misfire, enabled, next_fire_at)
    values (p_id, p_tenant_id, p_function, p_cron, p_timezone, p_grain, p_input, p_entities, p_entity_hash, p_depends_on, p_misfire,
            p_enabled, p_next_fire_at)
    on conflict (tenant_id, id) do update
       set function_name = excluded.function_name,
           cron = excluded.cron,
           timezone = excluded.timezone,
           grain = excluded.grain,
           input = excluded.input,
           entities = excluded.entities,
           entity_hash = excluded.entity_hash,
           depends_on = excluded.depends_on,
           misfire = excluded.misfire,
           enabled = excluded.enabled,
           next_fire_at = case when known.enabled and excluded.enabled and known.cron = excluded.cron and known.timezone = excluded.timezone
                               then known.next_fire_at
                               else excluded.next_fire_at end,
           version = known.version + 1,
           updated_at = v_now;
    perform jobs.audit(p_tenant_id, p_actor, 'schedule.put', 'schedule:' || p_id, p_function || ' ' || p_cron || ' ' || p_timezone);
end
$$;
comment on function jobs.put_schedule(uuid, uuid, text, text, text, text, jsonb, json, text, text[], text, boolean,
                                      timestamptz, text) is
    'Creates or replaces a schedule. An enabled schedule keeps its next firing if cron and timezone stay the same. '
    'Raises an error if a function does not exist or if the dependencies form a cycle.';
revoke all on function
    jobs.put_schedule(uuid, uuid, text, text, text, text, jsonb, json, text, text[], text, boolean, timestamptz, text)
    from public;
grant execute on function
    jobs.put_schedule(uuid, uuid, text, text, text, text, jsonb, json, text, text[], text, boolean, timestamptz, text)
    to postrider_app;

create or replace function jobs.switch_schedule(
    p_tenant_id uuid, p_id uuid, p_enabled boolean, p_next_fire_at timestamptz, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update jobs.schedules as schedule
       set enabled = p_enabled,
           next_fire_at = case when p_enabled then p_next_fire_at else schedule.next_fire_at end,
           version = schedule.version + 1,
           updated_at = now()
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
       and schedule.enabled <> p_enabled;
    if found then
        perform jobs.audit(p_tenant_id, p_actor, case when p_enabled then 'schedule.enabled' else 'schedule.disabled' end, 'schedule:' || p_id);
    end if;
    return exists (select from jobs.schedules as schedule where schedule.tenant_id = p_tenant_id and schedule.id = p_id);
end
$$;
comment on function jobs.switch_schedule(uuid, uuid, boolean, timestamptz, text) is
    'Enables a schedule, with its next firing at p_next_fire_at, or disables it. Returns false if it does not '
    'exist.';
revoke all on function jobs.switch_schedule(uuid, uuid, boolean, timestamptz, text) from public;
grant execute on function jobs.switch_schedule(uuid, uuid, boolean, timestamptz, text) to postrider_app;

create or replace function jobs.remove_schedule(p_tenant_id uuid, p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_function text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from jobs.schedules as schedule
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
    returning schedule.function_name into v_function;
    if not found then
        return false;
    end if;
    perform jobs.audit(p_tenant_id, p_actor, 'schedule.removed', 'schedule:' || p_id, v_function);
    return true;
end
$$;
comment on function jobs.remove_schedule(uuid, uuid, text) is
    'Removes a schedule and its firings; its runs stay. Returns false if it does not exist.';
revoke all on function jobs.remove_schedule(uuid, uuid, text) from public;
grant execute on function jobs.remove_schedule(uuid, uuid, text) to postrider_app;
