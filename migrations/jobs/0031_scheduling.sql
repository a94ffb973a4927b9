-- Schedules: set by people, fired by any scheduler that comes first. There is no leader: a firing is a row under a unique key,
-- made in the transaction that moves the schedule on.
-- Safe beside running workers: it adds functions and touches no table.

-- What a firing still waits for, and why: functions that have no completed run in a grain that overlaps its own.
create function jobs.unmet_dependencies(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamptz)
returns table (function_name text, why text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with own as (
        select jobs.grain_start(p_grain, p_fire_at) as since,
               jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain) as until
    )
    select wanted.name,
           coalesce((select case
                                when run.status = 'running' then 'it is running'
                                when run.retry_at is not null then 'it failed and waits for its retry'
                                when run.status = 'failed' then 'it failed'
                                else 'it was cancelled'
                            end || ' (run ' || run.id || ')'
                       from jobs.job_runs as run, own
                      where run.tenant_id = p_tenant_id
                        and run.function_name = wanted.name
                        and run.grain_start > own.since - interval '24 hours'
                        and run.grain_start < own.until
                        and run.grain_start + jobs.grain_length(run.grain) > own.since
                      order by run.created_at desc
                      limit 1),
                    'it has not run yet')
      from unnest(p_depends_on) as wanted (name), own
     where not exists (select
                         from jobs.job_runs as run
                        where run.tenant_id = p_tenant_id
                          and run.function_name = wanted.name
                          and run.status = 'completed'
                          -- The longest grain is a day: nothing older can reach into ours.
                          and run.grain_start > own.since - interval '24 hours'
                          and run.grain_start < own.until
                          and run.grain_start + jobs.grain_length(run.grain) > own.since)
$$;

-- Whether a firing waits for nothing any more. It is asked often, so it says no more than that.
create function jobs.are_dependencies_met(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamptz)
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select not exists (
        select
          from unnest(p_depends_on) as wanted (name)
         where not exists (
             select
               from jobs.job_runs as run
              where run.tenant_id = p_tenant_id
                and run.function_name = wanted.name
                and run.status = 'completed'
                -- The longest grain is a day: nothing older can reach into ours.
                and run.grain_start > jobs.grain_start(p_grain, p_fire_at) - interval '24 hours'
                and run.grain_start < jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain)
                and run.grain_start + jobs.grain_length(run.grain) > jobs.grain_start(p_grain, p_fire_at)))
$$;

-- Sets a schedule. While its times stay the same it also keeps the firing that it has in mind.
create function jobs.put_schedule(
    p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb, p_entities json, p_entity_hash text,
    p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamptz, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_unknown   text;
    v_needed    text[];
    v_ways      text[];
    v_next      text;
    v_at        integer := 1;
begin
    perform jobs.keep_moving();
    -- One at a time per tenant, so that two schedules cannot close a circle between them.
    perform from tenancy.tenants where id = v_tenant_id for no key update;
    select wanted.name
      into v_unknown
      from unnest(p_depends_on || p_function) as wanted (name)
     where not exists (select from jobs.functions as function
                        where function.tenant_id = v_tenant_id and function.name = wanted.name)
     limit 1;
    if found then
        raise exception 'there is no function %', v_unknown
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    -- Everything that it would wait for, each function once: there may be more ways through it than one could go.
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
             where schedule.tenant_id = v_tenant_id
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
    values (p_id, v_tenant_id, p_function, p_cron, p_timezone, p_grain, p_input, p_entities, p_entity_hash, p_depends_on, p_misfire,
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
           updated_at = now();
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'schedule.put', 'schedule:' || p_id, p_function || ' ' || p_cron || ' ' || p_timezone);
end
$$;

-- Switches a schedule on, from `p_next_fire_at` on, or off. False when there is none.
create function jobs.switch_schedule(p_id uuid, p_enabled boolean, p_next_fire_at timestamptz, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update jobs.schedules as schedule
       set enabled = p_enabled,
           next_fire_at = case when p_enabled then p_next_fire_at else schedule.next_fire_at end,
           version = schedule.version + 1,
           updated_at = now()
     where schedule.tenant_id = v_tenant_id
       and schedule.id = p_id
       and schedule.enabled <> p_enabled;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (v_tenant_id, p_actor, case when p_enabled then 'schedule.enabled' else 'schedule.disabled' end, 'schedule:' || p_id);
    end if;
    return exists (select from jobs.schedules as schedule where schedule.tenant_id = v_tenant_id and schedule.id = p_id);
end
$$;

-- Removes a schedule with what is known of its firings; its runs stay. False when there is none.
create function jobs.remove_schedule(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_function  text;
begin
    delete from jobs.schedules as schedule
     where schedule.tenant_id = v_tenant_id
       and schedule.id = p_id
    returning schedule.function_name into v_function;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'schedule.removed', 'schedule:' || p_id, v_function);
    return true;
end
$$;

-- Schedules whose time has come, by the database's clock, which it tells: those of the schedulers may differ. Of one tenant no more than a
-- part at a time, and none of those that the caller cannot fire.
create function jobs.due_schedules(p_limit integer, p_per_tenant integer, p_except uuid[])
returns table (tenant_id uuid, id uuid, cron text, timezone text, misfire text, next_fire_at timestamptz, version integer, now timestamptz)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with oldest as materialized (
        select schedule.*
          from jobs.schedules as schedule
         where schedule.enabled
           and schedule.next_fire_at <= now()
           and schedule.id <> all (p_except)
         order by schedule.next_fire_at
         limit p_limit * 10
    )
    select due.tenant_id, due.id, due.cron, due.timezone, due.misfire, due.next_fire_at, due.version, now()
      from (select oldest.*, row_number() over (partition by oldest.tenant_id order by oldest.next_fire_at) as place
              from oldest) as due
     where due.place <= p_per_tenant
     order by due.place, due.next_fire_at
     limit p_limit
$$;

-- Decides a firing that is written down as waiting: it starts a run, or is skipped because its grain has one. The caller holds it.
create function jobs.decide_firing(p_schedule jobs.schedules, p_fire_at timestamptz, p_run_id uuid)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grain  text;
    v_opened record;
begin
    select coalesce(p_schedule.grain, function.grain)
      into v_grain
      from jobs.functions as function
     where function.tenant_id = p_schedule.tenant_id
       and function.name = p_schedule.function_name;
    if not jobs.are_dependencies_met(p_schedule.tenant_id, p_schedule.depends_on, v_grain, p_fire_at) then
        -- One of a grain waits for all of it, so that what waits does not grow by the minute.
        update jobs.schedule_firings as firing
           set outcome = 'skipped',
               reason = 'another firing of this grain waits already',
               decided_at = now()
         where firing.tenant_id = p_schedule.tenant_id
           and firing.schedule_id = p_schedule.id
           and firing.fire_at = p_fire_at
           and exists (select
                         from jobs.schedule_firings as other
                        where other.tenant_id = firing.tenant_id
                          and other.schedule_id = firing.schedule_id
                          and other.fire_at >= jobs.grain_start(v_grain, p_fire_at)
                          and other.fire_at < p_fire_at
                          and other.outcome = 'waiting');
        return case when found then 'skipped' else 'waiting' end;
    end if;
    select *
      into strict v_opened
      from jobs.open_run(p_schedule.tenant_id, p_run_id, p_schedule.function_name, v_grain, p_fire_at, p_schedule.entity_hash,
                         p_schedule.input, p_schedule.id, false);
    update jobs.schedule_firings as firing
       set outcome = case v_opened.outcome when 'acquired' then 'started' else 'skipped' end,
           job_run_id = v_opened.run_id,
           reason = case v_opened.outcome
                        when 'running' then 'a run of this grain is running'
                        when 'retry_pending' then 'a run of this grain waits for its retry'
                        when 'completed' then 'completed before in this grain'
                    end,
           decided_at = now()
     where firing.tenant_id = p_schedule.tenant_id
       and firing.schedule_id = p_schedule.id
       and firing.fire_at = p_fire_at;
    return case v_opened.outcome when 'acquired' then 'started' else 'skipped' end;
end
$$;

-- Fires a schedule: each of these times once, and moves it on. It does nothing, and says so with null, when somebody else was
-- faster or the schedule was changed: `p_due` and `p_version` are what the caller's plan was made of. `p_skipped_at` is the last of the
-- times that were left out. Answers how many runs were started.
create function jobs.fire_schedule(
    p_tenant_id uuid, p_id uuid, p_due timestamptz, p_version integer, p_fire_at timestamptz[], p_run_ids uuid[],
    p_skipped_at timestamptz, p_skipped_reason text, p_next_fire_at timestamptz)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schedule jobs.schedules;
    v_started  integer := 0;
begin
    perform jobs.keep_moving();
    -- Who waits for somebody else here keeps all other schedules waiting.
    perform
       from jobs.schedules as schedule
      where schedule.tenant_id = p_tenant_id
        and schedule.id = p_id
        for update skip locked;
    if not found then
        return null;
    end if;
    update jobs.schedules as schedule
       set next_fire_at = p_next_fire_at,
           last_fire_at = coalesce(p_fire_at[cardinality(p_fire_at)], schedule.last_fire_at)
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
       and schedule.enabled
       and schedule.next_fire_at = p_due
       and schedule.version = p_version
       -- Nobody fires before the time, whatever their clock says.
       and p_due <= now()
       and now() >= all (p_fire_at)
    returning schedule.* into v_schedule;
    if not found then
        return null;
    end if;
    if p_skipped_at is not null then
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, reason, decided_at)
        values (p_tenant_id, p_id, p_skipped_at, 'skipped', p_skipped_reason, now())
        on conflict do nothing;
    end if;
    for v_place in 1 .. cardinality(p_fire_at) loop
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome)
        values (p_tenant_id, p_id, p_fire_at[v_place], 'waiting')
        on conflict do nothing;
        if found and jobs.decide_firing(v_schedule, p_fire_at[v_place], p_run_ids[v_place]) = 'started' then
            v_started := v_started + 1;
        end if;
    end loop;
    return v_started;
end
$$;

-- Looks at up to so many waiting firings, those first that were not looked at for longest: goes on with what waits for nothing any more, and
-- gives up what has waited too long or whose schedule was switched off. Answers how many runs were started.
create function jobs.fire_waiting(p_limit integer, p_patience interval)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_firing  record;
    v_started integer := 0;
begin
    perform jobs.keep_moving();
    for v_firing in
        with looked as materialized (
            select firing.tenant_id, firing.schedule_id, firing.fire_at
              from jobs.schedule_firings as firing
             where firing.outcome = 'waiting'
             order by firing.looked_at
             limit p_limit
               for update skip locked
        )
        select firing.fire_at, firing.created_at < now() - p_patience as is_late, schedule
          from looked
          join jobs.schedule_firings as firing
            on firing.tenant_id = looked.tenant_id and firing.schedule_id = looked.schedule_id and firing.fire_at = looked.fire_at
          join jobs.schedules as schedule on schedule.tenant_id = firing.tenant_id and schedule.id = firing.schedule_id
         -- In one order for all, so that two schedulers do not wait for each other's keys.
         order by schedule.tenant_id, schedule.function_name, firing.fire_at, schedule.id
    loop
        if v_firing.is_late or not (v_firing.schedule).enabled then
            update jobs.schedule_firings as firing
               set outcome = 'skipped',
                   reason = case when v_firing.is_late then 'what it depends on did not complete in time'
                                 else 'the schedule was disabled while it waited' end,
                   decided_at = now()
             where firing.tenant_id = (v_firing.schedule).tenant_id
               and firing.schedule_id = (v_firing.schedule).id
               and firing.fire_at = v_firing.fire_at;
            continue;
        end if;
        case jobs.decide_firing(v_firing.schedule, v_firing.fire_at, jobs.new_id())
            when 'started' then
                v_started := v_started + 1;
            when 'waiting' then
                update jobs.schedule_firings as firing
                   set looked_at = clock_timestamp()
                 where firing.tenant_id = (v_firing.schedule).tenant_id
                   and firing.schedule_id = (v_firing.schedule).id
                   and firing.fire_at = v_firing.fire_at;
            else
                null;
        end case;
    end loop;
    return v_started;
end
$$;

-- What a firing of the context's tenant waits for, in words.
create function jobs.why_waiting(p_schedule_id uuid, p_fire_at timestamptz)
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select string_agg('waits for ' || unmet.function_name || ': ' || unmet.why, '; ' order by unmet.function_name)
      from jobs.schedules as schedule
      join jobs.functions as function on function.tenant_id = schedule.tenant_id and function.name = schedule.function_name
     cross join lateral jobs.unmet_dependencies(schedule.tenant_id, schedule.depends_on, coalesce(schedule.grain, function.grain),
                                                p_fire_at) as unmet
     where schedule.tenant_id = tenancy.required_tenant_id()
       and schedule.id = p_schedule_id
$$;

revoke all on all functions in schema jobs from public;
grant execute on function jobs.why_waiting(uuid, timestamptz) to postrider_app, postrider_worker, postrider_read;
grant execute on function
    jobs.put_schedule(uuid, text, text, text, text, jsonb, json, text, text[], text, boolean, timestamptz, text),
    jobs.switch_schedule(uuid, boolean, timestamptz, text),
    jobs.remove_schedule(uuid, text)
    to postrider_app;
grant execute on function
    jobs.due_schedules(integer, integer, uuid[]),
    jobs.fire_schedule(uuid, uuid, timestamptz, integer, timestamptz[], uuid[], timestamptz, text, timestamptz),
    jobs.fire_waiting(integer, interval)
    to postrider_worker;
