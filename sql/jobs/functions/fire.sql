-- Firing of schedules by any number of schedulers, without a leader: a firing is a row under a unique key, inserted
-- in the transaction that advances the schedule.

create or replace function jobs.due_schedules(
    p_limit integer, p_per_tenant integer, p_except_tenant_ids uuid[], p_except_ids uuid[])
returns table (tenant_id uuid, id uuid, cron text, timezone text, misfire text, next_fire_at timestamptz,
               version integer, now timestamptz)
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
           and (schedule.tenant_id, schedule.id) not in (select excepted.tenant_id, excepted.id
                                                           from unnest(p_except_tenant_ids, p_except_ids) as excepted (tenant_id, id))
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
comment on function jobs.due_schedules(integer, integer, uuid[], uuid[]) is
    'Returns up to p_limit schedules that are due by the database clock, and the time of that clock. Returns at '
    'most p_per_tenant schedules of one tenant, and none of the pairs in p_except_tenant_ids and p_except_ids, which the '
    'scheduler cannot fire. Locks nothing; fire_schedule then fires one schedule of one tenant.';
revoke all on function jobs.due_schedules(integer, integer, uuid[], uuid[]) from public;
grant execute on function jobs.due_schedules(integer, integer, uuid[], uuid[]) to postrider_worker;

create or replace function jobs.decide_firing(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamptz, p_run_id uuid)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now      constant timestamptz := now();
    v_schedule record;
    v_opened   record;
begin
    select schedule.function_name, schedule.input, schedule.entity_hash, schedule.depends_on,
           coalesce(schedule.grain, function.grain) as grain
      into strict v_schedule
      from jobs.schedules as schedule
      join jobs.functions as function on function.tenant_id = schedule.tenant_id and function.name = schedule.function_name
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_schedule_id;
    if not jobs.are_dependencies_met(p_tenant_id, v_schedule.depends_on, v_schedule.grain, p_fire_at) then
        -- One firing per grain waits, so that the number of waiting firings stays small.
        update jobs.schedule_firings as firing
           set outcome = 'skipped',
               reason = 'another firing of this grain waits already',
               decided_at = v_now
         where firing.tenant_id = p_tenant_id
           and firing.schedule_id = p_schedule_id
           and firing.fire_at = p_fire_at
           and exists (select
                         from jobs.schedule_firings as other
                        where other.tenant_id = p_tenant_id
                          and other.schedule_id = p_schedule_id
                          and other.fire_at >= jobs.grain_start(v_schedule.grain, p_fire_at)
                          and other.fire_at < p_fire_at
                          and other.outcome = 'waiting');
        return case when found then 'skipped' else 'waiting' end;
    end if;
    select *
      into strict v_opened
      from jobs.open_run(p_tenant_id, p_run_id, v_schedule.function_name, v_schedule.grain, p_fire_at, v_schedule.entity_hash,
                         v_schedule.input, p_schedule_id, false);
    update jobs.schedule_firings as firing
       set outcome = case v_opened.outcome when 'acquired' then 'started' else 'skipped' end,
           job_run_id = v_opened.run_id,
           reason = case v_opened.outcome
                        when 'running' then 'a run of this grain is running'
                        when 'retry_pending' then 'a run of this grain waits for its retry'
                        when 'completed' then 'completed before in this grain'
                    end,
           decided_at = v_now
     where firing.tenant_id = p_tenant_id
       and firing.schedule_id = p_schedule_id
       and firing.fire_at = p_fire_at;
    return case v_opened.outcome when 'acquired' then 'started' else 'skipped' end;
end
$$;
comment on function jobs.decide_firing(uuid, uuid, timestamptz, uuid) is
    'Decides a waiting firing: starts a run, skips the firing because its grain has a run or another waiting '
    'firing, or lets it wait for its dependencies. Returns started, skipped or waiting. The caller has locked the '
    'firing.';
revoke all on function jobs.decide_firing(uuid, uuid, timestamptz, uuid) from public;

create or replace function jobs.fire_schedule(
    p_tenant_id uuid, p_id uuid, p_due timestamptz, p_version integer, p_fire_at timestamptz[], p_run_ids uuid[],
    p_skipped_at timestamptz, p_skipped_reason text, p_next_fire_at timestamptz)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now     constant timestamptz := now();
    v_started integer := 0;
begin
    perform tenancy.limit_idle_time('15s');
    -- A scheduler that waited for a lock here would delay all other schedules.
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
       -- No scheduler fires early, whatever its own clock says.
       and p_due <= v_now
       and v_now >= all (p_fire_at);
    if not found then
        return null;
    end if;
    if p_skipped_at is not null then
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, reason, decided_at)
        values (p_tenant_id, p_id, p_skipped_at, 'skipped', p_skipped_reason, v_now)
        on conflict do nothing;
    end if;
    for v_place in 1 .. cardinality(p_fire_at) loop
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome)
        values (p_tenant_id, p_id, p_fire_at[v_place], 'waiting')
        on conflict do nothing;
        if found and jobs.decide_firing(p_tenant_id, p_id, p_fire_at[v_place], p_run_ids[v_place]) = 'started' then
            v_started := v_started + 1;
        end if;
    end loop;
    return v_started;
end
$$;
comment on function jobs.fire_schedule(uuid, uuid, timestamptz, integer, timestamptz[], uuid[], timestamptz, text,
                                       timestamptz) is
    'Fires a schedule once for each time in p_fire_at, advances it to p_next_fire_at and returns the number of '
    'started runs. Returns null and changes nothing if another scheduler was faster or the schedule no longer '
    'matches p_due and p_version. p_skipped_at is the last of the times that the scheduler left out.';
revoke all on function
    jobs.fire_schedule(uuid, uuid, timestamptz, integer, timestamptz[], uuid[], timestamptz, text, timestamptz)
    from public;
grant execute on function
    jobs.fire_schedule(uuid, uuid, timestamptz, integer, timestamptz[], uuid[], timestamptz, text, timestamptz)
    to postrider_worker;

create or replace function jobs.tenants_with_waiting_firings(p_limit integer)
returns table (tenant_id uuid, firings integer)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select oldest.tenant_id, count(*)::integer
      from (select firing.tenant_id, firing.looked_at
              from jobs.schedule_firings as firing
             where firing.outcome = 'waiting'
             order by firing.looked_at
             limit p_limit) as oldest
     group by oldest.tenant_id
     order by min(oldest.looked_at)
$$;
comment on function jobs.tenants_with_waiting_firings(integer) is
    'Chooses up to p_limit waiting firings, least recently checked first, and returns their number per tenant. Locks '
    'nothing; fire_waiting then checks per tenant.';
revoke all on function jobs.tenants_with_waiting_firings(integer) from public;
grant execute on function jobs.tenants_with_waiting_firings(integer) to postrider_worker;

create or replace function jobs.fire_waiting(p_tenant_id uuid, p_limit integer, p_patience interval)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now     constant timestamptz := now();
    v_firing  record;
    v_outcome text;
    v_reason  text;
    v_started integer := 0;
begin
    perform tenancy.limit_idle_time('15s');
    for v_firing in
        with looked as materialized (
            select firing.schedule_id, firing.fire_at, firing.created_at < v_now - p_patience as is_late
              from jobs.schedule_firings as firing
             where firing.tenant_id = p_tenant_id
               and firing.outcome = 'waiting'
             order by firing.looked_at
             limit p_limit
               for update skip locked
        )
        select looked.schedule_id, looked.fire_at, looked.is_late, schedule.enabled
          from looked
          join jobs.schedules as schedule on schedule.tenant_id = p_tenant_id and schedule.id = looked.schedule_id
         -- All schedulers use this order, so that two of them cannot deadlock on lock keys.
         order by schedule.function_name, looked.fire_at, schedule.id
    loop
        v_reason := case
                        when v_firing.is_late then 'a function it depends on did not complete in time'
                        when not v_firing.enabled then 'the schedule was disabled while it waited'
                    end;
        if v_reason is not null then
            update jobs.schedule_firings as firing
               set outcome = 'skipped',
                   reason = v_reason,
                   decided_at = v_now
             where firing.tenant_id = p_tenant_id
               and firing.schedule_id = v_firing.schedule_id
               and firing.fire_at = v_firing.fire_at;
            continue;
        end if;
        v_outcome := jobs.decide_firing(p_tenant_id, v_firing.schedule_id, v_firing.fire_at, jobs.new_id());
        if v_outcome = 'started' then
            v_started := v_started + 1;
        elsif v_outcome = 'waiting' then
            update jobs.schedule_firings as firing
               set looked_at = v_now
             where firing.tenant_id = p_tenant_id
               and firing.schedule_id = v_firing.schedule_id
               and firing.fire_at = v_firing.fire_at;
        end if;
    end loop;
    return v_started;
end
$$;
comment on function jobs.fire_waiting(uuid, integer, interval) is
    'Checks up to p_limit waiting firings of a tenant, least recently checked first, and returns the number of started '
    'runs. Skips firings that are older than p_patience or whose schedule was disabled.';
revoke all on function jobs.fire_waiting(uuid, integer, interval) from public;
grant execute on function jobs.fire_waiting(uuid, integer, interval) to postrider_worker;
